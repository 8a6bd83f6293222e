// TierSet: the tiers of a cache, the fastest first, and what text lies in which. It opens and closes them, makes room
// in them, puts blocks where they are wanted and gets them back from the fastest that has them. It knows no device:
// payloads come from and go to its user.

import { randomInt } from 'node:crypto';

import { createError } from '../base/errors.js';
import { formatCount, formatNumber } from '../base/format.js';
import { RecentMap } from '../base/recent-map.js';
import type { DroppedText, PrefixDomain, TextScope } from '../prefix/domain.js';
import type { ReleasedRequest } from '../prefix/eviction/eviction-policy.js';
import { type BlockKeys, fromRecord, type ItemNumbers, marksOf, mayHave, toRecord } from './block-record.js';
import { TextReuse } from './block-order.js';
import { CheckedStripes } from './checked-stripes.js';
import { HostMemory, pagePieces } from './host-memory.js';
import { sourceOf } from './load-plan.js';
import { type Fetched, type Missed, OpenTier } from './open-tier.js';
import { PlacedBlocks } from './placed-blocks.js';
import { nothingStored, type StoredBlock, type StoredMatch, StoredTexts } from './stored-texts.js';
import { highestLevel, ownerOf } from './tier-contents.js';
import type { BlockRecord, Tier } from './tier.js';

/**
 * Whole blocks that scratch memory has room for: payloads on their way to and from tiers without memory of their own.
 */
const scratchBlocks = 56;
/** Uses, of all texts together, after which those so far count half: what was popular once gives way. */
const halfLifeUses = 2 ** 16;
/** Domains whose keys are remembered. */
const knownRoots = 1024;

/** What was dropped. */
export interface DroppedBlocks {
  readonly blocks: number;
  /** Tiers whose stores have not taken note of it, by name. */
  readonly unreachedTiers: readonly string[];
}

/** Memory for a payload on its way to tiers. */
export interface LentPayload {
  readonly payload: Uint8Array;
  /** The tier whose memory it is; undefined: it is scratch memory. */
  readonly lender: OpenTier | undefined;
}

/** What a cache tells its tiers. */
export interface TierSetOptions {
  readonly tiers: readonly Tier[];
  readonly keys: BlockKeys;
  /** 64 hexadecimal digits that name model, tensors and share. */
  readonly namespace: string;
  readonly stripeTokenBytes: readonly number[];
  readonly names: ItemNumbers;
  /** How many tokens of a block selections have chosen, on average; all of them where none has. */
  readonly importantTokens: (block: StoredBlock) => number;
  /** With which level text of requests of a priority level is kept. */
  readonly lastingLevel: (level: number) => number;
  /** Hears of failures that no call reports. */
  readonly report: (error: unknown) => void;
}

export class TierSet {
  readonly texts = new StoredTexts();
  readonly keys: BlockKeys;
  /** Of the items in texts. */
  readonly names: ItemNumbers;
  readonly all: readonly OpenTier[];
  /** By block key: how often its text was seen, for tiers that admit only what was seen more than once. */
  readonly sightings = new RecentMap<number>(2 ** 16);
  readonly #options: TierSetOptions;
  readonly #scratch: HostMemory;
  readonly #roots = new Map<string, string>();
  readonly #tokenBytes: number;
  readonly #reuse = new TextReuse(randomInt(2 ** 48 - 1));
  /** What was dropped before all tiers were open, and those that took no note of it. */
  readonly #droppedWhileOpening: { readonly scope: TextScope; readonly unreached: Set<OpenTier> }[] = [];
  #opening: Promise<void> | undefined;
  #isClosed = false;
  #uses = 0;
  /** Raised by `clear`: what was begun before is not found after. Read only. */
  clears = 0;

