// BlockKeys: name a block of K and V, with everything before it, in stores outside this process: a disk, another
// machine, an object store. Collision-resistant, so that a store may trust a key it finds; the same in every process
// and under every layout and page size. It hides nothing that can be guessed: to keep others from
// finding a tenant's text by trying, give it a salt that cannot be guessed.
//
// Version 1. All numbers are 32-bit words, least significant byte first; strings, domains and blocks as in
// prefix/router/block-keys.ts.
//
//   root   SHA-256 of: the string "virtual-kv external key", 1, the tensors of this worker (their number; of each its
//   layer,
//          role, heads, dim and dtype), the domain, the tokens of a block
//   key    SHA-256 of: the key of the block before (the root for the first), the block
//
// What is not in it: which share of the heads this worker has (`parallel.tensor` workers have equal shapes) and whose
// weights computed K and V. What names a store's blocks besides says both (cache-tiers.ts); users of `externalKeys`
// have a namespace for it.

import { createHash } from 'node:crypto';

import type { TensorSpec } from '../base/dtypes.js';
import { domainParts, type PrefixDomainParts } from '../prefix/domain.js';
import type { ItemNames } from '../prefix/prompt-encoder.js';
import { KeyWords } from '../prefix/router/block-keys.js';

const magic = 'virtual-kv external key';
const version = 1;

export class BlockKeys {
  /** Tokens of a whole block. */
  readonly blockTokens: number;
  readonly #tensors: readonly TensorSpec[];
  readonly #words = new KeyWords();

  /** @param tensors Those of this worker, in layer order. */
  constructor(tensors: readonly TensorSpec[], blockTokens: number) {
    this.#tensors = tensors;
    this.blockTokens = blockTokens;
  }

  /** What the first blocks of a domain have as their parent: 64 hexadecimal digits, as every key. */
  root(domain: PrefixDomainParts): string {
    const words = this.#words.clear().addString(magic).add(version).add(this.#tensors.length);
    for (const { layer, role, heads, dim, dtype } of this.#tensors) {
      words.add(layer).addString(role).add(heads).add(dim).addString(dtype);
    }
    return createHash('sha256').update(bytesOf(words.addDomain(domain).add(this.blockTokens))).digest('hex');
  }

