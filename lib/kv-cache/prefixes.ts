// Prefixes: the prefix cache of a KvCache, as its users see it: what is cached of a prompt and why not more, hit rates,
// reset, and the namespace that a change of weights changes. `KvCache.acquire` uses it by itself; nothing here needs to
// be called.

import type { TensorSpec } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import {
  abortSignal, arrayOf, boolean, type FieldSpec, instanceOf, integer, notConstructible, optional, type OptionsOf,
  readOptions, string, text, withDefault,
} from '../base/options.js';
import type { Admitted, Prompt } from '../cache/admission.js';
import type { Lifetime } from '../device/lifetime.js';
import { type DroppedText, type PrefixDomain, prefixDomain, TextScope } from '../prefix/domain.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { PromptEncoder, PromptItem } from '../prefix/prompt-encoder.js';
import type { Tokens } from '../prefix/prompt-tokens.js';
import { EncoderCache } from '../side/encoder-cache.js';
import { BlockKeys } from '../tiers/block-record.js';
import type { CacheTiers } from '../tiers/cache-tiers.js';
import type { Promotion } from '../tiers/promotion.js';
import { selectionField, type SelectionOptions } from '../tiers/selection/selected-text.js';
import type { HeldText } from '../tiers/transfers.js';
import { type PromptOptions, type ReadAcquireOptions, readPromptOptions } from './acquire-options.js';
import { blockTokensField } from './prefix-block-keys.js';
import type { CachedTexts, PrefixDrop, PrefixExplanation, PrefixLookup } from './cached-texts.js';
import { type PrefixDropReason, type PrefixEvents, publishDropped } from './prefix-events.js';
import type { PrefixMetrics, PrefixStatistics } from './statistics.js';

/** A prompt, and what its sequence would carry. */
export interface PrefixLookupOptions extends PromptOptions {
  /** As of `KvCache.acquire`. Default: all side tensors of the cache. */
  readonly needs?: readonly string[] | undefined;
}

/** A prompt, and how long bringing its text may take. */
export interface PromoteOptions extends PromptOptions {
  /**
   * Loads nothing now: `selected` of the result is for `acquire`, whose sequence is then given only important tokens of
   * what tiers have, while its engine computes. What it answers is not exact (docs/importance.md). A prompt with items
   * is promoted whole. Default: none.
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

/** Which text is to go: of a prompt, or of all domains that have the given parts. */
export interface PrefixDropOptions extends PromptOptions {
  /**
   * All text that begins with these tokens goes, and what of them no other text goes on from; within one domain. At
   * least one token. Default: all text of all domains that have the tenant, salt, adapter and namespace that are given,
   * of which there must be one.
   */
  readonly tokens?: Tokens | undefined;
  /** With `tokens` default the present one. */
  readonly namespace?: string | undefined;
  /**
   * Encoder caches that drop the items of these domains; with `tokens` those with the hashes of `items`. Default: none.
   */
  readonly encoders?: readonly EncoderCache[] | undefined;
}

/** Options of `Prefixes.reset`. */
export interface PrefixResetOptions {
  /** Release sequences that use cached rows, whatever they are doing. Default false: refuse while there are any. */
  readonly preempt?: boolean | undefined;
}

const dropSpec = { namespace: optional(text), encoders: optional(arrayOf(instanceOf(EncoderCache))) };

const hintSpec = { priority: withDefault(integer({ max: 255 }), 0), signal: optional(abortSignal) };
const promoteSpec = { deadlineMs: optional(integer()), selection: selectionField, ...hintSpec };

/**
 * The prompt with the options beside it. Throws KV_INVALID_OPTION, and KV_UNKNOWN_OPTION for what is none of `spec`.
 */
function joined<P extends PromptOptions, S extends FieldSpec>(
  owner: string, prompt: P, beside: object | undefined, spec: S,
): P {
  if (beside === undefined) return prompt;
  readOptions(owner, beside, spec);
  return { ...prompt, ...beside };
}

/** What `Prefixes` are made of besides. @internal */
export interface PrefixesParts {
  readonly texts: CachedTexts;
  readonly statistics: PrefixStatistics;
  /** Undefined unless routers are told. */
  readonly events: PrefixEvents | undefined;
  readonly isOn: boolean;
  readonly cache: object;
}

/** The prefix cache of a `KvCache`: what is cached of a prompt, why not more, hit rates, reset. */
export class Prefixes {
  /** False with `prefixCache: 'off'`. */
  readonly isOn: boolean;
  /** Whether routers hear of each commit. @internal */
  readonly hasBlockEvents: boolean;
  readonly #prompts: Prompts;
  readonly #texts: CachedTexts;
  readonly #statistics: PrefixStatistics;
  readonly #events: PrefixEvents | undefined;
  /** Whose it is, for events. */
  readonly #cache: object;

