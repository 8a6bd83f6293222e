// Prefixes: the prefix cache of a KvCache, as its users see it: what is cached of a prompt and why not more, hit rates, reset,
// and the namespace that a change of weights changes. `KvCache.acquire` uses it by itself; nothing here needs to be called.

import { createError } from '../base/errors.js';
import {
  abortSignal, arrayOf, boolean, integer, notConstructible, optional, readOptions, string, withDefault, type FieldSpec, type OptionsOf,
} from '../base/options.js';
import { prefixDomain, type PrefixDomain } from '../prefix/domain.js';
import type { PrefixExplanation as TextExplanation } from '../prefix/prefix-explanation.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { PromptEncoder, PromptItem } from '../prefix/prompt-encoder.js';
import type { CoverEnd } from '../side/side-cover.js';
import type { SideTensors } from '../side/side-tensors.js';
import { readPromptOptions, type PromptOptions, type ReadAcquireOptions } from './acquire-options.js';
import type { CacheTiers } from './cache-tiers.js';
import type { CachedRows } from './cached-rows.js';
import { BlockKeys } from '../tiers/block-keys.js';
import type { Lifetime } from './lifetime.js';
import { blockTokensField } from './prefix-block-keys.js';
import { selectionField, type ReadSelection, type SelectionOptions } from '../importance/selection-options.js';
import type { PrefixEvents } from './prefix-events.js';
import type { PrefixMetrics, PrefixStatistics } from './prefix-statistics.js';
import type { Admitted, Prompt } from './admission-request.js';
import type { Promotion, PromotionRequest } from './promotion.js';
import type { SlotLeases } from './slot-leases.js';
import type { SlotMemory } from './slot-memory.js';
import { holdsSlots, slotStates } from './slots.js';
import type { TextPlace, TiersExplanation } from './text-places.js';

/** A prompt, and what its sequence would carry. */
export interface PrefixLookupOptions extends PromptOptions {
  /** As of `KvCache.acquire`. Default: all side tensors of the cache. */
  readonly needs?: readonly string[] | undefined;
}

/**
 * Why no more of a prompt is cached. `side-evicted`, `side-never-written`: K and V are, up to `keyValueTokens`, but `sideTensor` is not:
 * its end was evicted, or the sequences that computed the text did not write it.
 */
export type PrefixExplanation = (TextExplanation | {
  readonly tokens: number;
  readonly reason: CoverEnd;
  readonly sideTensor: string;
  readonly keyValueTokens: number;
}) & {
  /** Where the text lies below the device, and why no more of it; undefined without tiers. */
  readonly tiers?: TiersExplanation | undefined;
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
  /** Tokens behind `cachedTokens` that `promote` could bring from tiers, as far as known without asking them. */
  readonly demotedTokens: number;
  /** Where the prompt lies, stretch by stretch: on the device, in tiers, in several of them. What lies nowhere is left out. */
  readonly stretches: readonly TextPlace[];
}

/** A prompt, and how long bringing its text may take. */
export interface PromoteOptions extends PromptOptions {
  /**
   * Loads nothing now: `selected` of the result is for `acquire`, whose sequence is then given only important tokens of what tiers have, while its
   * engine computes. What it answers is not exact (docs/importance.md). A prompt with items is promoted whole. Default: none.
   */
  readonly selection?: SelectionOptions | undefined;
  /** Milliseconds after which it ends, 0 or more; what has come by then stays. Default: none. */
  readonly deadlineMs?: number | undefined;
  /** As of `KvCache.acquire`, for what comes. Default 0. */
  readonly priority?: number | undefined;
  /** Ends it early, for a request that was cancelled. */
  readonly signal?: AbortSignal | undefined;
}

/** A prompt that is likely to come. */
export interface PrefetchOptions extends PromptOptions {
  /** As of `KvCache.acquire`, for what comes. Default 0. */
  readonly priority?: number | undefined;
  /** Ends it, where the prompt will not come after all. */
  readonly signal?: AbortSignal | undefined;
}

/** Options of `Prefixes.reset`. */
export interface PrefixResetOptions {
  /** Release sequences that use cached rows, whatever they are doing. Default false: refuse while there are any. */
  readonly preempt?: boolean | undefined;
}

/** The parts of a cache that keep its prefixes. @internal */
export interface PrefixParts {
  readonly memory: SlotMemory;
  readonly lifetime: Lifetime;
  readonly leases: SlotLeases;
  readonly cached: CachedRows;
  readonly side: SideTensors;
  readonly encoder: PromptEncoder;
  readonly statistics: PrefixStatistics;
  /** Undefined unless routers are told. */
  readonly events: PrefixEvents | undefined;
  /** False with `prefixCache: 'off'`. */
  readonly isOn: boolean;
  readonly tiers: CacheTiers | undefined;
}