  constructor(options: TierSetOptions) {
    const { tiers, keys, stripeTokenBytes } = options;
    this.#options = options;
    this.keys = keys;
    this.names = options.names;
    this.#tokenBytes = stripeTokenBytes.reduce((sum, bytes) => sum + bytes, 0);
    const wholeBytes = this.bytesOf(keys.blockTokens);
    this.#scratch = new HostMemory(scratchBlocks * (wholeBytes + wholeBytes / 8 + 4096), wholeBytes, pagePieces);
    const shared = {
      texts: this.texts, worth: { importantTokens: options.importantTokens, reuse: this.#reuse },
      stripes: stripeTokenBytes.length, report: options.report,
    };
    this.all = tiers.map((tier, number) => new OpenTier(tier, { number, ...shared }));
    this.texts.onRaised = (block) => {
      for (const open of this.all) {
        if (open.contents.has(block) && open.state !== 'closed') open.setLevel(block.key, block.level);
      }
    };
  }

  /**
   * Opens all tiers; rejects with the first failure once each has opened or failed. A tier that failed is out of
   * service.
   */
  open(): Promise<void> {
    this.#opening ??= this.#openAll();
    return this.#opening;
  }

  /** Bytes of a payload of so many tokens. */
  bytesOf(tokens: number): number {
    return tokens * this.#tokenBytes;
  }

  /** What the first blocks of a domain have as their parent. */
  rootOf(domain: PrefixDomain): string {
    let root = this.#roots.get(domain.key);
    if (root !== undefined) return root;
    root = this.keys.root(domain);
    if (this.#roots.size >= knownRoots) this.#roots.clear();
    this.#roots.set(domain.key, root);
    return root;
  }

  match(domain: PrefixDomain, text: Int32Array, limit?: number): StoredMatch {
    const root = this.texts.knownRoot(this.rootOf(domain));
    if (root === undefined) return nothingStored;
    this.#nameOwner(root, domain);
    return this.texts.match(root.key, text, limit);
  }

  /** What blocks of the domain hang on that start a text. */
  rootFor(domain: PrefixDomain): StoredBlock {
    const root = this.texts.root(this.rootOf(domain));
    this.#nameOwner(root, domain);
    return root;
  }

  #nameOwner(root: StoredBlock, domain: PrefixDomain): void {
    root.marks ??= marksOf(domain);
    if (root.owner !== root.key) return;
    const owner = ownerOf(domain);
    for (const { contents } of this.all) contents.tenants?.rename(root, owner);
    root.owner = owner;
  }

  /**
   * Tiers that would take a block that was seen so often, of `count` tokens; `block`: it, if it is stored somewhere.
   */
  wanting(block: StoredBlock | undefined, count: number, sightings: number): OpenTier[] {
    const isWhole = count === this.keys.blockTokens;
    return this.all.filter(({ tier, contents, state }) => state === 'open' && (isWhole || !tier.takesOnlyWholeBlocks) &&
      sightings >= (tier.admitAfter ?? 1) && (block === undefined || !contents.has(block)));
  }

  /**
   * Memory for a block's payload: of the fastest tier that wants it and lends some, else scratch; undefined: there is
   * none now.
   */
  async lend(block: StoredBlock, wanting: readonly OpenTier[]): Promise<LentPayload | undefined> {
    const bytes = this.bytesOf(block.tokens.length);
    for (const open of wanting) {
      if (open.tier.lend === undefined || open.tier.borrow === undefined) continue;
      await open.makeRoom(bytes, block);
      const payload = open.lend(bytes);
      if (payload !== undefined) return { payload, lender: open };
    }
    const payload = this.#scratch.take(bytes);
    return payload && { payload, lender: undefined };
  }

  /** Gives back what `lend` returned, and its lender has not put. */
  giveBack({ payload, lender }: LentPayload): void {
    if (lender === undefined) this.#scratch.give(payload);
    else lender.giveBack(payload);
  }

  /**
   * Puts a block into the tiers that want it, first into memory. Resolves when the lent payload is free again, or its
   * lender has it as its own: what slower tiers write goes on behind it. `clears`: how many there had been when the
   * payload was cached; after another it is not stored.
   */
  async store(
    block: StoredBlock, lent: LentPayload, sums: Uint32Array, wanting: readonly OpenTier[], clears: number,
  ): Promise<void> {
    const record = this.recordOf(block, sums);
    const rest = record === undefined ? [] : [...wanting];
    const put = (open: OpenTier): Promise<boolean> =>
      open.put(block, record!, lent.payload, () => this.clears === clears);
    for (let at = 0; at >= 0 && rest.length > 0;) {
      at = rest.findIndex(({ tier }) => tier.borrow !== undefined);
      if (at < 0) break;
      const [first] = rest.splice(at, 1) as [OpenTier];
      const isTaken = await put(first) && first === lent.lender;
      const kept = first.has(block) ? first.borrow(block, this.bytesOf(block.tokens.length)) : undefined;
      if (kept !== undefined && 'payload' in kept) { // the others write what it keeps, which stays as it is
        if (!isTaken) this.giveBack(lent);
        await Promise.all(rest.map(({ puts }) => puts.room()));
        this.#spread(block, kept, rest, clears).catch(this.#options.report);
        return;
      }
      if (isTaken) return; // and lost since
    }
    await Promise.all(rest.map(put));
    this.giveBack(lent);
  }

  /** Copies a block from a tier that has it in memory to others that want it; nothing happens where none has. */
  async spread(block: StoredBlock, wanting: readonly OpenTier[]): Promise<void> {
    const kept = this.all.find((open) => open.tier.borrow !== undefined && open.has(block))
      ?.borrow(block, this.bytesOf(block.tokens.length));
    if (kept !== undefined && 'payload' in kept) await this.#spread(block, kept, wanting, this.clears);
  }

  /** The tier that the block is loaded from, as tiers were measured by now; undefined: none in service has it. */
  sourceOf(block: StoredBlock, tried?: ReadonlySet<OpenTier>): OpenTier | undefined {
    return sourceOf(
      this.all.filter((open) => open.has(block) && tried?.has(open) !== true), this.bytesOf(block.tokens.length));
  }

  /**
   * The block's payload from the fastest tier that has it, and from the next where that does not give it; a miss with
   * the reason where none does.
   */
  async fetch(block: StoredBlock, signal: AbortSignal | undefined): Promise<Fetched | Missed> {
    let missed: Missed = { reason: 'absent' };
    const tried = new Set<OpenTier>();
    for (;;) {
      const open = this.sourceOf(block, tried);
      if (open === undefined) return missed;
      tried.add(open);
      const got = await this.fetchFrom(open, block, signal);
      if (!('reason' in got)) return got;
      missed = got;
      if (signal?.aborted === true) return missed;
    }
  }

  /** The block's payload from this tier. */
  fetchFrom(open: OpenTier, block: StoredBlock, signal: AbortSignal | undefined): Promise<Fetched | Missed> {
    return open.fetch(block, this.bytesOf(block.tokens.length), this.#scratch, signal);
  }

  /**
   * Puts a block into a tier, from the fastest that gives it, once its bytes are checked. False: there is none, or that
   * tier has not taken it.
   */
  async copy(block: StoredBlock, to: OpenTier): Promise<boolean> {
    const { clears } = this;
    const fetched = await this.fetch(block, undefined);
    if ('reason' in fetched) return false;
    try {
      if (!new CheckedStripes(fetched.payload, fetched.sums, this.#options.stripeTokenBytes).areIntact()) {
        fetched.from.damaged(block);
        return false;
      }
      const record = this.recordOf(block, fetched.sums);
      if (record === undefined) return false;
      await to.put(block, record, fetched.payload, () => this.clears === clears);
      return to.has(block);
    } finally {
      fetched.release();
    }
  }

  /**
   * A text that ends in the block was finished: computed by `request`, of a priority level, and its sequence is over.
   */
  finish(block: StoredBlock, text: Int32Array, request: ReleasedRequest, level: number): void {
    this.#reuse.note(block, text, request);
    this.use(block, level);
  }

  /** The text up to the block's end was used, by a request of a priority level. */
  use(block: StoredBlock, level = 0): void {
    this.texts.raise(block, this.#options.lastingLevel(level));
    for (let at = block; at.parent !== undefined; at = at.parent) at.uses += 1;
    this.#uses += 1;
    if (this.#uses % halfLifeUses === 0) this.#halveUses();
    this.#reuse.touch(block);
    for (const { contents } of this.all) contents.use(block);
  }

  /**
   * Drops all blocks. Stores that others share keep them, and find them again: a new namespace is what tells them
   * apart.
   */
  clear(): void {
    this.clears += 1;
    for (const open of this.all) open.clear();
  }

  /**
   * Drops what the scope says from every tier, also what is on its way there; shared stores drop what is known here,
   * and whole blocks of a text that is dropped. From the call on nothing of it is found, but in tiers that are still
   * opening: there from then on. Resolves when it is gone. `isAnswered`: waits for a tier's work, and says whether it
   * ended, or the tier does not answer.
   */
  async drop(
    scope: TextScope, isAnswered: (work: Promise<unknown>, open: OpenTier) => Promise<boolean>,
  ): Promise<DroppedBlocks> {
    const opening = this.all.filter(({ state, opened }) => state === 'opening' && opened !== undefined);
    const unreached = new Set<OpenTier>();
    if (opening.length > 0) this.#droppedWhileOpening.push({ scope, unreached });
    const blocks = this.#take(scope);
    await Promise.all(this.all.map(async (each) => {
      const work = opening.includes(each)
        ? each.opened!.then(() => each.state === 'open')
        : this.#dropFrom(each, blocks, scope);
      if (!await isAnswered(work, each) || !await work) unreached.add(each);
    }));
    const unreachedTiers = this.all.filter((each) => unreached.has(each)).map(({ tier }) => tier.name);
    return { blocks: blocks.length, unreachedTiers };
  }

  /** Returns whether the tier took note. */
  #dropFrom(open: OpenTier, blocks: readonly StoredBlock[], scope: TextScope): Promise<boolean> {
    const keys = open.tier.find === undefined || scope.text === undefined ? [] : this.#unknownKeys(scope.text);
    return open.drop(blocks, keys);
  }

  /** Out of the texts. */
  #take(scope: TextScope): StoredBlock[] {
    const root = scope.text === undefined ? undefined : this.rootOf(scope.text.domain);
    return this.texts.drop(
      scope, (each) => (root === undefined ? mayHave(each.marks, scope.parts) : each.key === root));
  }

  /** Of whole blocks of the text that end behind what stays: others may have stored them. */
  #unknownKeys({ domain, text, from }: DroppedText): string[] {
    const { keys, keys: { blockTokens } } = this;
    return keys.ofText(domain, text, this.names).filter((
      key, index,
    ) => (index + 1) * blockTokens > from && this.texts.find(key) === undefined);
  }

  /** Which blocks tiers have got and lost, from now on. */
  placedBlocks(): PlacedBlocks {
    return new PlacedBlocks(this.texts, this.all.map(({ tier }) => tier.name), this.keys.blockTokens);
  }

  /** Throws KV_INTERNAL where what is known of stored text does not agree. */
  verify(): void {
    checkTiers(this.texts, this.all);
  }

  /** Resolves when what was stored so far is written. */
  async written(): Promise<void> {
    await Promise.all(this.all.map(({ puts }) => puts.idle()));
  }

  /** Ends all tiers, each once it has opened; rejects with the first failure once each is closed. Idempotent. */
  async close(): Promise<void> {
    this.#isClosed = true;
    const ends = await Promise.allSettled(this.all.map((open) => open.close()));
    const failed = ends.find((end) => end.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
  }

  #halveUses(): void {
    for (const block of this.texts.all()) block.uses /= 2;
    for (const { contents } of this.all) contents.refresh();
  }

  /** A block as tiers describe it, with a payload of these sums; undefined: an item in it has been forgotten. */
  recordOf(block: StoredBlock, sums: Uint32Array): BlockRecord | undefined {
    const { key, parent, from: position, tokens, level } = block;
    const record = toRecord(tokens, this.names, position === 0 ? block.root.marks : undefined);
    const bytes = this.bytesOf(tokens.length);
    return record && { key, parent: parent!.key, position, ...record, sums: sums.slice(), bytes, level };
  }

  async #openAll(): Promise<void> {
    const failures: unknown[] = [];
    await Promise.all(this.all.map((open) => {
      open.opened = this.#openOne(open).catch((error: unknown) => {
        open.failed(error);
        failures.push(error);
      });
      return open.opened;
    }));
    this.#droppedWhileOpening.length = 0;
    if (failures.length > 0) throw failures[0];
  }

  async #openOne(open: OpenTier): Promise<void> {
    const { namespace, stripeTokenBytes } = this.#options;
    const { clears } = this;
    const found = new Map<string, BlockRecord>();
    await open.calls.track(open.tier.open({
      namespace, stripeTokenBytes, blockTokens: this.keys.blockTokens,
      found: (record) => {
        found.set(record.key, {
          ...record, tokens: record.tokens.slice(), notes: record.notes.slice(), sums: record.sums.slice(),
        });
      },
      lost: (keys) => {
        for (const key of keys) {
          found.delete(key);
          open.lose(key);
        }
      },
    }));
    if (!this.#isClosed) checkHoldsBlock(open, this.bytesOf(this.keys.blockTokens), this.keys.blockTokens);
    if (this.clears !== clears) {
      await open.calls.track<unknown>(open.tier.remove([...found.keys()]));
      found.clear();
    }
    if (this.#isClosed) return;
    open.state = 'open';
    this.#adopt(open, [...found.values()]);
    await Promise.all(this.#droppedWhileOpening.map(({ scope, unreached }) => {
      const blocks = this.#take(scope); // what was stored anew meanwhile goes with it
      return Promise.all(this.all.map(async (each) => {
        const isGone = await this.#dropFrom(each, blocks, scope);
        if (each === open && !isGone) unreached.add(open);
      }));
    }));
  }

  /**
   * Takes over what a tier has from before: a text's start before what goes on there. What nothing leads to is of no
   * use, nor what has another text than its key names.
   */
  #adopt(open: OpenTier, found: BlockRecord[]): void {
    const useless: string[] = [];
    found.sort((a, b) => a.position - b.position);
    for (const { key, parent, position, tokens, notes, sums, bytes, level = 0 } of found) {
      const { text, marks } = fromRecord(tokens, notes, this.names) ?? { text: undefined, marks: undefined };
      const above = position === 0 ? this.texts.root(parent) : this.texts.find(parent);
      if (text === undefined || above?.to !== position || bytes !== this.bytesOf(tokens.length)
        || this.keys.key(parent, text, 0, text.length, this.names) !== key) {
        useless.push(key);
        continue;
      }
      const block = this.texts.add(above, key, text);
      if (position === 0) above.marks ??= marks;
      const [before, levelAbove] = [block.level, above.level];
      const told = isLevel(level) ? level : 0;
      this.texts.raise(block, this.#options.lastingLevel(told));
      const isRaised = above.level !== levelAbove || (block.level !== before && block.tiers !== 0);
      if (isRaised) for (const { contents } of this.all) contents.use(block); // those that have it, or what it hangs on
      open.add(block, bytes, sums);
      if (block.level > told) open.setLevel(key, block.level);
    }
    if (useless.length > 0) void open.drop([], useless);
  }

  async #spread(
    block: StoredBlock, { payload, sums, release }: Fetched, wanting: readonly OpenTier[], clears: number,
  ): Promise<void> {
    try {
      const record = this.recordOf(block, sums);
      if (record === undefined) return;
      await Promise.all(wanting.map((open) => open.put(block, record, payload, () => this.clears === clears)));
    } finally {
      release();
    }
  }
}