  /** @internal Use `cache.prefixes`. */
  constructor(prompts: Prompts, parts: PrefixesParts) {
    if (!Prompts.isInstance(prompts)) throw notConstructible('Prefixes', 'cache.prefixes');
    const { texts, statistics, events, isOn, cache } = parts;
    this.#prompts = prompts;
    this.#texts = texts;
    this.#statistics = statistics;
    this.#events = events;
    this.#cache = cache;
    this.isOn = isOn;
    this.hasBlockEvents = events !== undefined;
  }

  /** What `acquire` would find of a prompt. Changes nothing, not even what is evicted next. */
  lookup(options: PrefixLookupOptions): PrefixLookup {
    const { text, domain, needs } = this.#lookupPrompt('Prefixes.lookup', options);
    return this.#texts.find(domain, text, needs);
  }

  /** The tiers below the device: when they are open, what they have and did. Undefined without `prefixCache.tiers`. */
  get tiers(): CacheTiers | undefined {
    return this.#texts.tiers;
  }

  /**
   * Loads a prompt's text from tiers to the device, as far as that is faster than computing it, without a slot;
   * `acquire` then finds it. Resolves with the loaded tokens by tier, and the reason why they are no more; at once
   * where there are no tiers. Rejects with KV_INVALID_OPTION, KV_CLOSED, and the driver's error, not where a tier
   * fails.
   *
   * @param options May also be given with the prompt, in one object; these take precedence.
   */
  async promote(prompt: PromoteOptions, options?: Omit<PromoteOptions, keyof PromptOptions>): Promise<Promotion> {
    const { text, domain, given } =
      this.#prompts.read('Prefixes.promote', joined('Prefixes.promote', prompt, options, promoteSpec), promoteSpec);
    return this.#texts.bring(domain, text, { ...given, isHint: false });
  }

  /**
   * A hint that a prompt is likely to come soon, such as a conversation's next turn: brings its text to the device
   * ahead of the request. Requests come first: hints load one at a time, beside what requests wait for, and end where a
   * request wants the memory. Options and rejections are as of `promote`.
   */
  async prefetch(prompt: PrefetchOptions, options?: Omit<PrefetchOptions, keyof PromptOptions>): Promise<Promotion> {
    const { text, domain, given } =
      this.#prompts.read('Prefixes.prefetch', joined('Prefixes.prefetch', prompt, options, hintSpec), hintSpec);
    return this.#texts.bring(domain, text, { ...given, deadlineMs: undefined, isHint: true });
  }

  /** Keeps what the device has of a prompt for a request that waits for a slot; undefined without tiers. @internal */
  hold(prompt: PromptOptions): HeldText | undefined {
    const { text, domain } = this.#prompts.read('Prefixes.hold', prompt, {});
    return this.#texts.isForgetting() ? undefined : this.tiers?.hold(domain, text);
  }

