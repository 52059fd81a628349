"""One PostgreSQL for all tests of a run that do not stop it. Each of them makes a database of its own in it."""
import os
import subprocess
import tempfile
import time
from pathlib import Path

from .user import NOBODY

# Programs whose tests look for it, and the variable they find it by.
USERS = {"engine"}
VARIABLE = "SANDBAR_TEST_POSTGRES"
MEMORY = Path("/dev/shm")
# Only ends a hang.
DEADLINE = 120
# Ends the server at once, whoever is connected, and removes its directory when the pipe to it is closed, as it is when the
# runner ends, however that happens.
KEEPER = '"$@" </dev/null & server=$!; read end; kill -QUIT $server; wait $server; rm -rf "$0"'


class Postgres:
    """Runs while the block does, where it is installed and a test wants it; tests start their own otherwise."""

    def __init__(self, programs):
        installed = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if (path / "initdb").exists()]
        self.bin = max(installed, default=None) if USERS & {program.name for program in programs} else None
        self.server = None

    def __enter__(self):
        if self.bin is None:
            return self
        in_memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix="sandbar-pg-", dir=in_memory))
        as_nobody = ["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"] if os.geteuid() == 0 else []
        if as_nobody:
            # It refuses to run as root.
            os.chown(self.directory, int(NOBODY), int(NOBODY))
        data = self.directory / "data"
        run = dict(cwd=self.directory, env=os.environ | {"LC_ALL": "C.UTF-8"}, stdin=subprocess.DEVNULL)
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C.UTF-8"]
        subprocess.run([*as_nobody, self.bin / "initdb", "-D", data, *options], check=True, stdout=subprocess.DEVNULL, **run)
        # `victim` needs a password, everybody else none.
        (data / "pg_hba.conf").write_text("local all victim scram-sha-256\nlocal all all trust\n")
        settings = ["listen_addresses=", "fsync=off", "max_connections=500", "shared_buffers=32MB"]
        settings = [word for setting in settings for word in ("-c", setting)]
        postgres = [*as_nobody, self.bin / "postgres", "-D", data, "-k", self.directory, *settings]
        with open(self.directory / "log", "wb") as log:
            # In a session of its own, so that an interrupt of the run does not reach it.
            keeper = ["sh", "-c", KEEPER, self.directory, *postgres]
            run |= dict(stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)
            self.server = subprocess.Popen(keeper, **run)
        self._await(data / "postmaster.pid")
        os.environ[VARIABLE] = str(self.directory)
        return self

    def _await(self, pid_file):
        until = time.monotonic() + DEADLINE
        while not pid_file.exists() or "ready" not in pid_file.read_text():
            if self.server.poll() is not None or time.monotonic() > until:
                raise SystemExit("PostgreSQL does not start: " + (self.directory / "log").read_text())
            time.sleep(0.02)

    def __exit__(self, *_):
        if self.server is None:
            return
        del os.environ[VARIABLE]
        self.server.stdin.close()
        self.server.wait()
