// Reads the addon's listing of records (native/store/list_records.cc has its layout).

import type { FoundRecord } from './store-record.js';

const keyBytes = 32;
const keyAt = 40;
const stripesAt = keyAt + 2 * keyBytes;
const stripeBytes = 16;

/** The records of a listing, each with memory of its own. */
export function* readListing(listing: Uint8Array): Generator<FoundRecord> {
  const view = new DataView(listing.buffer, listing.byteOffset, listing.byteLength);
  for (let at = 0; at < listing.byteLength;) {
    const bytes = view.getUint32(at, true);
    yield readRecord(listing.subarray(at, at + bytes), new DataView(listing.buffer, listing.byteOffset + at, bytes));
    at += bytes;
  }
}

function readRecord(bytes: Uint8Array, view: DataView): FoundRecord {
  const tokens = view.getUint32(4, true);
  const extra = view.getUint32(8, true);
  const stripes = view.getUint32(12, true);
  const tokensAt = stripesAt + stripes * stripeBytes;
  const extraAt = tokensAt + 4 * tokens;
  return {
    key: bytes.slice(keyAt, keyAt + keyBytes),
    parent: bytes.slice(keyAt + keyBytes, stripesAt),
    position: view.getFloat64(16, true),
    tokens: new Int32Array(bytes.slice(tokensAt, extraAt).buffer),
    extra: bytes.slice(extraAt, extraAt + extra),
    stripes: Array.from({ length: stripes }, (_, index) => ({
      id: view.getUint32(stripesAt + index * stripeBytes, true),
      bytes: view.getFloat64(stripesAt + index * stripeBytes + 8, true),
    })),
    storedBytes: view.getFloat64(24, true),
    chunkBytes: view.getUint32(32, true),
    isReordered: (view.getUint32(36, true) & 1) !== 0,
    level: view.getUint32(36, true) >>> 8,
  };
}
