// Prefixes: the prefix cache of a KvCache, as its users see it: what is cached of a prompt and why not more, hit rates, reset,
// and the namespace that a change of weights changes. `KvCache.acquire` uses it by itself; nothing here needs to be called.

import { createError } from '../base/errors.js';
import { arrayOf, boolean, notConstructible, optional, readOptions, string, withDefault } from '../base/options.js';
import { prefixDomain, type PrefixDomain } from '../prefix/domain.js';
import type { PrefixExplanation as TextExplanation } from '../prefix/prefix-explanation.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { PromptEncoder, PromptItem } from '../prefix/prompt-encoder.js';
import { dropReasons, type DroppedRows, type DropReason } from '../prefix/dropped-rows.js';
import type { CoverEnd } from '../side/side-cover.js';
import type { SideTensors } from '../side/side-tensors.js';
import { readPromptOptions, type PromptOptions, type ReadAcquireOptions } from './acquire-options.js';
import type { CachedRows } from './cached-rows.js';
import { externalKeys } from './external-key.js';
import { GivenFence } from './fence.js';
import type { Lifetime } from './lifetime.js';
import { blockTokensField } from './prefix-block-keys.js';
import type { PrefixEvents } from './prefix-events.js';
import type { CachedBy, Prompt } from './admission-request.js';
import type { SlotLeases } from './slot-leases.js';
import type { SlotMemory } from './slot-memory.js';
import { holdsSlots, slotStates, type Slots } from './slots.js';
import type { Steps } from './steps.js';

/** A prompt, and what its sequence would carry. */
export interface PrefixLookupOptions extends PromptOptions {
  /** As of `KvCache.acquire`. Default: all side tensors of the cache. */
  readonly needs?: readonly string[] | undefined;
}

/**
 * Why no more of a prompt is cached. `side-evicted`, `side-never-written`: K and V are, up to `keyValueTokens`, but `sideTensor` is not:
 * its end was evicted, or the sequences that computed the text did not write it.
 */
export type PrefixExplanation = TextExplanation | {
  readonly tokens: number;
  readonly reason: CoverEnd;
  readonly sideTensor: string;
  readonly keyValueTokens: number;
};

/** What `Prefixes.lookup` finds. */
export interface PrefixLookup {
  /** Tokens of the prompt that `acquire` would find now. One is left to compute, unless a value is kept for the whole prompt. */
  readonly cachedTokens: number;
  /**
   * Tokens that it will find once running sequences have computed what they are at: waiting for them may be cheaper than
   * computing the same twice. Equal to `cachedTokens` when none does.
   */
  readonly pendingTokens: number;
}

/** Options of `Prefixes.reset`. */
export interface PrefixResetOptions {
  /** Release sequences that use cached rows, whatever they are doing. Default false: refuse while there are any. */
  readonly preempt?: boolean | undefined;
}

/** What the prefix cache was worth, in tokens, since the cache was opened. */
export interface PrefixMetrics {
  /** Requests that gave their tokens and read the cache. */
  readonly requests: number;
  /** Their prompts' tokens. */
  readonly promptTokens: number;
  /** Of these, those that came from the cache, and how. */
  readonly cachedTokens: number;
  /** Cached tokens that came with an idle slot that held them: nothing was mapped or copied. */
  readonly adoptedTokens: number;
  /** Cached tokens whose rows were mapped under another slot. */
  readonly aliasedTokens: number;
  /** Cached tokens that were copied, of rows that match in part. */
  readonly copiedTokens: number;
  /** cachedTokens / promptTokens; 0 without any. */
  readonly hitRate: number;
  /** The same over the last requests (`recentRequests`). */
  readonly recentHitRate: number;
  /** Rows that the cache let go of, by reason. */
  readonly droppedRows: Readonly<Record<DropReason, number>>;
}

/** The parts of a cache that keep its prefixes. @internal */
export interface PrefixParts {
  readonly slots: Slots;
  readonly memory: SlotMemory;
  readonly lifetime: Lifetime;
  readonly leases: SlotLeases;
  readonly steps: Steps;
  readonly cached: CachedRows;
  readonly side: SideTensors;
  readonly encoder: PromptEncoder;
  readonly statistics: PrefixStatistics;
  /** Undefined unless routers are told. */
  readonly events: PrefixEvents | undefined;
  /** False with `prefixCache: 'off'`. */
  readonly isOn: boolean;
}

/** The prefix cache of a `KvCache`: what is cached of a prompt, why not more, hit rates, reset. */
export class Prefixes {
  readonly #parts: PrefixParts;
  #namespace = '';

  /** @internal Use `cache.prefixes`. */
  constructor(parts: PrefixParts) {
    if (!holdsSlots(parts)) throw notConstructible('Prefixes', 'cache.prefixes');
    this.#parts = parts;
  }

