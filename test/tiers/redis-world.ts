// What tests of the Redis tier share: a tier that is closed with its test, and reading as a cache does, which checks every sum.

import * as diagnostics from 'node:diagnostics_channel';

import type { ExecutionContext } from 'ava';
import type { redisTier, RedisTierOptions, Tier, TierContext } from 'virtual-kv';

import { patient } from '../helpers/patient.js';
import { SteppedClock } from '../serving/stepped-clock.js';
import { digestOf, makeBlock, sumsOf, type MadeBlock } from '#internal/tiers/contract-store.js';
import { processClock, type LoadClock } from '#internal/tiers/load-clock.js';
import { timedRedisTier } from '#internal/tiers/redis-tier.js';

export const stripeTokenBytes = [512, 512, 256, 256];

/** A namespace that no other test has. */
export function namespaceOf(t: ExecutionContext): string {
  return digestOf(`${t.title} ${process.pid} ${process.hrtime.bigint()}`);
}

export function blocksOf(namespace: string, count: number, tokens = 64): MadeBlock[] {
  return Array.from({ length: count }, (_, seed) => makeBlock({ namespace, stripeTokenBytes }, { seed, tokens }));
}

export function keyOf(namespace: string, { record }: MadeBlock): string {
  return `kvt:1:${namespace.slice(0, 16)}:${record.key}`;
}

export function contextOf(namespace: string): TierContext {
  return { namespace, stripeTokenBytes, blockTokens: 64, found: () => {}, lost: () => {} };
}

/** Opens a tier; long limits, as a busy machine is no failure of the store. */
export async function openTier(
  t: ExecutionContext, namespace: string, options: RedisTierOptions, clock: LoadClock = processClock,
): Promise<ReturnType<typeof redisTier>> {
  const tier = timedRedisTier({ ...patient, ...options }, clock);
  t.teardown(() => tier.close());
  await tier.open({ ...contextOf(namespace), found: () => t.fail('it told of a block') });
  return tier;
}

/** Time that passes only by `advance`, for the limits of a tier. */
export function steppedTime(): { readonly clock: LoadClock; advance(ms: number): void } {
  const time = new SteppedClock();
  return {
    clock: { now: time.options.now, after: (wake, delayMs) => time.options.timer(wake, delayMs) },
    advance: (ms) => time.advance(ms),
  };
}

/** Reads a block as a cache does: 'exact', or why it is a miss; 'damaged' where bytes came that the sums do not have. */
export async function read(tier: Tier, { record, payload }: MadeBlock): Promise<string> {
  const target = new Uint8Array(record.bytes);
  const result = await tier.get(record.key, target);
  if (!result.isFound) return result.reason;
  const sums = sumsOf(target, record.tokens.length, stripeTokenBytes);
  if (sums.some((sum, index) => sum !== result.sums[index])) return 'damaged';
  return Buffer.compare(target, payload) === 0 ? 'exact' : 'wrong';
}

interface BreakerChange {
  readonly tier: string;
  readonly lane: string;
  readonly to: string;
}

/** Resolves once a breaker of the tier of this name changes to `state`. Call it before what makes it change. */
export function breakerChange(tier: string, lane: string, state: string): Promise<void> {
  return new Promise((resolve) => {
    const hear = (message: unknown): void => {
      const change = message as BreakerChange;
      if (change.tier !== tier || change.lane !== lane || change.to !== state) return;
      diagnostics.unsubscribe('virtual-kv:tier-breaker', hear);
      resolve();
    };
    diagnostics.subscribe('virtual-kv:tier-breaker', hear);
  });
}
