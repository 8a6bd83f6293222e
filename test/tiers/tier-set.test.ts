// Payloads on their way between tiers: what is put somewhere has the sums of its own bytes, whatever else was stored of
// the same text.

import test from 'ava';

import { hostTier } from 'virtual-kv';

import { prefixDomain } from '#internal/prefix/domain.js';
import { BlockKeys } from '#internal/tiers/block-record.js';
import { sumsOf } from '#internal/tiers/contract-store.js';
import type { StoredBlock } from '#internal/tiers/stored-texts.js';
import { TierSet } from '#internal/tiers/tier-set.js';
import { PlainTier } from '../cache/tiers/plain-tier.js';

const stripeTokenBytes = [64, 64];

test('a block that was computed twice, with other bytes, is copied with the sums of the bytes that are copied', async (t) => {
  const keys = new BlockKeys([], 16);
  const tiers = [hostTier({ bytes: 2 ** 20 }), new PlainTier('plain')];
  const set = new TierSet({
    tiers, keys, namespace: '0'.repeat(64), stripeTokenBytes, names: { nameOf: () => undefined, numberOf: () => 0 },
    importantTokens: () => 0, lastingLevel: () => 0, report: (error) => { t.fail(String(error)); },
  });
  await set.open();
  const text = Int32Array.from({ length: 16 }, (_, at) => at);
  const root = set.rootFor(prefixDomain());
  const block: StoredBlock = set.texts.add(root, keys.key(root.key, text, 0, 16, undefined), text);
  const [host, plain] = set.all;
  const payloads: Uint8Array[] = [];
  for (const [value, open] of [[1, plain!], [2, host!]] as const) {
    const lent = (await set.lend(block, [open]))!;
    lent.payload.fill(value);
    payloads.push(lent.payload.slice());
    await set.store(block, lent, sumsOf(lent.payload, 16, stripeTokenBytes), [open], set.clears);
  }
  host!.forget([block]);
  t.true(await set.copy(block, host!));
  const copied = await set.fetch(block, undefined);
  t.true('payload' in copied && copied.from === host);
  if (!('payload' in copied)) return;
  t.deepEqual(copied.payload.slice(), payloads[0]!);
  t.deepEqual(copied.sums.slice(), sumsOf(payloads[0]!, 16, stripeTokenBytes));
  copied.release();
  set.verify();
  await set.close();
});
