"""Runs tests as processes, several at once, the longest first."""
import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from collections import deque

from .report import FAILED, NOT_RUN, PASSED, Result

# As cargo says it to the tests that it starts.
CARGO = subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip() + "/bin/cargo"
# Only ends a hang: no test takes nearly as long on a loaded machine.
DEADLINE = 1200
NOT_RUN_LINE = re.compile(r"^not run: (?:[\w:]+: )?(.*)$", re.MULTILINE)
# Some of a test, or the control of an attack; the test itself counts.
PARTLY_LINE = re.compile(r"^(?:partly|control) not run: .*$", re.MULTILINE)
# A line by which a batch reports one of its tests.
BATCH_LINE = re.compile(r"^test (?P<name>.*) \.\.\. (?P<outcome>ok|FAILED|not run)(?:: (?P<why>.*?))? \((?P<seconds>[\d.]+) s\)$", re.MULTILINE)
OUTCOMES = {"ok": PASSED, "FAILED": FAILED, "not run": NOT_RUN}


class Runner:
    def __init__(self, jobs, through=(), variant="", program=None, directory=None):
        """`through` is a command that becomes the test; `program` and `directory` say where another copy of it is."""
        self.jobs, self.through, self.variant = jobs, list(through), variant
        self.program = program or (lambda program: program.path)
        self.directory = directory
        self.lock = threading.Lock()
        self.running = set()
        self.results = []
        self.stopped = False

    def run(self, tests):
        queue = deque(tests)
        workers = [threading.Thread(target=self._work, args=(queue,), daemon=True) for _ in range(self.jobs)]
        for worker in workers:
            worker.start()
        try:
            for worker in workers:
                while worker.is_alive():
                    worker.join(0.2)
        except KeyboardInterrupt:
            self._stop()
            raise
        return self.results

    def _work(self, queue):
        while not self.stopped:
            try:
                test = queue.popleft()
            except IndexError:
                return
            results, output = self._one(test)
            with self.lock:
                self.results += results
                for result in results:
                    say(result)
                if any(result.outcome == FAILED for result in results):
                    print(output, flush=True)

    def _one(self, test):
        begun = time.monotonic()
        with tempfile.TemporaryFile() as file:
            process = self._start(test, file)
            with self.lock:
                self.running.add(process)
            try:
                code = process.wait(DEADLINE)
            except subprocess.TimeoutExpired:
                code = f"hung for {DEADLINE} s"
                kill(process)
            finally:
                with self.lock:
                    self.running.discard(process)
            seconds = time.monotonic() - begun
            file.seek(0)
            output = file.read().decode(errors="replace")
        results = self._judge(test, code, seconds, output)
        results[0].remarks = PARTLY_LINE.findall(output)
        return results, output

    def _start(self, test, output):
        """A test has an empty standard input, a session of its own, and nothing else of ours."""
        arguments = [test.name] if test.batch else ["--exact", test.name, "--nocapture"]
        return subprocess.Popen(
            [*self.through, self.program(test.program), *arguments],
            cwd=self.directory or test.program.directory,
            env=os.environ | {"CARGO": CARGO, "CARGO_MANIFEST_DIR": str(test.program.directory)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _judge(self, test, code, seconds, output):
        if test.batch:
            results = [
                Result(f"{test.program.name} {line['name']}", OUTCOMES[line["outcome"]], float(line["seconds"]), line["why"] or "", self.variant)
                for line in BATCH_LINE.finditer(output)
            ]
            if code == 0 and results or any(result.outcome == FAILED for result in results):
                return results
            # It ended before its time, and nothing it did not reach has passed.
            return results + [Result(test.title, FAILED, seconds, f"ended with {code}", self.variant)]
        if code != 0:
            return [Result(test.title, FAILED, seconds, f"ended with {code}", self.variant)]
        missing = NOT_RUN_LINE.search(output)
        if missing:
            return [Result(test.title, NOT_RUN, seconds, missing[1], self.variant)]
        return [Result(test.title, PASSED, seconds, "", self.variant)]

    def _stop(self):
        self.stopped = True
        with self.lock:
            for process in self.running:
                kill(process)


def kill(process):
    """The test and whatever it started that stayed in its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def say(result):
    why = f": {result.why}" if result.why else ""
    print(f"{result.outcome:>7} {result.seconds:7.2f} s  {result.title}{why}", flush=True)
