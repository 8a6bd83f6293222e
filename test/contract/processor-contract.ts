// The contract of drivers whose addresses the CPU may use: what it finds there, looked at through the kernel.

import { kernelMappings, peek } from '../helpers/process-memory.js';
import type { ContractTest } from './driver-contract.js';

export function processorContract(contractTest: ContractTest): void {
  contractTest('the CPU finds at an address what was written to the page', ['host access'], (t, bench) => {
    const address = bench.reserve(2);
    const page = bench.create();
    bench.place(address, page);
    bench.place(bench.at(address, 1), page);
    bench.write(bench.at(address, 1) + 9n, 1, 2, 3);
    t.deepEqual([...peek(address + 9n, 3)], [1, 2, 3]);
    t.is(kernelMappings(address, 1)[0]?.permissions, 'rw-s');
  });

  contractTest('the CPU finds zeros where nothing is mapped, and cannot write', ['readable holes'], (t, bench) => {
    const address = bench.reserve(4);
    bench.fillRun(bench.at(address, 1), 1);
    bench.native.fill(bench.at(address, 1), 0xff, bench.pageBytes, 0n);
    bench.unmap(bench.at(address, 1));
    t.true(peek(address, 4 * bench.pageBytes).every((byte) => byte === 0));
    t.true(kernelMappings(address, 4 * bench.pageBytes).every(({ permissions }) => permissions === 'r--p'));
  });

  contractTest('without access the CPU finds nothing of a mapped page', ['readable holes'], (t, bench) => {
    const address = bench.reserve(2);
    const page = bench.create();
    bench.place(address, page);
    bench.write(address, 1);
    bench.map(bench.at(address, 1), page);
    t.is(peek(bench.at(address, 1), 1)[0], 0);
    bench.native.setAccess(bench.at(address, 1), bench.pageBytes);
    t.is(peek(bench.at(address, 1), 1)[0], 1);
  });
}
