# needs: node
# A server and its client on loopback, workers with shared memory, children, watching files.
cat >use.mjs <<'END'
import { Worker, isMainThread, workerData } from 'node:worker_threads';
import { execFileSync, fork, spawn } from 'node:child_process';
import { createHash, randomBytes, scryptSync } from 'node:crypto';
import { once } from 'node:events';
import fs from 'node:fs';
import http from 'node:http';
import zlib from 'node:zlib';
import assert from 'node:assert';
import { fileURLToPath } from 'node:url';

const self = fileURLToPath(import.meta.url);
if (process.send) {
  process.send('from the child');
  process.disconnect();
} else if (!isMainThread) {
  for (let i = 0; i < 1000; i++) Atomics.add(new Int32Array(workerData), 0, 1);
} else {
  const server = http.createServer((request, response) => response.end('served')).listen(0, '127.0.0.1');
  await once(server, 'listening');
  const answer = await fetch(`http://localhost:${server.address().port}/`).catch(() =>
    fetch(`http://127.0.0.1:${server.address().port}/`));
  assert.equal(await answer.text(), 'served');
  server.closeAllConnections();
  server.close();
  const shared = new SharedArrayBuffer(4);
  const workers = [1, 2, 3].map(() => new Worker(self, { workerData: shared }));
  await Promise.all(workers.map((worker) => once(worker, 'exit')));
  assert.equal(new Int32Array(shared)[0], 3000);
  assert.equal(execFileSync('echo', ['x']).toString(), 'x\n');
  const [message] = await once(fork(self), 'message');
  assert.equal(message, 'from the child');
  const child = spawn('cat', { stdio: ['pipe', 'pipe', 'inherit'] });
  child.stdin.end('piped');
  assert.equal((await once(child.stdout, 'data')).toString(), 'piped');
  const watcher = fs.watch('.');
  setTimeout(() => fs.writeFileSync('watched', ''), 10);
  await once(watcher, 'change');
  watcher.close();
  assert.equal(zlib.gunzipSync(zlib.gzipSync(randomBytes(100000))).length, 100000);
  assert.equal(scryptSync('a', 'b', 32).length, 32);
  assert.equal((await fs.promises.readFile(self)).length, fs.statSync(self).size);
  assert.match(createHash('sha256').update('x').digest('hex'), /^[0-9a-f]{64}$/);
}
END
node use.mjs