  /** False with `prefixCache: 'off'`. */
  get isOn(): boolean {
    return this.#parts.isOn;
  }

  /** What `acquire` would find of a prompt. Changes nothing, not even what is evicted next. */
  lookup(options: PrefixLookupOptions): PrefixLookup {
    const { text, domain, needs } = this.#prompt('Prefixes.lookup', options);
    const { cached, cached: { index }, side } = this.#parts;
    cached.flushCommits();
    if (cached.isForgetting) return { cachedTokens: 0, pendingTokens: 0 };
    const hit = index.match(domain, text);
    const covered = side.covered(hit.node, hit.tokens, needs);
    if (covered < hit.tokens) hit.limitTo(covered);
    const { tokens, pendingTokens } = hit;
    return { cachedTokens: tokens, pendingTokens: Math.max(tokens, pendingTokens) };
  }

  /** Why no more of a prompt is cached than is: for logs and an operator's questions. */
  explain(options: PrefixLookupOptions): PrefixExplanation {
    const { text, domain, needs } = this.#prompt('Prefixes.explain', options);
    const { cached: { index }, cached, side } = this.#parts;
    cached.flushCommits();
    const { node, tokens: keyValueTokens } = index.match(domain, text, text.length);
    const lacking = side.lacking(node, keyValueTokens, needs);
    if (lacking === undefined) return index.explain(domain, text);
    return { tokens: lacking.tokens, reason: lacking.reason, sideTensor: lacking.tensor, keyValueTokens };
  }

  /**
   * Keys for stores outside this process: one per whole block of the prompt, 64 hexadecimal digits, collision-resistant over the
   * model's shape, the domain and all tokens up to the block's end. Nothing is looked up and nothing kept.
   */
  externalKeys(options: PromptOptions, blockTokens: number): string[] {
    blockTokensField(blockTokens, { owner: 'Prefixes.externalKeys', option: 'blockTokens' });
    const { text, domain } = this.#prompt('Prefixes.externalKeys', options);
    const { memory, encoder } = this.#parts;
    return externalKeys({ tensors: memory.layout.tensors, domain, text, blockTokens, names: encoder });
  }

  /** For routers that come late: publishes `virtual-kv:prefix-cleared`, then all blocks that are cached. Nothing without `events`. */
  publishAll(): void {
    this.#parts.lifetime.check('publish its prefixes');
    this.#parts.cached.flushCommits();
    this.#parts.events?.publishAll();
  }

  /** Sums and hit rates since the cache was opened. */
  get metrics(): PrefixMetrics {
    this.#parts.lifetime.check('read its prefix metrics');
    return this.#parts.statistics.metrics();
  }

  /** What `setNamespace` set last; empty at first. */
  get namespace(): string {
    return this.#namespace;
  }

