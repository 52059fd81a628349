"""Tests as somebody with no privilege at all."""
import os
import shutil
import tempfile
from pathlib import Path

NOBODY = "65534"


class Ordinary:
    """Copies of the programs in a directory that anybody may read, since the tree may be unreadable."""

    def __init__(self, built, programs):
        self.built, self.programs = built, programs

    def __enter__(self):
        self.directory = Path(tempfile.mkdtemp(prefix="sandbar-user-"))
        self.directory.chmod(0o755)
        scratch = self.directory / "tmp"
        scratch.mkdir()
        scratch.chmod(0o1777)
        copies = {self.program(program): program.path for program in self.programs}
        copies[self.directory / "sandbar"] = self.built.binary
        for copy, original in copies.items():
            shutil.copy(original, copy)
            copy.chmod(0o755)
        become = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]
        kept = [f"{name}={os.environ[name]}" for name in ("PATH", "CI", "SANDBAR_SOAK") if name in os.environ]
        given = [f"TMPDIR={scratch}", f"SANDBAR_PROGRAM={self.directory / 'sandbar'}"]
        self.through = [*become, "env", "-i", *kept, *given]
        return self

    def program(self, program):
        return self.directory / program.name.replace("/", "-")

    def __exit__(self, *_):
        shutil.rmtree(self.directory)