  /** The key of text[start, start + count), a block behind that of `parent`. `names`: of the items in the text. */
  key(parent: string, text: Int32Array, start: number, count: number, names: ItemNames | undefined): string {
    const block = bytesOf(this.#words.clear().addBlock(text, start, count, names));
    return createHash('sha256').update(parent, 'hex').update(block).digest('hex');
  }

  /** The keys of all whole blocks of a text. */
  ofText(domain: PrefixDomainParts, text: Int32Array, names: ItemNames | undefined): string[] {
    const keys: string[] = [];
    let parent = this.root(domain);
    for (let start = 0; start + this.blockTokens <= text.length; start += this.blockTokens) {
      parent = this.key(parent, text, start, this.blockTokens, names);
      keys.push(parent);
    }
    return keys;
  }
}

/** All machines of this package are little-endian. */
function bytesOf({ words, count }: KeyWords): Uint8Array {
  return new Uint8Array(words.buffer, 0, 4 * count);
}

// BlockNotes: the items (images, sounds, embeddings) in the tokens of a stored block, by their names, which are the
// same in every process. In a text of this process an item is a number below 0 that stands for it here and now. Of a
// text's first block they tell its domain, too.

/** As `ItemNames`, and the other way. */
export interface ItemNumbers extends ItemNames {
  /** The number of the item with this name; a new one where it has none. */
  numberOf(name: string): number;
}

/** A run of positions that an item covers: where in the block, how many, 1 where the item starts there, its name. */
type Run = readonly [at: number, length: number, isStart: 0 | 1, name: string];

const none = new Uint8Array(0);

/**
 * Tokens for a record, 0 where an item is, and its notes. Undefined: an item has been forgotten, and the block names
 * nothing any more. `marks`: of a text's first block.
 */
export function toRecord(
  tokens: Int32Array, names: ItemNames, marks?: DomainMarks,
): { tokens: Int32Array; notes: Uint8Array } | undefined {
  const write = (items: readonly Run[]): Uint8Array =>
    (marks === undefined && items.length === 0
      ? none
      : new TextEncoder().encode(JSON.stringify(marks === undefined ? items : { items, domain: marks })));
  if (tokens.every((token) => token >= 0)) return { tokens, notes: write([]) };
  const runs: Run[] = [];
  const plain = tokens.slice();
  for (let at = 0; at < tokens.length;) {
    const token = tokens[at]!;
    if (token >= 0) {
      at += 1;
      continue;
    }
    const number = (-1 - token) >> 1;
    const name = names.nameOf(number);
    if (name === undefined) return undefined;
    let end = at + 1;
    while (end < tokens.length && tokens[end] === -2 * number - 2) end += 1;
    runs.push([at, end - at, (token & 1) !== 0 ? 1 : 0, name]);
    plain.fill(0, at, end);
    at = end;
  }
  return { tokens: plain, notes: write(runs) };
}

/**
 * The tokens of a record as texts of this process have them, and whose text it is, where that is told. Undefined: the
 * notes are not ours.
 */
export function fromRecord(
  tokens: Int32Array, notes: Uint8Array, numbers: ItemNumbers,
): { text: Int32Array; marks: DomainMarks | undefined } | undefined {
  const text = tokens.slice();
  if (notes.length === 0) return { text, marks: undefined };
  const { items, marks } = readNotes(notes) ?? { items: [undefined], marks: undefined };
  for (const run of items) {
    if (!isRun(run, tokens.length)) return undefined;
    const [at, length, isStart, name] = run;
    const number = numbers.numberOf(name);
    text.fill(-2 * number - 2, at, at + length);
    if (isStart === 1) text[at] = -2 * number - 1;
  }
  return { text, marks };
}

function readNotes(
  notes: Uint8Array,
): { readonly items: readonly unknown[]; readonly marks: DomainMarks | undefined } | undefined {
  try {
    const read: unknown = JSON.parse(new TextDecoder('utf-8', { fatal: true }).decode(notes));
    if (Array.isArray(read)) return { items: read, marks: undefined };
    const { items, domain } = (read ?? {}) as { readonly items?: unknown; readonly domain?: unknown };
    return Array.isArray(items) ? { items, marks: readMarks(domain) } : undefined;
  } catch { // another program's, or damaged
    return undefined;
  }
}

function isRun(run: unknown, tokens: number): run is Run {
  if (!Array.isArray(run) || run.length !== 4) return false;
  const [at, length, isStart, name] = run as unknown[];
  return Number.isSafeInteger(at) && Number.isSafeInteger(length) && (at as number) >= 0 && (length as number) >= 1 &&
    (at as number) + (length as number) <= tokens && (isStart === 0 || isStart === 1) && typeof name === 'string';
}

// DomainMarks: what a tier's records tell of whose text they have, so that text of a tenant or an adapter is found for
// dropping also after a restart. Marks are parts of hashes: they hide a name as far as it cannot be guessed, as keys
// do.

/** For namespace, tenant, salt and adapter, in this order: 16 hexadecimal digits; empty: it has none. */
export type DomainMarks = readonly string[];

export function marksOf(domain: PrefixDomainParts): DomainMarks {
  return domainParts.map((part) => (domain[part] === undefined ? '' : markOf(domain[part])));
}

/** Whether text with these marks may be of a domain that has all the given parts: also where nothing is known of it. */
export function mayHave(marks: DomainMarks | undefined, parts: PrefixDomainParts): boolean {
  return marks === undefined
    || domainParts.every((part, index) => parts[part] === undefined || marks[index] === markOf(parts[part]));
}

/** Undefined: no marks. */
export function readMarks(value: unknown): DomainMarks | undefined {
  return Array.isArray(value) && value.length === domainParts.length && value.every((mark) => typeof mark === 'string')
    ? value as string[]
    : undefined;
}

function markOf(name: string): string {
  return createHash('sha256').update('virtual-kv domain mark').update(name, 'utf16le').digest('hex').slice(0, 16);
}
