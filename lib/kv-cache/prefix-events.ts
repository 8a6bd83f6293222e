// PrefixEvents: tells routers which blocks a cache has, over `diagnostics_channel`, so that they can send a request to
// where its prefix is without asking every cache. Published when the running JavaScript has finished (in a microtask),
// never in the middle of a call, so that a subscriber may use the cache. Made only with `prefixCache.events`.
//
// A router that starts with nothing and applies the events in their order knows exactly the whole blocks that `acquire`
// would find; and of each tier, by keys of their own, those that `promote` could bring.

import diagnostics = require('node:diagnostics_channel');

import { formatBlockKey } from '../prefix/router/block-keys.js';
import type { DropReason } from '../prefix/row-ledger.js';
import type { PrefixIndex } from '../prefix/prefix-index.js';
import type { PrefixDrop } from './cached-texts.js';
import type { PlacedBlocks, PlacedRun } from '../tiers/placed-blocks.js';
import {
  StoredBlocks, type RemovedBlocks, type StoredBlocksOptions, type StoredRun,
} from '../prefix/router/stored-blocks.js';

/** In every event. */
export interface PrefixEvent {
  /** The `KvCache` that publishes. */
  readonly cache: object;
  /** `prefixCache.events.label`. */
  readonly label: string | undefined;
  /**
   * 1, 2, 3, … over all events of the cache: a gap shows that some were lost on the way, and `publishAll` starts over.
   */
  readonly eventNumber: number;
}

/** On `virtual-kv:prefix-stored`: these blocks, one behind the other, can be found from now on. */
export interface PrefixStoredEvent extends PrefixEvent {
  /** As `prefixBlockKeys` computes them: 16 hexadecimal digits each. */
  readonly blockKeys: readonly string[];
  /** Key of the block in front of the first, stored before; undefined when it starts a text. */
  readonly parentKey: string | undefined;
  /** Tokens of a block (`prefixCache.events.blockTokens`). */
  readonly blockTokens: number;
  /** Tokens of the text in front of the first block. */
  readonly fromToken: number;
  /** Their tokens, with `includesTokens`; −1 where an item or an embedding covers a position. */
  readonly tokens: Int32Array | undefined;
  /** Whose text it is; of the salt only whether there is one. */
  readonly domain: {
    readonly namespace: string | undefined;
    readonly tenant: string | undefined;
    readonly adapter: string | undefined;
    readonly isSalted: boolean;
  };
}

/** On `virtual-kv:prefix-removed`: the last copy of these blocks is gone. */
export interface PrefixRemovedEvent extends PrefixEvent {
  /** Keys of the blocks, as `virtual-kv:prefix-stored` gave them. */
  readonly blockKeys: readonly string[];
  /** Why they went. */
  readonly reason: DropReason;
}

/** On `virtual-kv:tier-stored`: a tier below the device has these blocks from now on, one behind the other. */
export interface TierStoredEvent extends PrefixEvent {
  /** The tier's name. */
  readonly tier: string;
  /** As `cache.prefixes.externalKeys(prompt, blockTokens)` gives them: 64 hexadecimal digits each. */
  readonly blockKeys: readonly string[];
  /** Key of the block in front of the first; undefined when it starts a text. The tier need not have it. */
  readonly parentKey: string | undefined;
  /** Tokens of a block (`prefixCache.tierBlockTokens`); shorter ones at the ends of texts are not told. */
  readonly blockTokens: number;
  /** Tokens of the text in front of the first block. */
  readonly fromToken: number;
}

/** On `virtual-kv:tier-removed`: a tier has these blocks no more. */
export interface TierRemovedEvent extends PrefixEvent {
  /** The tier's name. */
  readonly tier: string;
  /** As `virtual-kv:tier-stored` gave them. */
  readonly blockKeys: readonly string[];
}

/**
 * `asked`: `Prefixes.drop` was called · `not-numbers`: a scheduler's engine gave logits that were no numbers, and the
 * text has to do with it.
 */
export type PrefixDropReason = 'asked' | 'not-numbers';

/** On `virtual-kv:prefix-dropped`, with `prefixCache.events` and without: text was dropped, here and in tiers. */
export interface PrefixDroppedEvent extends PrefixDrop {
  /** The `KvCache` that publishes. */
  readonly cache: object;
  /** Why. */
  readonly reason: PrefixDropReason;
}

/**
 * On `virtual-kv:prefix-cleared`: the cache has no block any more, on the device and in tiers. `republished`: all it
 * has follows.
 */
export interface PrefixClearedEvent extends PrefixEvent {
  /** Why: `Prefixes.reset`, the cache was closed, or `publishAll` was called. */
  readonly reason: 'reset' | 'closed' | 'republished';
}

const storedChannel = diagnostics.channel('virtual-kv:prefix-stored');
const removedChannel = diagnostics.channel('virtual-kv:prefix-removed');
const tierStoredChannel = diagnostics.channel('virtual-kv:tier-stored');
const tierRemovedChannel = diagnostics.channel('virtual-kv:tier-removed');
const droppedChannel = diagnostics.channel('virtual-kv:prefix-dropped');
const clearedChannel = diagnostics.channel('virtual-kv:prefix-cleared');