  /** Why no more of a prompt is cached than is: for logs and an operator's questions. */
  explain(options: PrefixLookupOptions): PrefixExplanation {
    const { text, domain, needs } = this.#lookupPrompt('Prefixes.explain', options);
    return this.#texts.explain(domain, text, needs);
  }

  /**
   * Keys for stores outside this process: one per whole block of the prompt, 64 hexadecimal digits, collision-resistant
   * over the model's shape, the domain and all tokens up to the block's end. Nothing is looked up and nothing kept.
   */
  externalKeys(options: PromptOptions, blockTokens: number): string[] {
    blockTokensField(blockTokens, { owner: 'Prefixes.externalKeys', option: 'blockTokens' });
    return this.#prompts.blockKeys(this.#prompts.read('Prefixes.externalKeys', options, {}), blockTokens);
  }

  /**
   * For routers that come late: publishes `virtual-kv:prefix-cleared`, then all blocks that are cached. Nothing without
   * `events`.
   */
  publishAll(): void {
    this.#prompts.checkOpen('publish its prefixes');
    this.#texts.flushCommits();
    this.#events?.publishAll();
  }

  /** Sums and hit rates since the cache was opened. */
  get metrics(): PrefixMetrics {
    this.#prompts.checkOpen('read its prefix metrics');
    return this.#statistics.metrics();
  }

  /**
   * Drops text everywhere: on the device with its kept values and side tensors, in every tier, on its way between them,
   * and in the queue of text to be stored. Sequences that are computing such text keep their rows, and are not cached
   * from here on. From the call on `acquire`, `lookup` and `promote` find nothing of it. Once it resolves, no tier has
   * it, except those in `unreachedTiers`, and blocks in shared stores that this cache does not know of
   * (docs/prefix-caching.md). Text that is computed again after the call is cached.
   *
   * Rejects with KV_UNKNOWN_OPTION, KV_INVALID_OPTION, KV_CLOSED, and with the driver's error when all else is done.
   */
  async drop(options: PrefixDropOptions): Promise<PrefixDrop> {
    const given = readPromptOptions('Prefixes.drop', options, dropSpec);
    this.#prompts.checkOpen('drop text');
    const scope = this.#prompts.scopeOf('Prefixes.drop', given);
    const hashes = scope.text === undefined ? undefined : given.items.map(({ hash }) => hash);
    const { tenant, salt, adapter, namespace, encoders = [] } = given;
    for (const encoder of encoders) encoder.drop({ tenant, salt, adapter, namespace }, hashes);
    return this.#drop(scope, 'asked');
  }

  /**
   * Logits of a request were not numbers: drops what it has computed, which is what is behind the first `foundTokens`
   * tokens of its text, in the background. @internal
   */
  dropComputed(prompt: KnownPrompt, foundTokens: number): void {
    const { domain, text } = this.#prompts.textOf(prompt);
    this.#distrust({ domain, text, from: foundTokens, through: foundTokens + 1 });
  }

  /**
   * Computed without what it had found, they are numbers: drops that, and what has a row in common with it, in the
   * background. @internal
   */
  dropFound(prompt: KnownPrompt, foundTokens: number): void {
    const { domain, text } = this.#prompts.textOf(prompt);
    const found = text.subarray(0, foundTokens);
    this.#distrust({
      domain, text: found, from: 0, through: Math.min(foundTokens, Math.max(1, this.#texts.tokensPerRow)),
    });
  }

  #distrust(text: DroppedText): void {
    if (!this.isOn || text.through > text.text.length) return; // nothing is cached, or nothing was computed
    this.#drop(TextScope.ofText(text), 'not-numbers').catch((error: unknown) => { this.#texts.report(error); });
  }

