// What Linux says about this process's own memory: its kernel mappings, any byte of it, and how much its page files hold.
// Reads /proc only.

import { closeSync, openSync, readdirSync, readFileSync, readlinkSync, readSync, statSync } from 'node:fs';

export interface KernelMapping {
  readonly from: bigint;
  readonly to: bigint;
  /** `rw-s` for mapped pages, `r--p` for a reservation, `---p` for its guard. */
  readonly permissions: string;
}

/** The kernel mappings that touch a range of addresses. */
export function kernelMappings(address: bigint, bytes: number): readonly KernelMapping[] {
  const lines = readFileSync('/proc/self/maps', 'utf8').trimEnd().split('\n');
  const all = lines.map((line): KernelMapping => {
    const [, from, to, permissions] = /^(\w+)-(\w+) (\S+)/.exec(line)!;
    return { from: BigInt(`0x${from}`), to: BigInt(`0x${to}`), permissions: permissions! };
  });
  return all.filter(({ from, to }) => from < address + BigInt(bytes) && to > address);
}

/** Bytes at any address, without JavaScript touching it. */
export function peek(address: bigint, bytes: number): Uint8Array {
  const memory = openSync('/proc/self/mem', 'r');
  try {
    const into = new Uint8Array(bytes);
    readSync(memory, into, 0, bytes, address);
    return into;
  } finally {
    closeSync(memory);
  }
}

/** The memory that the page files of this process's host drivers hold together. */
export function pageFileBytes(): number {
  const files = readdirSync('/proc/self/fd').map((name) => `/proc/self/fd/${name}`);
  const pageFiles = files.filter((file) => linkOf(file)?.startsWith('/memfd:virtual-kv') === true);
  return pageFiles.reduce((bytes, file) => bytes + statSync(file).blocks * 512, 0);
}

function linkOf(file: string): string | undefined {
  try {
    return readlinkSync(file);
  } catch {
    return undefined; // the descriptor of the listing itself
  }
}
