// Prefixes: the prefix cache of a KvCache, as its users see it: what is cached of a prompt and why not more, hit rates, reset,
// and the namespace that a change of weights changes. `KvCache.acquire` uses it by itself; nothing here needs to be called.

import { randomInt } from 'node:crypto';

import { createError } from '../base/errors.js';
import { boolean, notConstructible, readOptions, withDefault } from '../base/options.js';
import { prefixDomain, type PrefixDomain } from '../prefix/domain.js';
import { PrefixIndex } from '../prefix/prefix-index.js';
import type { PrefixExplanation } from '../prefix/prefix-explanation.js';
import { PromptEncoder, type PromptItem } from '../prefix/prompt-encoder.js';
import { StoredBlocks } from '../prefix/router/stored-blocks.js';
import { rowArithmetic, type RowArithmetic } from '../layout/row-arithmetic.js';
import { readPromptOptions, type PromptOptions, type ReadAcquireOptions } from './acquire-options.js';
import { externalKeys } from './external-key.js';
import { IdlePrefixes, type IdlePrefixesParts } from './idle-prefixes.js';
import type { LateErrors } from './late-errors.js';
import type { Layout } from '../layout/layout.js';
import { blockTokensField } from './prefix-block-keys.js';
import { PrefixEvents } from './prefix-events.js';
import type { ReadPrefixCacheOptions } from './prefix-options.js';
import { PrefixSharing } from './prefix-sharing.js';
import { PrefixStatistics, type PrefixMetrics } from './prefix-statistics.js';
import type { CachedBy, Prompt } from './prompt.js';
import { SequenceTexts } from './sequence-texts.js';
import { SharedRows } from './shared-rows.js';
import type { SlotFences } from './slot-fences.js';
import { holdsTable, slotStates } from './slot-table.js';

/** What `Prefixes.lookup` finds. */
export interface PrefixLookup {
  /** Tokens of the prompt that `acquire` would find now. One is left to compute, unless a value is kept for the whole prompt. */
  readonly cachedTokens: number;
  /**
   * Tokens that it will find once running sequences have computed what they are at: waiting for them may be cheaper than
   * computing the same twice. Equal to `cachedTokens` when nobody is.
   */
  readonly pendingTokens: number;
}

/** Options of `Prefixes.reset`. */
export interface PrefixResetOptions {
  /** Release sequences that use cached rows, whatever they are doing. Default false: refuse while there are any. */
  readonly preempt?: boolean | undefined;
}

export interface PrefixesParts extends Omit<IdlePrefixesParts, 'index' | 'shared' | 'texts' | 'onDropped'> {
  /** The cache, for events. */
  readonly cache: object;
  readonly options: ReadPrefixCacheOptions | 'off';
  readonly checkOpen: (operation: string) => void;
  /** Releases the sequence in a slot. */
  readonly release: (slot: number) => void;
  readonly fences: SlotFences;
  readonly late: LateErrors;
}

/** The prefix cache of a `KvCache`: what is cached of a prompt, why not more, hit rates, reset. */
export class Prefixes {
  /** @internal */
  readonly index: PrefixIndex;
  /** @internal */
  readonly shared: SharedRows;
  /** @internal */
  readonly texts: SequenceTexts;
  /** @internal */
  readonly groups: RowArithmetic;
  /** @internal */
  readonly idlePrefixes: IdlePrefixes;
  /** @internal */
  readonly sharing: PrefixSharing;
  readonly #parts: PrefixesParts;
  readonly #statistics: PrefixStatistics;
  readonly #events: PrefixEvents | undefined;
  readonly #names: PromptEncoder;
  #namespace = '';

  /** @internal Use `cache.prefixes`. */
  constructor(parts: PrefixesParts) {
    if (!holdsTable(parts)) throw notConstructible('Prefixes', 'cache.prefixes');
    const { options, layout, table } = parts;
    const { groupRows } = layout;
    this.#parts = parts;
    this.groups = rowArithmetic({ tokenBytes: layout.maxTokenBytes, pageBytes: layout.pageBytes * groupRows });
    const events = options === 'off' || options.events === 'off' ? undefined : options.events;
    this.#events = events === undefined ? undefined : new PrefixEvents(parts.cache, events.label);
    this.index = new PrefixIndex({ arithmetic: this.groups, ...indexOptions(options, layout) });
    this.#names = new PromptEncoder({ index: this.index });
    if (events !== undefined) {
      this.#events!.connect(new StoredBlocks(this.index, { ...events, names: this.#names, onChange: this.#events!.schedule }));
    }
    this.shared = new SharedRows({ native: parts.native, layout, table, isHeld: (id) => this.index.isHolding(id) });
    this.texts = new SequenceTexts(table.count);
    this.#statistics = new PrefixStatistics({ recentRequests: options === 'off' ? 1 : options.recentRequests, groupRows });
    this.idlePrefixes = new IdlePrefixes({
      ...parts, index: this.index, shared: this.shared, texts: this.texts,
      onDropped: (dropped) => this.#statistics.dropped(dropped),
    });
    this.sharing = new PrefixSharing({
      ...parts, index: this.index, shared: this.shared, texts: this.texts, groups: this.groups, idlePrefixes: this.idlePrefixes,
    });
  }

  /** False with `prefixCache: 'off'`. */
  get isOn(): boolean {
    return this.#parts.options !== 'off';
  }

