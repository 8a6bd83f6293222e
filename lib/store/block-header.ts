// The header of a block's file: how many bytes it takes, and what it says. docs/store-format.md has the format;
// native/store/block_header.cc writes headers and checks them.

import type { FoundBlock } from './store-block.js';

const fixedBytes = 256;
/** A header with more is not stored. */
export const mostHeaderBytes = 512 * 2 ** 10;

export function wholePages(bytes: number): number {
  return Math.ceil(bytes / 4096) * 4096;
}

/** Bytes of a block's header that are used; those of a block that is reordered have 4 more for each token. */
export function usedHeaderBytes({ tokens, notesBytes, rowBytes, chunkBytes }: {
  readonly tokens: number;
  readonly notesBytes: number;
  readonly rowBytes: readonly number[];
  readonly chunkBytes: number;
}): number {
  const chunks = rowBytes.reduce((sum, bytes) => sum + Math.ceil(tokens * bytes / chunkBytes), 0);
  return fixedBytes + 4 * (tokens + 2 * rowBytes.length + chunks) + notesBytes;
}

/** A block, where its payload starts in its file, and when that was written. */
export interface ScannedBlock {
  readonly block: FoundBlock;
  readonly headerBytes: number;
  readonly modifiedMs: number;
}

/** The blocks of what `NativeStore.scan` answered, each with memory of its own. */
export function* readScan(scan: Uint8Array): Generator<ScannedBlock> {
  for (let at = 0; at < scan.length;) {
    const view = new DataView(scan.buffer, scan.byteOffset + at);
    const used = view.getUint32(0, true);
    const block = readHeader(scan.subarray(at + 16, at + 16 + used));
    yield { block, headerBytes: wholePages(used), modifiedMs: view.getFloat64(8, true) };
    at += 16 + Math.ceil(used / 8) * 8;
  }
}

function readHeader(header: Uint8Array): FoundBlock {
  const view = new DataView(header.buffer, header.byteOffset, header.byteLength);
  const count = (at: number): number => view.getUint32(at, true);
  let end = header.byteOffset + fixedBytes;
  const list = (length: number): Uint32Array => {
    const numbers = new Uint32Array(header.buffer, end, length).slice();
    end += 4 * length;
    return numbers;
  };
  const hex = (at: number): string => Buffer.from(header.buffer, header.byteOffset + at, 32).toString('hex');
  const isReordered = count(8) !== 0;
  const [tokens, rowBytes, sums] = [list(count(20)), list(count(24)), list(count(24))];
  end += 4 * (count(28) + (isReordered ? tokens.length : 0));
  return {
    key: hex(96),
    parent: hex(128),
    position: Number(view.getBigUint64(40, true)),
    tokens: new Int32Array(tokens.buffer),
    notes: new Uint8Array(header.buffer, end, count(32)).slice(),
    sums,
    rowBytes,
    bytes: Number(view.getBigUint64(48, true)),
    level: view.getUint8(36),
    chunkBytes: count(16),
    isReordered,
  };
}
