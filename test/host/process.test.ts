// The host driver and the process around it: forks, programs it starts, and limits it was started with.
// Alone in its process: it changes signals and descriptors of the process.

import { spawnSync } from 'node:child_process';
import { release } from 'node:os';

import test, { type ExecutionContext } from 'ava';

import { withBench } from '../helpers/driver-bench.js';
import { hostDriver } from '../helpers/drivers.js';
import { compileHostProbe, hostProbe, whyNoProbe } from '../helpers/host-probe.js';

const noProbe = whyNoProbe();
const [major = 0, minor = 0] = release().split('.').map(Number);
const hasCollapse = process.arch === 'x64' && (major > 6 || (major === 6 && minor >= 1));
const probeTest = (title: string, body: (t: ExecutionContext) => void): void => {
  if (noProbe === undefined) test(title, body);
  else test.skip(`${title} [${noProbe}]`, body);
};

if (noProbe === undefined) test.before(compileHostProbe);

probeTest('a forked child can neither read nor write its parent’s cache', (t) => {
  const SIGSEGV = '-11';
  t.like(hostProbe('fork'), {
    'child-write': SIGSEGV, 'child-read': SIGSEGV, 'child-read-of-hole': SIGSEGV, 'parent-byte': '42',
  });
});

probeTest('every call in a forked child is refused, and closing the driver there leaves the parent’s alone', (t) => {
  t.like(hostProbe('fork'), {
    'child-call': '0', 'copied-child-call': '0', 'child-close': '0', 'parent-byte-written': '43', 'parent-call': '0',
  });
});

probeTest('a question in a forked child is answered, whatever another thread of the parent had locked', (t) => {
  t.like(hostProbe('fork-under-lock'), { 'child-under-lock': '0' });
});

probeTest('a forked child can open a driver of its own', (t) => {
  t.like(hostProbe('fork'), { 'child-own-driver': '42', 'child-process-mappings': '4' });
});

probeTest('a vfork child, which shares the parent’s addresses, takes nothing away', (t) => {
  t.like(hostProbe('fork'), { 'vfork-child': '0', 'parent-byte': '42' });
});

test('starting another program leaves the cache as it is', (t) => {
  withBench(t, hostDriver, (bench) => {
    const address = bench.reserve(2);
    bench.fillRun(address, 1);
    bench.write(address, 9);
    t.is(spawnSync('true').status, 0);
    t.deepEqual(bench.read(address, 1), [9]);
    bench.write(address, 10);
    bench.fillRun(bench.at(address, 1), 1);
  });
});

probeTest('a file size limit is an error of Reserve and CreatePage, and does not end the process', (t) => {
  t.deepEqual(hostProbe('file-size'), {
    'reserve-code': '3', 'reserve-call': 'ftruncate', 'reserve-errno': 'EFBIG',
    'create-code': '2', 'create-call': 'ftruncate', 'create-errno': 'EFBIG',
    'live-pages': '0', 'live-reservations': '0', 'mappings': '0',
  });
});

probeTest('without a free file descriptor the driver is unavailable, and says why', (t) => {
  t.deepEqual(hostProbe('open-files'), { 'open-code': '5', 'open-call': 'memfd_create', 'open-errno': 'EMFILE' });
});

probeTest('huge pages hold the same bytes as ordinary ones, and are given back', (t) => {
  const facts = hostProbe('huge-pages');
  t.like(facts, { 'first-sum': '0', 'kept-sum': '0', 'small-bytes': '0' });
  if (!hasCollapse) return t.log(`Linux ${release()} on ${process.arch} makes no huge pages of a memory file`);
  t.like(facts, { 'created-bytes': `${8 * 2 ** 20}`, 'kept-bytes': `${4 * 2 ** 20}`, 'huge-kibibytes': '4096' });
});