  async #drop(scope: TextScope, reason: PrefixDropReason): Promise<PrefixDrop> {
    this.#statistics.drop(reason);
    const dropped = await this.#texts.drop(scope);
    publishDropped({ cache: this.#cache, reason, ...dropped });
    return dropped;
  }

  /** What `setNamespace` set last; empty at first. */
  get namespace(): string {
    return this.#prompts.namespace;
  }

  /**
   * For new weights: from here on requests find only text that is stored under this name. Running sequences cache
   * nothing more. Text of other names ages out, or `drop` and `reset` drop it.
   */
  setNamespace(namespace: string): void {
    if (typeof namespace !== 'string') {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner: 'Prefixes.setNamespace', option: 'namespace', expected: 'a string', received: namespace,
      });
    }
    this.#prompts.checkOpen('set its namespace');
    if (namespace === this.#prompts.namespace) return;
    this.#texts.stopStoring(); // what they compute may be of either
    this.#prompts.namespace = namespace;
    this.#texts.tiers?.setNamespace(namespace);
  }

  /**
   * Drops every cached prefix; returns the number of dropped rows. Throws KV_PREFIX_IN_USE while sequences use some,
   * and then drops nothing. With `preempt` those sequences are released: their rows go once their fences have passed,
   * and do not count in the number; until then nothing is found or stored.
   */
  reset(options: PrefixResetOptions = {}): number {
    const { preempt } = readOptions('Prefixes.reset', options, { preempt: withDefault(boolean, false) });
    this.#prompts.checkOpen('reset its prefixes');
    return this.#texts.reset(preempt);
  }

  /** Tokens have been committed: tells routers now rather than at the next flush. @internal */
  publishBlockEvents(): void {
    this.#texts.flushCommits();
  }

  /** For tests: what is cached. @internal */
  get index(): PrefixIndex {
    return this.#texts.index;
  }

  /** @internal */
  close(): void {
    this.#events?.close();
  }

  /** A request's prompt, if its prefix can be cached. @internal */
  promptOf(request: ReadAcquireOptions): Prompt | undefined {
    return this.isOn && !this.#texts.isForgetting() ? this.#prompts.of(request) : undefined;
  }

  /**
   * A request was admitted. Returns the tokens of its prompt behind those found that tiers have, if it can use them.
   * @internal
   */
  admitted(prompt: Prompt | undefined, { cachedBy, cachedTokens }: Admitted, needs: number): number {
    if (prompt?.canRead !== true) return 0;
    this.#statistics.request(prompt.text.length, cachedBy);
    return needs !== 0 ? 0 : this.tiers?.demotedTokens(prompt.domain, prompt.text, cachedTokens) ?? 0;
  }

  #lookupPrompt(
    owner: string, options: PrefixLookupOptions,
  ): { text: Int32Array; domain: PrefixDomain; needs: number } {
    const { text, domain, given } = this.#prompts.read(owner, options, { needs: optional(arrayOf(string)) });
    const { side } = this.#texts;
    return {
      text, domain, needs: given.needs === undefined ? side.everything : side.names.bitsOf(owner, 'needs', given.needs),
    };
  }
}

// Prompts: requests' prompts as the prefix cache knows them: tokens with items in them as one text, and the domain that
// tenant, salt, adapter and namespace make of it.

/** A prompt, and what else its options say. */
export interface ReadPrompt<S extends FieldSpec> {
  readonly text: Int32Array;
  readonly domain: PrefixDomain;
  readonly given: OptionsOf<S>;
}

/** A prompt that was read, and its domain. */
export interface KnownPrompt extends Pick<PromptOptions, 'tenant' | 'salt' | 'adapter'> {
  readonly tokens: Int32Array;
  readonly items: readonly PromptItem[];
  readonly namespace: string;
}

/** What a drop was given. */
export interface GivenScope extends Omit<KnownPrompt, 'tokens' | 'namespace'> {
  readonly tokens: Int32Array | undefined;
  readonly namespace: string | undefined;
}

export class Prompts {
  /** What requests' domains begin with. */
  namespace = '';
  readonly #lifetime: Lifetime;
  readonly #encoder: PromptEncoder;
  readonly #tensors: readonly TensorSpec[];

