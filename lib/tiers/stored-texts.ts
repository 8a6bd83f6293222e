// StoredTexts: which text lies in blocks of the tiers, as a tree of blocks. It finds the longest part of a text that is
// stored, exact to the token, also inside a block. It owns no bytes and no recency, and knows tiers only by their
// numbers. Pure.
//
// The children of a block are kept in the order of their tokens, so that the one that agrees longest with a text is
// next to where that text would stand: found by halving, however many there are.

import type { DroppedText, TextScope } from '../prefix/domain.js';
import type { DomainMarks } from './block-record.js';

/** A block of text that some tier has, or whose successors some tier has. */
export class StoredBlock {
  /** SHA-256 of all up to its end, 64 hexadecimal digits; of a root, the key of its domain. */
  readonly key: string;
  /** Undefined: a root, which has no tokens. */
  readonly parent: StoredBlock | undefined;
  /** Tokens of the text before it. */
  readonly from: number;
  readonly tokens: Int32Array;
  /** In the order of their tokens. Read only. */
  readonly children: StoredBlock[] = [];
  /** Bit n: tier n has it. Read only. */
  tiers = 0;
  /** Who keeps it in the tree though no tier has it yet. Written by them. */
  pins = 0;
  /** How often its text was used, or one that goes on behind it. Written by the TierSet. */
  uses = 0;
  /**
   * Highest level of the requests that used its text, as tiers keep it: at least that of the blocks behind it. Read
   * only; see `raise`.
   */
  level = 0;
  /** What its text hangs on; of a root, itself. */
  readonly root: StoredBlock;
  /** Of a root: whose text hangs on it, or its key while that is not known. Written by the TierSet. */
  owner: string;
  /** Of a root: of which domain it is, as far as known. Written by the TierSet. */
  marks: DomainMarks | undefined = undefined;
  /** Whether it was dropped: no tier may keep it, also where a copy of it is under way. Read only. */
  isDropped = false;

  constructor(key: string, parent: StoredBlock | undefined, tokens: Int32Array) {
    this.key = key;
    this.parent = parent;
    this.from = parent === undefined ? 0 : parent.to;
    this.root = parent === undefined ? this : parent.root;
    this.owner = this.root.key;
    this.tokens = tokens;
  }

  /** Tokens of the text up to its end. */
  get to(): number {
    return this.from + this.tokens.length;
  }
}

/** How much of a text is stored. */
export interface StoredMatch {
  /** Blocks of which all tokens agree, from the text's start. */
  readonly blocks: readonly StoredBlock[];
  /** A block behind those whose first tokens agree; undefined: none. */
  readonly partial: StoredBlock | undefined;
  /** Tokens that agree in all. */
  readonly tokens: number;
}

export const nothingStored: StoredMatch = { blocks: [], partial: undefined, tokens: 0 };

export class StoredTexts {
  /** Called when a tier has a block from now on, or no longer. */
  onPlaced: ((block: StoredBlock, tier: number, isThere: boolean) => void) | undefined = undefined;
  /** Called when the level of a block has risen. */
  onRaised: ((block: StoredBlock) => void) | undefined = undefined;
  readonly #roots = new Map<string, StoredBlock>();
  readonly #blocks = new Map<string, StoredBlock>();

  /** Blocks of all roots. */
  get blocks(): number {
    return this.#blocks.size;
  }

  /** All blocks, in no order. */
  all(): IterableIterator<StoredBlock> {
    return this.#blocks.values();
  }

  /** The block with this key, if its text is known. */
  find(key: string): StoredBlock | undefined {
    return this.#blocks.get(key);
  }

  /** How much of text[0, limit) is stored under a domain's key. */
  match(root: string, text: Int32Array, limit = text.length): StoredMatch {
    let block = this.#roots.get(root);
    if (block === undefined) return nothingStored;
    const blocks: StoredBlock[] = [];
    for (let at = 0; ;) {
      const { child, agreed } = nearest(block, text, at, limit);
      if (child === undefined || agreed < child.tokens.length) {
        return { blocks, partial: agreed > 0 ? child : undefined, tokens: at + agreed };
      }
      blocks.push(child);
      block = child;
      at += agreed;
    }
  }

  /** What blocks of a domain hang on, where there are any. */
  knownRoot(key: string): StoredBlock | undefined {
    return this.#roots.get(key);
  }

  /** What blocks of a domain hang on that start a text. */
  root(key: string): StoredBlock {
    let root = this.#roots.get(key);
    if (root === undefined) this.#roots.set(key, root = new StoredBlock(key, undefined, new Int32Array(0)));
    return root;
  }

  /**
   * The block of these tokens behind `parent`, made where it is new. Keeps `tokens`. It stays while a tier has it: see
   * `place`.
   */
  add(parent: StoredBlock, key: string, tokens: Int32Array): StoredBlock {
    const known = this.#blocks.get(key);
    if (known !== undefined) return known;
    const block = new StoredBlock(key, parent, tokens);
    parent.children.splice(placeOf(parent.children, tokens, 0, tokens.length), 0, block);
    this.#blocks.set(key, block);
    return block;
  }

