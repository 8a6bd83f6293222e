// StoredBlocks: which blocks of tokens a match would find, by their keys, and what of that has changed since the last
// question. A router that applies the changes in order knows at any time how much of a prompt is cached here. Made only
// for routers: it keeps a key per block, computed when its last token is committed. Reads the index, changes nothing.
//
// A block belongs to the node that has its last token, so that one that several texts share exists once and goes with
// the last of them. Tokens at the end of a running sequence's text that lie in no row are not found, and their blocks
// not stored.

import type { PrefixDomain } from '../domain.js';
import type { IndexedTexts, PrefixIndex } from '../prefix-index.js';
import type { TextListener } from '../prefix-tree.js';
import type { ItemNames } from '../prompt-encoder.js';
import { dropReasons, type DropReason } from '../row-ledger.js';
import { blockKey, domainKey, type BlockKey } from './block-keys.js';

/** Blocks that can be found from now on, one behind the other. */
export interface StoredRun {
  readonly domain: PrefixDomain;
  /** Key of the block before the first; undefined when it starts a text. It was stored before. */
  readonly parent: BlockKey | undefined;
  readonly keys: readonly BlockKey[];
  /** Tokens of the text before the first block. */
  readonly from: number;
  /** Their tokens, when asked for; below 0 where an item covers a position. */
  readonly tokens: Int32Array | undefined;
}

/** Blocks that cannot be found any more. */
export interface RemovedBlocks {
  readonly reason: DropReason;
  readonly keys: BlockKey[];
}

/** To be applied in this order: what was removed may be stored again. */
export interface BlockChanges {
  readonly removed: readonly RemovedBlocks[];
  readonly stored: readonly StoredRun[];
}

export interface StoredBlocksOptions {
  /** Tokens of a block, 1 or more. */
  readonly blockTokens: number;
  /** Whether `StoredRun.tokens` is wanted. */
  readonly includesTokens?: boolean | undefined;
  /** Names of the items in texts. */
  readonly names?: ItemNames | undefined;
  /** Called in the middle of a change, once until `takeChanges`: there may be something to report. */
  readonly onChange?: (() => void) | undefined;
}

/** Of one node: the blocks that end in it, in order; of these the first `stored` have been reported. */
interface NodeBlocks {
  readonly keys: BlockKey[];
  stored: number;
}

export class StoredBlocks implements TextListener {
  readonly #texts: IndexedTexts;
  readonly #options: StoredBlocksOptions;
  readonly #blocks: (NodeBlocks | undefined)[] = [];
  /** Nodes to look at, with the reason should they have lost something. */
  readonly #changed = new Map<number, DropReason>();
  readonly #removed = new Map<DropReason, BlockKey[]>();
  #hasTold = false;
  #count = 0;

  /** @param index Nothing is cached in it yet. */
  constructor(index: PrefixIndex, options: StoredBlocksOptions) {
    this.#texts = index.texts;
    this.#options = options;
    index.listen(this);
  }

  get blockTokens(): number {
    return this.#options.blockTokens;
  }

  /** Blocks that are stored, as far as has been reported. */
  get count(): number {
    return this.#count;
  }