/** Text was dropped. */
export function publishDropped(event: PrefixDroppedEvent): void {
  droppedChannel.publish(event);
}

/** Which blocks are told, and how. */
export interface PrefixEventsRules extends Omit<StoredBlocksOptions, 'onChange'> {
  readonly label: string | undefined;
}

export class PrefixEvents {
  readonly #cache: object;
  readonly #label: string | undefined;
  readonly #blocks: StoredBlocks;
  #tierBlocks: PlacedBlocks | undefined;
  #number = 0;
  #isWaiting = false;
  #isPublishing = false;
  /** `publishAll` was called since the last event. */
  #startsOver = false;
  #isClosed = false;

  /** Follows an index from its beginning. */
  constructor(cache: object, index: PrefixIndex, { label, ...blocks }: PrefixEventsRules) {
    this.#cache = cache;
    this.#label = label;
    this.#blocks = new StoredBlocks(index, {
      ...blocks, onChange: () => {
        this.#schedule();
      },
    });
  }

  /** Tells of the blocks in tiers, too. */
  followTiers(blocks: PlacedBlocks): void {
    this.#tierBlocks = blocks;
    blocks.startOver();
    blocks.listen(() => { this.#schedule(); });
    this.#schedule();
  }

  /** For routers that come late: `cleared`, then all blocks; for a subscriber's call after the events under way. */
  publishAll(): void {
    this.#startsOver = true;
    if (this.#isPublishing) this.#schedule();
    else this.#publish();
  }

  /** Nothing can be found any more, and nothing is published after this. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    this.#clear('closed');
  }

  /** There is something to publish, once the running JavaScript has finished. */
  #schedule(): void {
    if (this.#isWaiting) return;
    this.#isWaiting = true;
    queueMicrotask(() => {
      this.#isWaiting = false;
      this.#publish();
    });
  }

  /** A subscriber may close the cache, which ends it. */
  #publish(): void {
    if (this.#isClosed) return;
    this.#isPublishing = true;
    for (const publish of this.#takeEvents()) {
      publish();
      if (this.#isClosed) break;
    }
    this.#isPublishing = false;
  }

  /** What there is to publish, in order. */
  #takeEvents(): (() => void)[] {
    const startsOver = this.#startsOver;
    this.#startsOver = false;
    if (startsOver) {
      this.#blocks.startOver();
      this.#tierBlocks?.startOver();
    }
    const { removed, stored } = this.#blocks.takeChanges();
    const isReset = this.#blocks.count === 0 && removed.some(({ reason }) => reason === 'cleared');
    return [
      ...startsOver ? [() => { this.#clear('republished'); }] : [],
      ...isReset ? [() => { this.#clear('reset'); }] : removed.map((blocks) => () => { this.#remove(blocks); }),
      ...stored.map((run) => () => { this.#store(run); }),
      ...this.#tierBlocks === undefined ? [] : this.#takeTierEvents(this.#tierBlocks),
    ];
  }

  #takeTierEvents(blocks: PlacedBlocks): (() => void)[] {
    const { removed, stored } = blocks.takeChanges();
    return [
      ...removed.map(({ tier, keys }) => () => {
        tierRemovedChannel.publish({ ...this.#event(), tier, blockKeys: keys } satisfies TierRemovedEvent);
      }),
      ...stored.map((run) => () => { tierStoredChannel.publish(this.#tierStored(run, blocks.blockTokens)); }),
    ];
  }

  #tierStored({ tier, parent, keys, from }: PlacedRun, blockTokens: number): TierStoredEvent {
    return { ...this.#event(), tier, blockKeys: keys, parentKey: parent, blockTokens, fromToken: from };
  }

  #store({ domain, parent, keys, from, tokens }: StoredRun): void {
    const { namespace, tenant, adapter, salt } = domain;
    const event: PrefixStoredEvent = {
      ...this.#event(), blockKeys: keys.map(formatBlockKey),
      parentKey: parent === undefined ? undefined : formatBlockKey(parent),
      blockTokens: this.#blocks.blockTokens, fromToken: from, tokens: tokens?.map((token) => Math.max(token, -1)),
      domain: { namespace, tenant, adapter, isSalted: salt !== undefined },
    };
    storedChannel.publish(event);
  }

  #remove({ keys, reason }: RemovedBlocks): void {
    const event: PrefixRemovedEvent = { ...this.#event(), blockKeys: keys.map(formatBlockKey), reason };
    removedChannel.publish(event);
  }

  #clear(reason: PrefixClearedEvent['reason']): void {
    const event: PrefixClearedEvent = { ...this.#event(), reason };
    clearedChannel.publish(event);
  }

  #event(): PrefixEvent {
    this.#number += 1;
    return { cache: this.#cache, label: this.#label, eventNumber: this.#number };
  }
}
