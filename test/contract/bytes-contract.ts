// The contract of Write, Read, Download, Upload, Copy and Fill.

import { HostPages } from '../helpers/host-pages.js';
import type { ContractTest } from './driver-contract.js';

export function bytesContract(contractTest: ContractTest): void {
  contractTest('bytes are written and read across pages that are not neighbours in memory', ['memory'], (t, bench) => {
    const address = bench.reserve(4);
    for (const index of [2, 0, 3, 1]) bench.map(bench.at(address, index), bench.create());
    bench.native.setAccess(address, 4 * bench.pageBytes);
    const bytes = Uint8Array.from({ length: 3 * bench.pageBytes }, (_, index) => index % 251);
    bench.native.write(address + 77n, bytes);
    const into = new Uint8Array(bytes.length);
    bench.native.read(into, address + 77n);
    t.is(Buffer.compare(into, bytes), 0);
  });

  contractTest('a range of no bytes is accepted and does nothing', ['memory'], (t, bench) => {
    const address = bench.reserve(1);
    bench.fillRun(address, 1);
    bench.write(address, 5);
    bench.native.write(address, new Uint8Array(0));
    bench.native.read(new Uint8Array(0), address);
    bench.native.fill(address, 9, 0, 0n);
    bench.native.copy(address, address + 8n, 0, 0n);
    bench.native.synchronizeStream(0n);
    t.deepEqual(bench.read(address, 1), [5]);
  });

  contractTest('bytes outside mapped memory are refused', ['memory', 'access check'], (t, bench) => {
    const address = bench.reserve(3);
    bench.fillRun(address, 2);
    const end = bench.at(address, 2);
    bench.write(end - 2n, 8, 9);
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.write(end - 1n, 1, 1), 'half of it is');
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.read(end - 1n, 2), 'half of it is');
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.write(end, 1), 'a hole');
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.read(bench.at(address, 3), 1), 'past the reservation');
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.read(bench.at(address, -1), 1), 'before the reservation');
    t.deepEqual(bench.read(end - 2n, 2), [8, 9], 'nothing of a refused write arrived');
  });

  contractTest('copies and fills outside mapped memory are refused', ['memory', 'access check'], (_t, bench) => {
    const address = bench.reserve(4);
    bench.fillRun(address, 2);
    const end = bench.at(address, 2);
    const { native } = bench;
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => native.copy(address, end - 8n, 16, 0n), 'from');
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => native.copy(end - 8n, address, 16, 0n), 'to');
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => native.fill(end - 8n, 1, 16, 0n), 'fill');
  });

  contractTest('bytes arrive in memory of the CPU, in registered memory once the stream has done them', ['memory'], (t, bench) => {
    const address = bench.reserve(1);
    bench.fillRun(address, 1);
    bench.native.fill(address, 6, bench.pageBytes, 0n);
    bench.native.synchronizeStream(0n);
    const host = new HostPages();
    const stream = bench.native.createStream();
    bench.native.registerHost(host.address, HostPages.bytes);
    for (const at of [0n, 1n, 4096n]) bench.native.download(host.address + at * 16n, address + at, 16, stream);
    bench.native.synchronizeStream(stream);
    t.deepEqual(host.read(0, 33), [...new Array<number>(32).fill(6), 0]);
    t.deepEqual(host.read(4096 * 16 - 1, 18), [0, ...new Array<number>(16).fill(6), 0]);
    bench.native.unregisterHost(host.address);
    bench.native.download(host.address + 100n, address, 3, stream); // done when it returns
    t.deepEqual(host.read(99, 5), [0, 6, 6, 6, 0]);
    bench.native.destroyStream(stream);
    host.close();
  });

  contractTest('bytes come from memory of the CPU, from registered memory once the stream has taken them', ['memory'], (t, bench) => {
    const address = bench.reserve(1);
    bench.fillRun(address, 1);
    bench.native.fill(address, 1, 64, 0n);
    bench.native.synchronizeStream(0n);
    const host = new HostPages();
    host.write(0, [2, 3, 4, 5]);
    const stream = bench.native.createStream();
    bench.native.registerHost(host.address, HostPages.bytes);
    bench.native.upload(address + 1n, host.address, 2, stream);
    bench.native.synchronizeStream(stream);
    t.deepEqual(bench.read(address, 4), [1, 2, 3, 1]);
    bench.native.unregisterHost(host.address);
    bench.native.upload(address + 5n, host.address + 2n, 2, stream);
    host.write(0, [9, 9, 9, 9]); // it was taken when the call returned
    bench.native.synchronizeStream(stream);
    t.deepEqual(bench.read(address, 8), [1, 2, 3, 1, 1, 4, 5, 1]);
    bench.native.destroyStream(stream);
    host.close();
  });

  contractTest('bytes outside mapped memory do not arrive anywhere', ['memory', 'access check'], (t, bench) => {
    const address = bench.reserve(2);
    bench.fillRun(address, 1);
    const host = new HostPages();
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.native.download(host.address, bench.at(address, 1) - 8n, 16, 0n));
    t.deepEqual(host.read(0, 16), new Array<number>(16).fill(0));
    bench.refuses('KV_COPY_OUT_OF_RANGE', () => bench.native.upload(bench.at(address, 1) - 8n, host.address, 16, 0n));
    host.close();
  });

  contractTest('a fill writes its range and nothing else', ['memory'], (t, bench) => {
    const address = bench.reserve(2);
    bench.fillRun(address, 2);
    bench.native.fill(address, 1, 2 * bench.pageBytes, 0n);
    const from = bench.at(address, 1) - 3n;
    bench.native.fill(from, 200, 6, 0n);
    bench.native.synchronizeStream(0n);
    t.deepEqual(bench.read(from - 2n, 10), [1, 1, 200, 200, 200, 200, 200, 200, 1, 1]);
  });

  contractTest('a copy writes its range and nothing else', ['memory'], (t, bench) => {
    const from = bench.reserve(2);
    const to = bench.reserve(2);
    [from, to].forEach((address) => bench.fillRun(address, 2));
    bench.native.fill(to, 1, 2 * bench.pageBytes, 0n);
    const middle = (address: bigint): bigint => bench.at(address, 1) - 2n;
    bench.write(middle(from), 10, 11, 12, 13);
    bench.native.copy(middle(to), middle(from), 4, 0n);
    bench.native.synchronizeStream(0n);
    t.deepEqual(bench.read(middle(to) - 1n, 6), [1, 10, 11, 12, 13, 1]);
  });

  contractTest('a copy between ranges that overlap is refused', ['memory', 'overlap check'], (t, bench) => {
    const address = bench.reserve(1);
    bench.fillRun(address, 1);
    bench.write(address, 1, 2, 3, 4);
    t.throws(() => bench.native.copy(address + 1n, address, 2, 0n));
    t.throws(() => bench.native.copy(address, address + 1n, 2, 0n));
    bench.native.copy(address + 2n, address, 2, 0n);
    bench.native.synchronizeStream(0n);
    t.deepEqual(bench.read(address, 4), [1, 2, 1, 2]);
  });
}
