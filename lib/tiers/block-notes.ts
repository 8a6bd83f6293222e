// BlockNotes: the items (images, sounds, embeddings) in the tokens of a stored block, by their names, which are the
// same in every process. In a text of this process an item is a number below 0 that stands for it here and now. Of a
// text's first block they tell its domain, too.

import type { ItemNames } from '../prefix/prompt-encoder.js';
import { readMarks, type DomainMarks } from './stored-texts.js';

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
