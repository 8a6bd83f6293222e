// The contract of streams and events. That an event waits for work that is still queued can be tested only where a test
// can hold the work back: with the mock, in its own tests.

import type { ContractTest } from './driver-contract.js';

export function streamContract(contractTest: ContractTest): void {
  contractTest('work on a stream is done when the stream was synchronized', ['memory'], (t, bench) => {
    const address = bench.reserve(2);
    bench.fillRun(address, 2);
    const stream = bench.native.createStream();
    t.not(stream, 0n);
    bench.native.fill(address, 6, 100, stream);
    bench.native.copy(bench.at(address, 1), address, 100, stream);
    bench.native.synchronizeStream(stream);
    t.deepEqual(bench.read(bench.at(address, 1) + 99n, 1), [6]);
    bench.native.destroyStream(stream);
  });

  contractTest('an event is done when the work before it is', [], (t, bench) => {
    const stream = bench.native.createStream();
    for (const on of [stream, 0n]) {
      const event = bench.native.recordEvent(on);
      t.not(event, 0n);
      bench.native.synchronizeStream(on);
      t.true(bench.native.queryEvent(event));
      t.true(bench.native.queryEvent(event), 'asking changes nothing');
      bench.native.destroyEvent(event);
    }
    bench.native.destroyStream(stream);
  });

  contractTest('work queued behind a wait for an event runs after it', ['memory'], (t, bench) => {
    const address = bench.reserve(2);
    bench.fillRun(address, 2);
    const { native } = bench;
    const [first, second] = [native.createStream(), native.createStream()];
    native.fill(address, 7, 100, first);
    const event = native.recordEvent(first);
    native.waitEvent(second, event);
    native.copy(bench.at(address, 1), address, 100, second);
    native.synchronizeStream(second);
    t.deepEqual(bench.read(bench.at(address, 1) + 99n, 1), [7]);
    native.synchronizeEvent(event);
    t.true(native.queryEvent(event));
    native.destroyEvent(event);
    for (const stream of [first, second]) native.destroyStream(stream);
  });

  contractTest('a read comes after what was queued on the default stream, and a write does', ['memory'], (t, bench) => {
    const address = bench.reserve(1);
    bench.fillRun(address, 1);
    bench.native.fill(address, 6, bench.pageBytes, 0n);
    t.deepEqual(bench.read(bench.at(address, 1) - 1n, 1), [6]);
    bench.native.fill(address, 7, bench.pageBytes, 0n);
    bench.write(address, 8);
    bench.native.synchronizeStream(0n);
    t.deepEqual(bench.read(address, 2), [8, 7]);
  });

  contractTest('a read or a write comes after the default stream\'s work while another thread waits for it', ['memory'], async (t, bench) => {
    const { native, pageBytes } = bench;
    const address = bench.reserve(1);
    bench.fillRun(address, 1);
    /** Other calls, so that the other thread's wait begins sooner or later: before, and after, what comes next. */
    const passTime = (calls: number): void => {
      for (let call = 0; call < calls; call += 1) native.queryMemory();
    };
    for (let round = 0; round < 12; round += 1) {
      native.fill(address, round, pageBytes, 0n);
      let waiting = native.synchronizeAsync(0n);
      passTime(20 * round);
      t.deepEqual(bench.read(bench.at(address, 1) - 1n, 1), [round]);
      await waiting;
      native.fill(address, 100 + round, pageBytes, 0n);
      waiting = native.synchronizeAsync(0n);
      passTime(20 * round);
      bench.write(address, 200);
      await waiting;
      t.deepEqual(bench.read(address, 2), [200, 100 + round]);
    }
  });

  contractTest('without streams an event is done at once', [], (t, bench) => {
    if (bench.info.hasStreams) return t.pass();
    const event = bench.native.recordEvent(0n);
    if (bench.info.hasStreams) bench.native.synchronizeEvent(event);
    t.true(bench.native.queryEvent(event));
    bench.native.destroyEvent(event);
  });

  contractTest('an event outlives its stream', [], (t, bench) => {
    const stream = bench.native.createStream();
    const event = bench.native.recordEvent(stream);
    bench.native.synchronizeStream(stream);
    bench.native.destroyStream(stream);
    t.true(bench.native.queryEvent(event));
    bench.native.destroyEvent(event);
  });

  contractTest('a stream that does not exist is refused', ['work handle check'], (_t, bench) => {
    const address = bench.reserve(1);
    bench.fillRun(address, 1);
    const destroyed = bench.native.createStream();
    bench.native.destroyStream(destroyed);
    const { native } = bench;
    for (const stream of [destroyed, 987_654n]) {
      bench.refuses('KV_DRIVER_MISUSE', () => native.synchronizeStream(stream));
      bench.refuses('KV_DRIVER_MISUSE', () => native.destroyStream(stream));
      bench.refuses('KV_DRIVER_MISUSE', () => native.recordEvent(stream));
      const event = native.recordEvent(0n);
      bench.refuses('KV_DRIVER_MISUSE', () => native.waitEvent(stream, event));
      native.destroyEvent(event);
    }
  });

  contractTest('an event that does not exist is refused', ['work handle check'], (_t, bench) => {
    const destroyed = bench.native.recordEvent(0n);
    bench.native.destroyEvent(destroyed);
    for (const event of [destroyed, 987_654n]) {
      bench.refuses('KV_DRIVER_MISUSE', () => bench.native.queryEvent(event));
      bench.refuses('KV_DRIVER_MISUSE', () => bench.native.destroyEvent(event));
      bench.refuses('KV_DRIVER_MISUSE', () => bench.native.synchronizeEvent(event));
      bench.refuses('KV_DRIVER_MISUSE', () => bench.native.waitEvent(0n, event));
    }
  });
}
