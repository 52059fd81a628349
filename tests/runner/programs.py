"""The test programs that cargo built, and the tests in each of them."""
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Every caller builds the same set with the same features, so nothing is built twice.
BUILD = ["cargo", "test", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]


@dataclass(frozen=True)
class Program:
    """One test executable: `engine` has the unit tests of that crate, `engine/suite` those of `tests/suite`."""

    name: str
    path: Path
    # Tests find their fixtures relative to their package, as under `cargo test`.
    directory: Path


@dataclass(frozen=True)
class Test:
    program: Program
    name: str
    # A batch reports several tests by itself, because they share something that is slow to set up.
    batch: bool = False

    @property
    def title(self):
        return f"{self.program.name} {self.name}"


class Built:
    """What one `cargo test --no-run` made."""

    def __init__(self):
        made = subprocess.run(BUILD, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if made.returncode:
            raise SystemExit(made.returncode)
        self.programs = []
        self.binary = None
        for line in made.stdout.splitlines():
            message = json.loads(line) if line.startswith("{") else {}
            if not message.get("executable"):
                continue
            self._add(message)
        self.programs.sort(key=lambda program: program.name)

    def _add(self, message):
        directory = Path(message["manifest_path"]).parent
        kind, target, path = message["target"]["kind"], message["target"]["name"], Path(message["executable"])
        if message["profile"]["test"]:
            name = directory.name if kind != ["test"] else f"{directory.name}/{target}"
            self.programs.append(Program(name, path, directory))
        elif kind == ["bin"] and target == "sandbar":
            self.binary = path


def tests_of(program):
    """Asks the program; the built-in harness and ours answer alike."""
    listed = subprocess.run(
        [program.path, "--list", "--format=terse"], cwd=program.directory, stdout=subprocess.PIPE, text=True
    )
    if listed.returncode:
        raise SystemExit(f"{program.name}: --list ended with {listed.returncode}")
    found = []
    for line in listed.stdout.splitlines():
        name, _, kind = line.rpartition(": ")
        if kind in ("test", "batch"):
            found.append(Test(program, name, kind == "batch"))
    return found