  /** @param tensors Of the model. */
  constructor(lifetime: Lifetime, encoder: PromptEncoder, tensors: readonly TensorSpec[]) {
    this.#lifetime = lifetime;
    this.#encoder = encoder;
    this.#tensors = tensors;
  }

  /** Whether it is a cache's, and no object that only has the prototype. */
  static isInstance(value: unknown): value is Prompts {
    return typeof value === 'object' && value !== null && #encoder in value;
  }

  /**
   * Throws KV_CLOSED once the cache is closed, KV_POLICY_REENTRY in a policy of its own, and the RangeError of a full
   * stack.
   */
  checkOpen(operation: string): void {
    this.#lifetime.enter(operation);
  }

  /** Reads a prompt and the options `more`. Throws KV_INVALID_OPTION, KV_UNKNOWN_OPTION and as `checkOpen`. */
  read<S extends FieldSpec>(owner: string, options: PromptOptions, more: S): ReadPrompt<S> {
    const given = readPromptOptions(owner, options, more);
    const { tokens, items, tenant, salt, adapter } = given;
    this.checkOpen('look up a prompt');
    if (tokens === undefined) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option: 'tokens', expected: 'the tokens of the prompt', received: undefined,
      });
    }
    return { text: this.#textOf(tokens, items), domain: this.#domainOf(tenant, salt, adapter), given };
  }

  /**
   * Which text is to be dropped: of a prompt, or of all domains that have the given parts. Throws KV_INVALID_OPTION
   * where neither is given.
   */
  scopeOf(owner: string, { tokens, items, tenant, salt, adapter, namespace }: GivenScope): TextScope {
    if (tokens !== undefined && tokens.length > 0) {
      const domain = prefixDomain({ namespace: namespace ?? this.namespace, tenant, salt, adapter });
      return TextScope.ofText({ domain, text: this.#textOf(tokens, items), from: 0, through: tokens.length });
    }
    if (tokens !== undefined || [tenant, salt, adapter, namespace].every((part) => part === undefined)) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option: 'tokens', expected:
          'one token or more, or a tenant, a salt, an adapter or a namespace without `tokens`', received: tokens,
        hint: '`reset` drops everything.',
      });
    }
    return TextScope.ofDomains({ namespace, tenant, salt, adapter });
  }

  /** The text of a prompt that a scheduler has read, in a domain of this namespace. */
  textOf({ tokens, items, tenant, salt, adapter, namespace }: KnownPrompt): Pick<Prompt, 'domain' | 'text'> {
    return { domain: prefixDomain({ namespace, tenant, salt, adapter }), text: this.#textOf(tokens, items) };
  }

  /** That of a request, if its prefix can be cached. */
  of({ tokens, items, tenant, salt, adapter, caching, priority }: ReadAcquireOptions): Prompt | undefined {
    if (tokens === undefined || tokens.length === 0 || caching === 'off') return undefined;
    return {
      domain: this.#domainOf(tenant, salt, adapter), text: this.#textOf(tokens, items), priority,
      canRead: caching !== 'write', canWrite: caching !== 'read',
    };
  }

  /** Keys of a prompt's whole blocks in stores outside the process. */
  blockKeys({ domain, text }: Pick<Prompt, 'domain' | 'text'>, blockTokens: number): string[] {
    return new BlockKeys(this.#tensors, blockTokens).ofText(domain, text, this.#encoder);
  }

  #textOf(tokens: Int32Array, items: readonly PromptItem[]): Int32Array {
    return items.length === 0 ? tokens : this.#encoder.encode(tokens, items);
  }

  #domainOf(tenant: string | undefined, salt: string | undefined, adapter: string | undefined): PrefixDomain {
    return prefixDomain({ namespace: this.namespace, tenant, salt, adapter });
  }
}
