"""Clocks, memory, and contenders that take turns."""
import os, statistics, time


def timed(work):
    """Milliseconds."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def spawn(*argv):
    pid = os.posix_spawn(argv[0], argv, os.environ)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{argv}: status {status}")


def wait_until(what, condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds} s for {what}")
        time.sleep(0.002)


class Calm:
    """Waits for others on this machine to be quiet, but no longer than `seconds` in all."""

    def __init__(self, seconds):
        self.left = seconds

    def wait(self, look=0.25, idle=0.9):
        while self.left > 0:
            before = self.times()
            time.sleep(look)
            self.left -= look
            passed = [now - then for now, then in zip(self.times(), before)]
            # Idle, or waiting for a disk.
            if passed[3] + passed[4] >= idle * sum(passed):
                return

    @staticmethod
    def times():
        with open("/proc/stat") as stat:
            return [int(word) for word in stat.readline().split()[1:]]


def field(path, name):
    """A number of kilobytes from a /proc file."""
    with open(path) as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith(name))


def private(pid):
    """Kilobytes that nobody else shares."""
    return field(f"/proc/{pid}/smaps_rollup", "Private_")


def descendants(pid):
    found = [pid]
    for parent in found:
        try:
            with open(f"/proc/{parent}/task/{parent}/children") as children:
                found += [int(child) for child in children.read().split()]
        except FileNotFoundError:
            pass
    return found


class Contender:
    """`work` is timed; `after` restores what the next turn needs, untimed, with what `work` gave."""

    def __init__(self, name, work, after=None, against=None, aim=""):
        self.name, self.work, self.after, self.against, self.aim = name, work, after, against, aim
        self.samples = []

    def turn(self, count=True):
        start = time.perf_counter()
        result = self.work()
        took = (time.perf_counter() - start) * 1000
        if self.after:
            self.after(result)
        if count:
            self.samples.append(took)

    @property
    def median(self):
        return statistics.median(self.samples)

    @property
    def p90(self):
        return p90(self.samples)


def p90(values):
    return statistics.quantiles(values, n=10)[-1] if len(values) > 1 else values[0]


def take_turns(contenders, rounds, warm_up=5):
    for _ in range(warm_up):
        for contender in contenders:
            contender.turn(count=False)
    for _ in range(rounds):
        for contender in contenders:
            contender.turn()


def table(contenders):
    """`against` names another contender, or is absent."""
    by_name = {contender.name: contender for contender in contenders}
    print("| what | median ms | p90 ms | ratio | aim |\n| --- | ---: | ---: | --- | --- |")
    for contender in contenders:
        other = by_name.get(contender.against)
        ratio = f"{contender.median / other.median:.2f} × {other.name.split()[0]}" if other else ""
        print(f"| {contender.name} | {contender.median:.2f} | {contender.p90:.2f} | {ratio} | {contender.aim} |")