  /** What `acquire` would find of a prompt. Changes nothing, not even what is evicted next. */
  lookup(options: PromptOptions): PrefixLookup {
    const { text, domain } = this.#prompt('Prefixes.lookup', options);
    this.sharing.tell();
    if (this.sharing.isForgetting) return { cachedTokens: 0, pendingTokens: 0 };
    const { tokens, pendingTokens } = this.index.match(domain, text);
    return { cachedTokens: tokens, pendingTokens: Math.max(tokens, pendingTokens) };
  }

  /** Why no more of a prompt is cached than is: for logs and an operator's questions. */
  explain(options: PromptOptions): PrefixExplanation {
    const { text, domain } = this.#prompt('Prefixes.explain', options);
    this.sharing.tell();
    return this.index.explain(domain, text);
  }

  /**
   * Keys for stores outside this process: one per whole block of the prompt, 64 hexadecimal digits, collision-resistant over the
   * model's shape, the domain and all tokens up to the block's end. Nothing is looked up and nothing kept.
   */
  externalKeys(options: PromptOptions, blockTokens: number): string[] {
    blockTokensField(blockTokens, { owner: 'Prefixes.externalKeys', option: 'blockTokens' });
    const { text, domain } = this.#prompt('Prefixes.externalKeys', options);
    return externalKeys({ tensors: this.#parts.layout.tensors, domain, text, blockTokens, names: this.#names });
  }

  /** For routers that come late: publishes `virtual-kv:prefix-cleared`, then all blocks that are cached. Nothing without `events`. */
  publishAll(): void {
    this.#parts.checkOpen('publish its prefixes');
    this.sharing.tell();
    this.#events?.publishAll();
  }

  /** Sums and hit rates since the cache was opened. */
  get metrics(): PrefixMetrics {
    this.#parts.checkOpen('read its prefix metrics');
    return this.#statistics.metrics();
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
    this.#parts.checkOpen('set its namespace');
    this.#namespace = namespace;
  }

  /**
   * Drops every cached prefix; returns how many rows it let go of. Throws KV_PREFIX_IN_USE while sequences use some, and then drops
   * nothing; with `preempt` those sequences are released, and what they use goes once their fences have passed, which the number
   * leaves out. Until then nothing is found and nothing is stored.
   */
  reset(options: PrefixResetOptions = {}): number {
    const { preempt } = readOptions('Prefixes.reset', options, { preempt: withDefault(boolean, false) });
    this.#parts.checkOpen('reset its prefixes');
    const { table } = this.#parts;
    this.sharing.tell();
    const users = Array.from({ length: table.count }, (_, slot) => slot).filter((slot) => this.texts.of(slot) !== undefined);
    if (users.length > 0 && !preempt) throw createError('KV_PREFIX_IN_USE', { sequences: users.length });
    for (const slot of users) if (table.state[slot] === slotStates.active) this.#parts.release(slot);
    for (const slot of users) if (this.texts.of(slot) !== undefined) this.sharing.forgetLater(slot);
    const rows = this.index.clear() * this.#parts.layout.groupRows;
    this.idlePrefixes.settle();
    return rows;
  }

  /** Tokens have been committed: tells routers now rather than when somebody next looks. @internal */
  tellRouters(): void {
    if (this.#events !== undefined) this.sharing.tell();
  }

  /** @internal */
  close(): void {
    this.#events?.close();
  }

  /** A request's prompt, if its prefix can be cached. @internal */
  promptOf({ tokens, items, tenant, salt, adapter, caching, priority }: ReadAcquireOptions): Prompt | undefined {
    if (tokens === undefined || tokens.length === 0 || caching === 'off' || !this.isOn || this.sharing.isForgetting) return undefined;
    return {
      domain: this.#domainOf(tenant, salt, adapter), text: this.#textOf(tokens, items), priority,
      canRead: caching !== 'write', canWrite: caching !== 'read',
    };
  }

  /** A request was admitted. @internal */
  admitted(prompt: Prompt | undefined, cachedBy: CachedBy): void {
    if (prompt?.canRead === true) this.#statistics.request(prompt.text.length, cachedBy);
  }

  #prompt(owner: string, options: PromptOptions): { text: Int32Array; domain: PrefixDomain } {
    const { tokens, items, tenant, salt, adapter } = readPromptOptions(owner, options, {});
    this.#parts.checkOpen('look up a prompt');
    if (tokens === undefined) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', owner, option: 'tokens', expected: 'the tokens of the prompt', received: undefined,
      });
    }
    return { text: this.#textOf(tokens, items), domain: this.#domainOf(tenant, salt, adapter) };
  }

  #textOf(tokens: Int32Array, items: readonly PromptItem[]): Int32Array {
    return items.length === 0 ? tokens : this.#names.encode(tokens, items);
  }

  #domainOf(tenant: string | undefined, salt: string | undefined, adapter: string | undefined): PrefixDomain {
    return prefixDomain({ namespace: this.#namespace, tenant, salt, adapter });
  }
}

function indexOptions(options: ReadPrefixCacheOptions | 'off', layout: Layout) {
  const hashSeed = randomInt(2 ** 48 - 1);
  if (options === 'off') return { poolRows: 0, hashSeed };
  const { poolRows = Infinity, poolBytes = Infinity, tenantRows = Infinity, policy, endValues, now } = options;
  const rows = Math.min(poolRows, Math.floor(poolBytes / layout.rowBytes));
  const toGroups = (count: number): number => (count === Infinity ? count : Math.floor(count / layout.groupRows));
  return { poolRows: toGroups(rows), tenantRows: toGroups(tenantRows), policy, endValues, now, hashSeed };
}