  /** What has changed since the last call. */
  takeChanges(): BlockChanges {
    const { nodes } = this.#texts.tree;
    this.#hasTold = false;
    for (const [node, reason] of [...this.#changed]) this.#changeAbove(node, reason);
    const order = [...this.#changed].sort(([a], [b]) => nodes.from[a]! - nodes.from[b]!); // parents first
    const stored: StoredRun[] = [];
    for (const [node, reason] of order) this.#compare(node, reason, stored);
    const removed = [...this.#removed].map(([reason, keys]) => ({ reason, keys }));
    this.#changed.clear();
    this.#removed.clear();
    return { removed, stored };
  }

  /** Forgets what has been reported, so that all that is stored is reported next. */
  startOver(): void {
    this.#count = 0;
    this.#removed.clear();
    this.#blocks.forEach((blocks, node) => {
      if (blocks === undefined) return;
      blocks.stored = 0;
      this.#change(node);
    });
  }

  added(node: number, from: number): void {
    const { tree } = this.#texts;
    const { blockTokens, names } = this.#options;
    const blocks = (this.#blocks[node] ??= { keys: [], stored: 0 });
    this.#change(node);
    const start = from - (from % blockTokens);
    const text = new Int32Array(this.#wholeBlocks(tree.nodes.to[node]!) * blockTokens - start);
    if (text.length === 0) return;
    tree.copyPath(node, start, start + text.length, text, 0);
    let key = this.#keyBefore(node, start);
    for (let at = 0; at < text.length; at += blockTokens) {
      key = blockKey(key, text, at, blockTokens, names);
      blocks.keys.push(key);
    }
  }

  cut(node: number, from: number, _to: number, reason: number): void {
    const { nodes } = this.#texts.tree;
    const blocks = this.#blocks[node];
    if (blocks === undefined) return;
    const name = dropReasons[reason]!;
    this.#unstore(blocks, this.#blocksIn(node, from), name);
    blocks.keys.length = this.#blocksIn(node, from);
    if (from > nodes.from[node]!) {
      this.#change(node, name);
      return;
    }
    this.#forget(node);
    this.#change(nodes.parent[node]!, name); // its last tokens may have lain in a row that goes with the node
  }

  split(upper: number, lower: number): void {
    const blocks = this.#blocks[lower]!;
    const keys = blocks.keys.splice(0, this.#blocksIn(upper, this.#texts.tree.nodes.to[upper]!));
    this.#blocks[upper] = { keys, stored: Math.min(blocks.stored, keys.length) };
    blocks.stored = Math.max(0, blocks.stored - keys.length);
    this.#change(upper);
    this.#change(lower);
  }

  joined(upper: number, lower: number): void {
    const above = this.#blocks[upper]!;
    const blocks = this.#blocks[lower]!;
    const isStored = above.stored === above.keys.length;
    // what lies behind is found again, or not, with what lies before
    if (!isStored) this.#unstore(blocks, 0, 'evicted');
    this.#blocks[lower] = { keys: above.keys.concat(blocks.keys), stored: above.stored + blocks.stored };
    this.#forget(upper);
    this.#change(lower);
  }

  backed(leaf: number): void {
    this.#change(leaf);
  }

  #change(node: number, reason?: DropReason): void {
    const isRoot = this.#texts.tree.isRoot(node);
    if (!isRoot && (reason !== undefined || !this.#changed.has(node))) this.#changed.set(node, reason ?? 'evicted');
    if (this.#hasTold) return;
    this.#hasTold = true;
    this.#options.onChange?.();
  }

  #forget(node: number): void {
    this.#blocks[node] = undefined;
    this.#changed.delete(node);
  }

  /** Nodes above whose last tokens lie in the same row as the first of `node`. */
  #changeAbove(node: number, reason: DropReason): void {
    const { tree, ledger } = this.#texts;
    const { parent, from, to } = tree.nodes;
    for (let above = parent[node]!; !tree.isRoot(above); above = parent[above]!) {
      const whole = ledger.wholeRows(to[above]!);
      if (ledger.rowsFor(to[above]!) === whole) return;
      if (!this.#changed.has(above)) this.#changed.set(above, reason);
      if (ledger.wholeRows(from[above]!) < whole) return;
    }
  }

  /** Reports what of the node's blocks can be found and could not, or the other way. */
  #compare(node: number, reason: DropReason, stored: StoredRun[]): void {
    const { from } = this.#texts.tree.nodes;
    const blocks = this.#blocks[node]!;
    const found = Math.max(0, this.#blocksIn(node, this.#foundTokens(node)));
    if (found < blocks.stored) this.#unstore(blocks, found, reason);
    if (found <= blocks.stored) return;
    const { blockTokens, includesTokens = false } = this.#options;
    const keys = blocks.keys.slice(blocks.stored, found);
    const start = (this.#wholeBlocks(from[node]!) + blocks.stored) * blockTokens;
    blocks.stored = found;
    this.#count += keys.length;
    stored.push({
      domain: this.#texts.roots.domainOf(node), parent: start === 0 ? undefined : this.#keyBefore(node, start), keys,
      from: start,
      tokens: includesTokens ? this.#copy(node, start, keys.length * blockTokens) : undefined,
    });
  }

  /** Tokens of the text up to the node's end that a match finds: all but, possibly, those that do not fill a row. */
  #foundTokens(node: number): number {
    const { tree, ledger } = this.#texts;
    const to = tree.nodes.to[node]!;
    const whole = ledger.wholeRows(to);
    const isFound = ledger.rowsFor(to) === whole || ledger.partialNode(node, to) >= 0;
    return isFound ? to : ledger.tokensIn(whole);
  }

  #unstore(blocks: NodeBlocks, kept: number, reason: DropReason): void {
    if (blocks.stored <= kept) return;
    const keys = blocks.keys.slice(kept, blocks.stored);
    const removed = this.#removed.get(reason);
    if (removed === undefined) this.#removed.set(reason, keys);
    else for (const key of keys) removed.push(key);
    this.#count -= keys.length;
    blocks.stored = kept;
  }

  /** The key of the block that ends at token `end` of the text of `node`; that of its domain for 0. */
  #keyBefore(node: number, end: number): BlockKey {
    const { nodes } = this.#texts.tree;
    if (end === 0) return domainKey(this.#texts.roots.domainOf(node));
    let above = node;
    while (nodes.from[above]! >= end) above = nodes.parent[above]!;
    return this.#blocks[above]!.keys[this.#blocksIn(above, end) - 1]!;
  }

  #copy(node: number, start: number, count: number): Int32Array {
    const text = new Int32Array(count);
    this.#texts.tree.copyPath(node, start, start + count, text, 0);
    return text;
  }

  /** Blocks that end in the node at token `end` of the text or before. */
  #blocksIn(node: number, end: number): number {
    return this.#wholeBlocks(end) - this.#wholeBlocks(this.#texts.tree.nodes.from[node]!);
  }

  #wholeBlocks(tokens: number): number {
    return Math.floor(tokens / this.#options.blockTokens);
  }
}
