// What the tests of the prefix index have in common: short texts, and an owner with rows of 4 tokens.

import { sharedDomain, type PrefixIndex, type PrefixPath } from '#internal/prefix/index.js';
import { SimulatedOwner, type OwnerOptions } from './simulated-owner.js';

/** An owner with rows of 4 tokens. */
export function owned(options: Partial<OwnerOptions> = {}): SimulatedOwner {
  return new SimulatedOwner({ tokenUnits: 1, rowUnits: 4, ...options });
}

/** Tokens `first`, `first + 1`, … */
export function run(first: number, tokens: number): Int32Array {
  return Int32Array.from({ length: tokens }, (_, at) => first + at);
}

export function join(...parts: readonly Int32Array[]): Int32Array {
  return Int32Array.from(parts.flatMap((part) => [...part]));
}

/** Computes a text as one sequence and releases it. */
export function cache(owner: SimulatedOwner, text: Int32Array, domain = sharedDomain): void {
  const sequence = owner.acquire(text, { domain });
  if (sequence.computed < text.length) owner.commit(sequence, text.length);
  owner.release(sequence);
}

/** A path of the shared domain along what is cached of a text, without an owner. */
export function openPath(index: PrefixIndex, text: Int32Array, limit: number, rows: Int32Array, isAnnounced = false): PrefixPath {
  return index.open(index.match(sharedDomain, text, limit), { rows, isStored: true, level: 0, announced: isAnnounced ? text : undefined });
}