  /** From here on requests find only what is stored from here on: for new weights. What is cached ages out, or `reset` drops it. */
  setNamespace(namespace: string): void {
    if (typeof namespace !== 'string') {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner: 'Prefixes.setNamespace', option: 'namespace', expected: 'a string', received: namespace,
      });
    }
    this.#parts.lifetime.check('set its namespace');
    this.#namespace = namespace;
  }

  /**
   * Drops every cached prefix; returns how many rows it let go of. Throws KV_PREFIX_IN_USE while sequences use some, and then drops
   * nothing; with `preempt` those sequences are released, and what they use goes once their fences have passed, which the number
   * leaves out. Until then nothing is found and nothing is stored.
   */
  reset(options: PrefixResetOptions = {}): number {
    const { preempt } = readOptions('Prefixes.reset', options, { preempt: withDefault(boolean, false) });
    this.#parts.lifetime.check('reset its prefixes');
    const { memory: { layout, slots }, leases, steps, cached } = this.#parts;
    cached.flushCommits();
    const users = Array.from({ length: slots.count }, (_, slot) => slot).filter((slot) => cached.tokens.of(slot) !== undefined);
    if (users.length > 0 && !preempt) throw createError('KV_PREFIX_IN_USE', { sequences: users.length });
    for (const slot of users) if (slots.state[slot] === slotStates.active) leases.release(slot, new GivenFence(), steps.batchOf(slot));
    for (const slot of users) if (cached.tokens.of(slot) !== undefined) cached.forgetLater(slot);
    return cached.clear() * layout.groupRows;
  }

  /** Tokens have been committed: tells routers now, if there are any, rather than at the next flush. @internal */
  tellRouters(): void {
    if (this.#parts.events !== undefined) this.#parts.cached.flushCommits();
  }

  /** For tests: what is cached. @internal */
  get index(): PrefixIndex {
    return this.#parts.cached.index;
  }

  /** @internal */
  close(): void {
    this.#parts.events?.close();
  }

  /** A request's prompt, if its prefix can be cached. @internal */
  promptOf({ tokens, items, tenant, salt, adapter, caching, priority }: ReadAcquireOptions): Prompt | undefined {
    if (tokens === undefined || tokens.length === 0 || caching === 'off' || !this.isOn || this.#isForgetting()) return undefined;
    return {
      domain: this.#domainOf(tenant, salt, adapter), text: this.#textOf(tokens, items), priority,
      canRead: caching !== 'write', canWrite: caching !== 'read',
    };
  }

  /** A request was admitted. @internal */
  admitted(prompt: Prompt | undefined, cachedBy: CachedBy): void {
    if (prompt?.canRead === true) this.#parts.statistics.request(prompt.text.length, cachedBy);
  }

  /** Whether prefixes that were reset are still used by running work, after hearing which is over. */
  #isForgetting(): boolean {
    const { cached, leases } = this.#parts;
    if (cached.isForgetting) leases.synchronize();
    return cached.isForgetting;
  }

  #prompt(owner: string, options: PrefixLookupOptions): { text: Int32Array; domain: PrefixDomain; needs: number } {
    const { tokens, items, tenant, salt, adapter, needs } = readPromptOptions(owner, options, { needs: optional(arrayOf(string)) });
    this.#parts.lifetime.check('look up a prompt');
    if (tokens === undefined) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option: 'tokens', expected: 'the tokens of the prompt', received: undefined,
      });
    }
    return {
      text: this.#textOf(tokens, items), domain: this.#domainOf(tenant, salt, adapter), needs: this.#parts.side.names.bitsOf(owner, 'needs', needs),
    };
  }

  #textOf(tokens: Int32Array, items: readonly PromptItem[]): Int32Array {
    return items.length === 0 ? tokens : this.#parts.encoder.encode(tokens, items);
  }

  #domainOf(tenant: string | undefined, salt: string | undefined, adapter: string | undefined): PrefixDomain {
    return prefixDomain({ namespace: this.#namespace, tenant, salt, adapter });
  }
}

/** Sums since the cache was opened, and the hit rate of the last requests. Made once, allocates nothing per request. */
export class PrefixStatistics {
  readonly #recentPrompt: Float64Array;
  readonly #recentCached: Float64Array;
  #recentPromptTokens = 0;
  #recentCachedTokens = 0;
  #requests = 0;
  #promptTokens = 0;
  #adoptedTokens = 0;
  #aliasedTokens = 0;
  #copiedTokens = 0;
  readonly #droppedRows: Record<DropReason, number>;
  readonly #rowsPerGroup: number;

  constructor({ recentRequests, groupRows }: { readonly recentRequests: number; readonly groupRows: number }) {
    this.#recentPrompt = new Float64Array(recentRequests);
    this.#recentCached = new Float64Array(recentRequests);
    this.#droppedRows = Object.fromEntries(dropReasons.map((reason) => [reason, 0])) as Record<DropReason, number>;
    this.#rowsPerGroup = groupRows;
  }

  request(promptTokens: number, { adoptedTokens, aliasedTokens, copiedTokens }: CachedBy): void {
    const at = this.#requests % this.#recentPrompt.length;
    const cachedTokens = adoptedTokens + aliasedTokens + copiedTokens;
    this.#recentPromptTokens += promptTokens - this.#recentPrompt[at]!;
    this.#recentCachedTokens += cachedTokens - this.#recentCached[at]!;
    this.#recentPrompt[at] = promptTokens;
    this.#recentCached[at] = cachedTokens;
    this.#requests += 1;
    this.#promptTokens += promptTokens;
    this.#adoptedTokens += adoptedTokens;
    this.#aliasedTokens += aliasedTokens;
    this.#copiedTokens += copiedTokens;
  }

  dropped(dropped: DroppedRows): void {
    for (let index = 0; index < dropped.count; index += 1) this.#droppedRows[dropped.reason(index)] += this.#rowsPerGroup;
  }

  metrics(): PrefixMetrics {
    const cachedTokens = this.#adoptedTokens + this.#aliasedTokens + this.#copiedTokens;
    return {
      requests: this.#requests, promptTokens: this.#promptTokens, cachedTokens, adoptedTokens: this.#adoptedTokens,
      aliasedTokens: this.#aliasedTokens, copiedTokens: this.#copiedTokens,
      hitRate: share(cachedTokens, this.#promptTokens),
      recentHitRate: share(this.#recentCachedTokens, this.#recentPromptTokens),
      droppedRows: { ...this.#droppedRows },
    };
  }
}

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}
