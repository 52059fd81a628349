"""What became of each test, and the tables printed at the end."""
import json
import os
from dataclasses import asdict, dataclass, field

PASSED, FAILED, NOT_RUN = "passed", "failed", "not run"
SLOWEST = 20


@dataclass
class Result:
    test: str
    outcome: str
    seconds: float
    why: str = ""
    # As whom or where, when a test is run more than once: `as an ordinary user`, `on a cluster`.
    variant: str = ""
    # What of it was not run.
    remarks: list = field(default_factory=list)

    @property
    def title(self):
        return f"{self.test} {self.variant}".strip()


def append(path, results):
    with open(path, "a") as file:
        for result in results:
            file.write(json.dumps(asdict(result)) + "\n")


def read(path):
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [Result(**json.loads(line)) for line in file]


def settled(results):
    """One result a test and variant. A test that passed somewhere is not missing where it could not run."""
    passed = {result.test for result in results if result.outcome == PASSED}
    kept = [result for result in results if result.outcome != NOT_RUN or result.test not in passed]
    return list({(result.title, result.outcome, result.why): result for result in kept}.values())


def tables(results):
    """The lines of the final report: slowest tests, what did not run, failures, and the count."""
    results = settled(results)
    lines = []
    slow = sorted(results, key=lambda result: -result.seconds)[:SLOWEST]
    if len(results) > SLOWEST:
        lines += [f"the {SLOWEST} slowest tests:"]
        lines += [f"{result.seconds:9.1f} s  {result.title}" for result in slow] + [""]
    missing = sorted((result.title, result.why) for result in results if result.outcome == NOT_RUN)
    lines += [f"not run: {title}: {why}" for title, why in missing]
    lines += sorted({remark for result in results for remark in result.remarks})
    failed = sorted(result.title for result in results if result.outcome == FAILED)
    lines += [f"FAILED: {title}" for title in failed]
    count = {outcome: sum(result.outcome == outcome for result in results) for outcome in (PASSED, FAILED, NOT_RUN)}
    return lines + [f"{count[PASSED]} passed, {count[FAILED]} failed, {count[NOT_RUN]} skipped"]