const hintSpec = { priority: withDefault(integer({ max: 255 }), 0), signal: optional(abortSignal) };

/** The prefix cache of a `KvCache`: what is cached of a prompt, why not more, hit rates, reset. */
export class Prefixes {
  /** Whether routers hear of each commit. @internal */
  readonly hasBlockEvents: boolean;
  readonly #parts: PrefixParts;
  #namespace = '';

  /** @internal Use `cache.prefixes`. */
  constructor(parts: PrefixParts) {
    if (!holdsSlots(parts)) throw notConstructible('Prefixes', 'cache.prefixes');
    this.#parts = parts;
    this.hasBlockEvents = parts.events !== undefined;
  }

  /** False with `prefixCache: 'off'`. */
  get isOn(): boolean {
    return this.#parts.isOn;
  }

  /** What `acquire` would find of a prompt. Changes nothing, not even what is evicted next. */
  lookup(options: PrefixLookupOptions): PrefixLookup {
    const { text, domain, needs } = this.#lookupPrompt('Prefixes.lookup', options);
    const { cached, cached: { index }, side } = this.#parts;
    cached.flushCommits();
    if (cached.isForgetting) return { cachedTokens: 0, pendingTokens: 0, demotedTokens: 0, stretches: [] };
    const hit = index.match(domain, text);
    const covered = needs === 0 ? hit.tokens : side.covered(hit.node, hit.tokens, needs);
    if (covered < hit.tokens) hit.limitTo(covered);
    const { tokens, pendingTokens } = hit;
    const { tiers } = this.#parts;
    const onDevice = tokens === 0 ? [] : [{ from: 0, to: tokens, places: ['device'] }];
    return {
      cachedTokens: tokens, pendingTokens: Math.max(tokens, pendingTokens), demotedTokens: tiers?.demotedTokens(domain, text, tokens) ?? 0,
      stretches: tiers?.stretches(domain, text, tokens) ?? onDevice,
    };
  }

  /** The tiers below the device: when they are open, what they have and did. Undefined without `prefixCache.tiers`. */
  get tiers(): CacheTiers | undefined {
    return this.#parts.tiers;
  }

  /**
   * Brings as much of a prompt as tiers have, and as is worth it, back to the device, without a slot; `acquire` then finds it. Resolves
   * with what came from where and why no more; at once where there are no tiers. Rejects with KV_INVALID_OPTION, KV_CLOSED, and
   * what the driver throws, not for what a tier does.
   */
  async promote(options: PromoteOptions): Promise<Promotion> {
    const { text, domain, given } = this.#prompt('Prefixes.promote', options, { deadlineMs: optional(integer()), selection: selectionField, ...hintSpec });
    return this.#bring(domain, text, { ...given, isHint: false });
  }

  /**
   * A hint that a prompt is likely to come soon, such as a conversation's next turn: brings its text to the device ahead of the
   * request. Requests come first: hints load one at a time, beside what requests wait for, and end where a request wants the
   * memory. Rejects as `promote`.
   */
  async prefetch(options: PrefetchOptions): Promise<Promotion> {
    const { text, domain, given } = this.#prompt('Prefixes.prefetch', options, hintSpec);
    return this.#bring(domain, text, { ...given, deadlineMs: undefined, isHint: true });
  }

  /** Why no more of a prompt is cached than is: for logs and an operator's questions. */
  explain(options: PrefixLookupOptions): PrefixExplanation {
    const { text, domain, needs } = this.#lookupPrompt('Prefixes.explain', options);
    const { cached: { index }, cached, side } = this.#parts;
    cached.flushCommits();
    const { node, tokens: keyValueTokens } = index.match(domain, text, text.length);
    const lacking = side.lacking(node, keyValueTokens, needs);
    const tiers = this.#parts.tiers?.explain(domain, text, keyValueTokens);
    const below = tiers === undefined ? {} : { tiers };
    if (lacking === undefined) return { ...index.explain(domain, text), ...below };
    return { tokens: lacking.tokens, reason: lacking.reason, sideTensor: lacking.tensor, keyValueTokens, ...below };
  }

  /**
   * Keys for stores outside this process: one per whole block of the prompt, 64 hexadecimal digits, collision-resistant over the
   * model's shape, the domain and all tokens up to the block's end. Nothing is looked up and nothing kept.
   */
  externalKeys(options: PromptOptions, blockTokens: number): string[] {
    blockTokensField(blockTokens, { owner: 'Prefixes.externalKeys', option: 'blockTokens' });
    const { text, domain } = this.#prompt('Prefixes.externalKeys', options, {});
    const { memory, encoder } = this.#parts;
    return new BlockKeys(memory.layout.tensors, blockTokens).ofText(domain, text, encoder);
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
    this.#parts.tiers?.setNamespace(namespace);
  }