/** Throws KV_INVALID_OPTION for a tier in which no whole block has room: text of any length would be refused. */
function checkHoldsBlock({ tier, contents }: OpenTier, bytes: number, tokens: number): void {
  const size = contents.sizeOf(bytes);
  if (tier.capacityBytes === undefined || !(tier.capacityBytes < size)) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner: tier.name, option: 'bytes', received: tier.capacityBytes,
    expected: `room for a block at least: ${formatNumber(size)} bytes for ${formatCount('token', tokens)}`,
    hint: 'Make the tier larger, or blocks smaller (`prefixCache.tierBlockTokens`). Nothing is stored there.',
  });
}

/** What a tier of the user's own tells may be anything. */
function isLevel(level: unknown): level is number {
  return Number.isInteger(level) && level as number >= 0 && level as number <= highestLevel;
}

// checkTiers: looks through all that is known of stored text for what must always hold, and throws KV_INTERNAL at the
// first thing that does not. For tests: it takes time in proportion to everything that is stored.

export function checkTiers(texts: StoredTexts, tiers: readonly OpenTier[]): void {
  let places = 0;
  let blocks = 0;
  for (const block of texts.all()) {
    blocks += 1;
    places += tiers.filter((_, number) => (block.tiers & (1 << number)) !== 0).length;
    expect(
      block.parent !== undefined && block.parent.to === block.from,
      'a stored block does not begin where the one before it ends', block.from, block.parent?.to);
    expect(
      block.parent.children.filter((child) => child === block).length === 1,
      'a stored block does not hang on the one before it', block.from);
    expect(
      block.parent.parent === undefined || texts.find(block.parent.key) === block.parent,
      'the block before a stored one is not known', block.from);
    expect(
      block.level <= block.parent.level, 'a stored block has a higher priority level than the one before it',
      block.from, block.level);
    expect(
      block.tiers !== 0 || block.pins > 0 || block.children.length > 0, 'a block that no tier has is kept for nothing',
      block.from);
  }
  expect(blocks === texts.blocks, 'the count of stored blocks is wrong', texts.blocks, blocks);
  const told = tiers.reduce((sum, tier) => sum + checkContents(texts, tier), 0);
  expect(told === places, 'tiers have other blocks than the texts say', places, told);
}

/** Returns how many blocks the tier has. */
function checkContents(texts: StoredTexts, { contents }: OpenTier): number {
  const seen = new Set<StoredBlock>();
  let bytes = 0;
  for (const block of contents.blocks()) {
    expect(
      texts.find(block.key) === block && (block.tiers & (1 << contents.number)) !== 0,
      'a tier has a block that the texts do not know there', block.from);
    expect(
      block.parent === undefined || !seen.has(block.parent), 'a block was used later than the one before it',
      block.from);
    seen.add(block);
    bytes += contents.bytesOf(block);
  }
  expect(bytes === contents.bytes, 'the bytes of a tier are counted wrong', contents.bytes, bytes);
  expect(
    contents.tenants === undefined || contents.tenants.bytes === contents.bytes,
    'the bytes of tenants in a tier are counted wrong', contents.bytes, contents.tenants?.bytes);
  expect(seen.size === contents.count, 'the blocks of a tier are counted wrong', contents.count, seen.size);
  return seen.size;
}

function expect(isRight: boolean, problem: string, what = 0, howMany = 0): asserts isRight {
  if (!isRight) throw createError('KV_INTERNAL', { problem, what, howMany });
}