  /** Tier `tier` has the block, or no longer does; see `prune`. */
  place(block: StoredBlock, tier: number, isThere: boolean): void {
    block.tiers = isThere ? block.tiers | (1 << tier) : block.tiers & ~(1 << tier);
    this.onPlaced?.(block, tier, isThere);
    this.prune(block);
  }

  /** The text up to the block's end was used, and is kept with this level at least. */
  raise(block: StoredBlock, level: number): void {
    for (let at: StoredBlock | undefined = block; at !== undefined && at.level < level; at = at.parent) {
      at.level = level;
      this.onRaised?.(at);
    }
  }

  /** All that the scope says, which is in no tree from now on: ends of texts first. */
  drop(scope: TextScope, isOf: (root: StoredBlock) => boolean): StoredBlock[] {
    const dropped: StoredBlock[] = [];
    for (const root of [...this.#roots.values()]) if (isOf(root)) collect(root, scope.text, dropped);
    for (const block of dropped) {
      block.isDropped = true;
      const { children } = block.parent!;
      children.splice(children.indexOf(block), 1);
      this.#blocks.delete(block.key);
    }
    for (const { parent } of dropped) if (!parent!.isDropped) this.prune(parent!);
    return dropped;
  }

  /** A block that no tier has goes, with those above it that no tier has and nothing hangs on. */
  prune(block: StoredBlock): void {
    let above = block;
    while (above.tiers === 0 && above.pins === 0 && above.children.length === 0) {
      const { parent } = above;
      if (parent === undefined) {
        this.#roots.delete(above.key);
        return;
      }
      const place = placeOf(parent.children, above.tokens, 0, above.tokens.length) - 1;
      if (parent.children[place] !== above) return; // it has gone before
      parent.children.splice(place, 1);
      this.#blocks.delete(above.key);
      above = parent;
    }
  }

  /** A block beside this one whose tokens are the first of this one's; undefined: there is none. */
  startOf(block: StoredBlock): StoredBlock | undefined {
    const { children } = block.parent!;
    const before = children[placeOf(children, block.tokens, 0, block.tokens.length) - 2];
    return before !== undefined && agree(before.tokens, block.tokens, 0, block.tokens.length) === before.tokens.length
      ? before
      : undefined;
  }

  /** Calls `visit` with every piece of stored text: an array that must not be kept, and the places [from, to) in it. */
  forTexts(visit: (tokens: Int32Array, from: number, to: number) => void): void {
    for (const { tokens } of this.#blocks.values()) visit(tokens, 0, tokens.length);
  }
}

/**
 * Adds what is to be dropped below `parent`, ends first: all of it, or what `text` says. Returns whether nothing is
 * left there.
 */
function collect(parent: StoredBlock, text: DroppedText | undefined, dropped: StoredBlock[]): boolean {
  let isEmpty = true;
  for (const child of parent.children) {
    const agreed = text === undefined ? 0 : agree(child.tokens, text.text, child.from, text.text.length);
    const isBehind = text === undefined || child.from + agreed >= text.through;
    const isWithin = isBehind || agreed === child.tokens.length;
    const isOver = isWithin && collect(child, isBehind ? undefined : text, dropped)
      && (isBehind || child.to > text.from);
    if (isOver) dropped.push(child);
    else isEmpty = false;
  }
  return isEmpty;
}

/**
 * The child whose tokens agree longest with text[at, limit), and how many do; of equally good ones, one that agrees to
 * its end.
 */
function nearest(
  block: StoredBlock, text: Int32Array, at: number, limit: number,
): { child: StoredBlock | undefined; agreed: number } {
  const { children } = block;
  const place = placeOf(children, text, at, limit);
  const before = children[place - 1];
  const after = children[place];
  const agreedBefore = before === undefined ? 0 : agree(before.tokens, text, at, limit);
  const agreedAfter = after === undefined ? 0 : agree(after.tokens, text, at, limit);
  return agreedAfter > agreedBefore ? { child: after, agreed: agreedAfter } : { child: before, agreed: agreedBefore };
}

/** Where text[at, limit) would stand among the children. */
function placeOf(children: readonly StoredBlock[], text: Int32Array, at: number, limit: number): number {
  let low = 0;
  let high = children.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (isBefore(children[middle]!.tokens, text, at, limit)) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** Whether `tokens` stand before text[at, limit), or are equal to it or its start. */
function isBefore(tokens: Int32Array, text: Int32Array, at: number, limit: number): boolean {
  const agreed = agree(tokens, text, at, limit);
  if (agreed === tokens.length) return true;
  return at + agreed < limit && tokens[agreed]! < text[at + agreed]!;
}

function agree(tokens: Int32Array, text: Int32Array, at: number, limit: number): number {
  const most = Math.min(tokens.length, limit - at);
  let agreed = 0;
  while (agreed < most && tokens[agreed] === text[at + agreed]) agreed += 1;
  return agreed;
}
