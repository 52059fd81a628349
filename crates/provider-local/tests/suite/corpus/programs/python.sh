# needs: python3
# A virtual environment, subprocesses, shared memory, databases, TLS, sockets, terminals.
python3 -m venv --without-pip --symlinks env 2>/dev/null || python3 -m venv --without-pip env
cat >use.py <<'END'
import asyncio, ctypes, fcntl, mmap, multiprocessing, multiprocessing.shared_memory, os, pty, resource, select
import signal, socket, sqlite3, ssl, subprocess, sys, tempfile, threading

assert sys.prefix != sys.base_prefix, 'not in the virtual environment'
assert subprocess.run(['cat'], input=b'x', stdout=subprocess.PIPE, check=True).stdout == b'x'


def add(counter, lock, name):
    block = multiprocessing.shared_memory.SharedMemory(name)
    for _ in range(100):
        with lock:
            counter.value += 1
            block.buf[0] = counter.value % 256
    block.close()


def square(number):
    return number * number


async def talk():
    async def echo(reader, writer):
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, '127.0.0.1', 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    writer.write(b'hello\n')
    assert await reader.readline() == b'hello\n'
    child = await asyncio.create_subprocess_exec('echo', 'child', stdout=subprocess.PIPE)
    assert (await child.communicate())[0] == b'child\n'
    server.close()


if __name__ == '__main__':
    for method in ['fork', 'spawn', 'forkserver']:
        context = multiprocessing.get_context(method)
        block = multiprocessing.shared_memory.SharedMemory(create=True, size=4096)
        counter, lock = context.Value('i', 0, lock=False), context.Lock()
        workers = [context.Process(target=add, args=(counter, lock, block.name)) for _ in range(3)]
        [worker.start() for worker in workers], [worker.join() for worker in workers]
        assert counter.value == 300 and block.buf[0] == 300 % 256, (method, counter.value)
        block.close(), block.unlink()
    with multiprocessing.Pool(2) as pool:
        assert pool.map(square, range(10)) == [n * n for n in range(10)]
    database = sqlite3.connect('data.db')
    database.execute('PRAGMA journal_mode=WAL')
    database.execute('CREATE TABLE t (x)')
    database.executemany('INSERT INTO t VALUES (?)', [(n,) for n in range(100)])
    database.commit()
    assert database.execute('SELECT sum(x) FROM t').fetchone() == (4950,)
    context = ssl.create_default_context()
    assert context.verify_mode == ssl.CERT_REQUIRED and context.get_ca_certs()
    asyncio.run(talk())
    threads = [threading.Thread(target=square, args=(n,)) for n in range(20)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    with tempfile.TemporaryFile() as file:
        file.truncate(4096)
        fcntl.flock(file, fcntl.LOCK_EX)
        with mmap.mmap(file.fileno(), 4096) as memory:
            memory[:2] = b'hi'
    anonymous = os.memfd_create('x', 8)  # sealed against execution
    os.write(anonymous, b'x')
    poll = select.epoll()
    left, right = socket.socketpair()
    poll.register(right, select.EPOLLIN)
    left.send(b'x')
    assert poll.poll(1)
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)  # again and again: one may come before the pause
    signal.pause()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert seen
    assert ctypes.CDLL(None).getpid() == os.getpid()
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp('tty', ['tty'])
    assert os.read(terminal, 100).startswith(b'/dev/pts/')
    os.waitpid(pid, 0)
    try:
        os.setxattr('data.db', 'user.note', b'kept')
        assert os.getxattr('data.db', 'user.note') == b'kept'
    except OSError as error:
        assert error.errno == 95, error
    os.sched_setaffinity(0, os.sched_getaffinity(0))
    os.posix_fallocate(os.open('room', os.O_RDWR | os.O_CREAT), 0, 65536)
    os.copy_file_range(os.open('data.db', os.O_RDONLY), os.open('copy', os.O_RDWR | os.O_CREAT), 100)
END
env/bin/python use.py