  /**
   * Drops every cached prefix; returns how many rows it let go of. Throws KV_PREFIX_IN_USE while sequences use some, and then drops
   * nothing; with `preempt` those sequences are released, and what they use goes once their fences have passed, which the number
   * leaves out. Until then nothing is found and nothing is stored.
   */
  reset(options: PrefixResetOptions = {}): number {
    const { preempt } = readOptions('Prefixes.reset', options, { preempt: withDefault(boolean, false) });
    this.#parts.lifetime.check('reset its prefixes');
    const { memory: { layout, slots }, leases, cached, tiers } = this.#parts;
    tiers?.interrupt();
    leases.synchronize();
    const users = Array.from({ length: slots.count }, (_, slot) => slot).filter((slot) => cached.tokens.of(slot) !== undefined);
    if (users.length > 0 && !preempt) throw createError('KV_PREFIX_IN_USE', { sequences: users.length });
    tiers?.clear();
    for (const slot of users) {
      if (slots.state[slot] !== slotStates.active) continue;
      leases.release(slot);
      tiers?.selections.end(slot);
    }
    for (const slot of users) if (cached.tokens.of(slot) !== undefined) cached.forgetLater(slot);
    return cached.clear() * layout.groupRows;
  }

  /** Tokens have been committed: tells routers now rather than at the next flush. @internal */
  publishBlockEvents(): void {
    this.#parts.cached.flushCommits();
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

  /** A request was admitted. Returns the tokens of its prompt behind those found that tiers have. @internal */
  admitted(prompt: Prompt | undefined, { cachedBy, cachedTokens }: Admitted): number {
    if (prompt?.canRead !== true) return 0;
    const { statistics, tiers } = this.#parts;
    statistics.request(prompt.text.length, cachedBy);
    return tiers?.demotedTokens(prompt.domain, prompt.text, cachedTokens) ?? 0;
  }

  /** Whether prefixes that were reset are still used by running work, after hearing which is over. */
  #isForgetting(): boolean {
    const { cached, leases } = this.#parts;
    if (!cached.isForgetting) return false;
    leases.synchronize();
    return cached.isForgetting;
  }

  async #bring(domain: PrefixDomain, text: Int32Array, how: Pick<PromotionRequest, 'deadlineMs' | 'signal' | 'priority' | 'isHint'> & { readonly selection?: ReadSelection | undefined }): Promise<Promotion> {
    const { tiers, cached } = this.#parts;
    const { selection, signal } = how;
    if (tiers !== undefined && !this.#isForgetting()) {
      const isText = text.every((token) => token >= 0);
      return selection !== undefined && isText ? tiers.selections.find({ domain, text, signal, selection }) : tiers.promote({ domain, text, ...how });
    }
    cached.flushCommits();
    const cachedTokens = cached.index.match(domain, text, text.length).tokens;
    return { cachedTokens, promotedTokens: 0, promotedFrom: {}, end: 'complete', estimate: undefined, milliseconds: 0 };
  }

  #prompt<S extends FieldSpec>(owner: string, options: PromptOptions, more: S): { text: Int32Array; domain: PrefixDomain; given: OptionsOf<S> } {
    const given = readPromptOptions(owner, options, more);
    const { tokens, items, tenant, salt, adapter } = given;
    this.#parts.lifetime.check('look up a prompt');
    if (tokens === undefined) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option: 'tokens', expected: 'the tokens of the prompt', received: undefined,
      });
    }
    return { text: this.#textOf(tokens, items), domain: this.#domainOf(tenant, salt, adapter), given };
  }

  #lookupPrompt(owner: string, options: PrefixLookupOptions): { text: Int32Array; domain: PrefixDomain; needs: number } {
    const { text, domain, given } = this.#prompt(owner, options, { needs: optional(arrayOf(string)) });
    const { side } = this.#parts;
    return { text, domain, needs: given.needs === undefined ? side.everything : side.names.bitsOf(owner, 'needs', given.needs) };
  }

  #textOf(tokens: Int32Array, items: readonly PromptItem[]): Int32Array {
    return items.length === 0 ? tokens : this.#parts.encoder.encode(tokens, items);
  }

  #domainOf(tenant: string | undefined, salt: string | undefined, adapter: string | undefined): PrefixDomain {
    return prefixDomain({ namespace: this.#namespace, tenant, salt, adapter });
  }
}
