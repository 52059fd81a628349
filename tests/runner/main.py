"""The command line of `tests/run`."""
import argparse
import json
import os
import shlex
import time
import tomllib
from pathlib import Path

from . import report
from .jobs import Runner
from .postgres import Postgres
from .programs import ROOT, Built, tests_of
from .user import Ordinary

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandbar-tests"
TIMES = CACHE / "times.json"
# Most tests wait more than they compute.
JOBS = 2 * (os.cpu_count() or 1)


def main(arguments):
    parser = argparse.ArgumentParser(prog="tests/run", description="Runs the tests, each in a process of its own.")
    parser.add_argument("names", nargs="*", metavar="TITLE", help="only tests whose title begins with one of these, or has `~PART` in it")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"how many at once ({JOBS})")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="run each N times")
    parser.add_argument("--as-user", action="store_true", help="run copies of the programs as an ordinary user")
    parser.add_argument("--through", default="", metavar="COMMAND", help="a command that runs each test")
    parser.add_argument("--variant", default="", metavar="WORDS", help="as whom or where, for the report")
    parser.add_argument("--report", metavar="FILE", default=os.environ.get("SANDBAR_TEST_REPORT"), help="where results are appended")
    parser.add_argument("--binary", action="store_true", help="print where the sandbar that was built for the tests is")
    parser.add_argument("--list", action="store_true", help="print the titles and run nothing")
    asked = parser.parse_args(arguments)

    built = Built()
    if asked.binary:
        print(built.binary)
        return 0
    tests = [test for program in built.programs if concerns(program, asked.names) for test in tests_of(program)]
    tests = [test for test in tests if chosen(test.title, asked.names)]
    if asked.list:
        print("\n".join(test.title for test in tests))
        return 0
    if not tests:
        raise SystemExit(f"no test is called {' or '.join(asked.names)}")
    times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
    # What begins last ends last: the longest begin first, and those that nobody has measured before them.
    tests.sort(key=lambda test: -times.get(test.title, 1e9))
    begun = time.monotonic()
    with Postgres({test.program for test in tests}):
        results = run(tests * asked.repeat, asked, built)
    times.update({result.test: round(result.seconds, 2) for result in results})
    TIMES.parent.mkdir(parents=True, exist_ok=True)
    TIMES.write_text(json.dumps(times))
    if asked.report:
        report.append(asked.report, results)
    print(f"\n{len(results)} tests in {time.monotonic() - begun:.0f} s\n")
    print("\n".join(report.tables(results)), flush=True)
    return 1 if any(result.outcome == report.FAILED for result in results) else 0


def run(tests, asked, built):
    reasons = tomllib.loads((ROOT / "tests/alone.toml").read_text())["alone"]
    alone = [test for test in tests if test.title.startswith(tuple(reasons))]
    together = [test for test in tests if not test.title.startswith(tuple(reasons))]
    through = shlex.split(asked.through)
    results = []
    for some, jobs in ((together, asked.jobs), (alone, 1)):
        if not asked.as_user:
            results += Runner(jobs, through, asked.variant).run(some)
            continue
        with Ordinary(built, {test.program for test in some}) as user:
            results += Runner(jobs, user.through, asked.variant, user.program, user.directory).run(some)
    return results


def chosen(title, names):
    return not names or any(name[1:] in title if name.startswith("~") else title.startswith(name) for name in names)


def concerns(program, names):
    """Whether any of its tests can be chosen, so that other programs need not be asked."""
    begins = [name for name in names if not name.startswith("~")]
    return len(begins) < len(names) or not names or any(name.split()[0] == program.name for name in begins)
