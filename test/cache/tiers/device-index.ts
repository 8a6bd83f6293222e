// What tests of tiers do that users cannot: drop cached text from the device alone, and let what is ready run.

import type { KvCache } from 'virtual-kv';

import type { PrefixIndex } from '#internal/prefix/prefix-index.js';

/** What no sequence uses is in the tiers alone. */
export function dropFromDevice(cache: KvCache): void {
  (cache.prefixes as unknown as { readonly index: PrefixIndex }).index.clear();
  cache.counts(); // lets go of its rows
}

/** Lets what is ready run. */
export function turn(): Promise<void> {
  return new Promise((resolve) => {
    setImmediate(resolve);
  });
}
