// CachePicture: what a cache looks like at one moment, for pages and terminals that watch it: each slot as runs of rows
// with their sharers, and the rows that it maps in layer sets with windows; pages by use, cached rows by age. Made only
// when it is asked for, by one crossing, from numbers that are there anyway; its size and the time it takes are bounded
// whatever the cache has. Numbers only: no text, no tokens, no tenants.

import type { PoolCounts } from '../device/page-pool.js';
import type { CachedRows } from '../cache/cached-rows.js';
import { type SlotMemory, slotStates } from '../cache/slots.js';
import type { WindowSet } from '../cache/window-sets.js';

/** Rows of a slot that follow each other and that as many slots map. */
export type PictureRun = readonly [
  /** The slot's row behind the run. */
  endRow: number,
  /** Slots that map the rows, 1 or more. */
  sharers: number,
  /**
   * Number of the run's first row, which all its sharers have in common; -1: the rows are the slot's alone.
   */
  id: number,
];

/** A slot that a sequence has, or that has rows. */
export interface PictureSlot {
  readonly slot: number;
  readonly state: 'idle' | 'active' | 'retiring';
  /** Raised at every release: the same slot with another one has another sequence. */
  readonly generation: number;
  /** Valid tokens; of an idle slot those of its last sequence. */
  readonly length: number;
  /** Tokens that a prepared batch is computing. */
  readonly prepared: number;
  /** Tokens that memory was set aside for. */
  readonly earmarked: number;
  /** Mapped rows. */
  readonly rows: number;
  readonly isQuarantined: boolean;
  /** From row 0 to `rows`, at most `maxRuns` of them. */
  readonly runs: readonly PictureRun[];
  /** Rows that the slot maps in each layer set of `windows`, in their order; empty where there are none. */
  readonly windows: readonly PictureWindow[];
}

/** Rows of a slot in a layer set with a window or chunks. */
export type PictureWindow = readonly [
  /** The first mapped row: those before it are behind the window. */
  firstRow: number,
  /** The row behind the last mapped one; as `firstRow`: none is mapped. */
  endRow: number,
];

/** A layer set that keeps the last tokens of a sequence alone. */
export interface PictureSet {
  readonly kind: 'window' | 'chunk';
  /** Its layers on this worker. */
  readonly layers: number;
  /** Tokens of a window or of a chunk. */
  readonly tokens: number;
  readonly pagesPerRow: number;
  readonly tokensPerRow: number;
  /** Mappings: a page that forks map too counts for each. */
  readonly mappedPages: number;
}

/** What `KvCache.picture` returns. */
export interface CachePicture {
  readonly layout: {
    readonly kind: string;
    /** Layers of the set of full attention, or of all where they keep the same. */
    readonly layers: number;
    readonly pageBytes: number;
    readonly pagesPerRow: number;
    /** 2⁵³ − 1 where no layer keeps all tokens: there are no rows. */
    readonly tokensPerRow: number;
    readonly maxTokens: number;
    readonly maxRows: number;
    readonly slots: number;
    readonly virtualBytes: number;
  };
  readonly pool: PoolCounts;
  /**
   * Pages of the cache's pool, each once: by running sequences, cached and in no use, and mapped under idle slots
   * without text.
   */
  readonly pages: { readonly running: number; readonly cached: number; readonly idle: number };
  readonly slots: readonly PictureSlot[];
  /** Layer sets with windows or chunks; `layout` and the runs of slots are of the full set. */
  readonly windows: readonly PictureSet[];
  /**
   * Rows of the cache pool by age: how many requests ended since their text was used last, up to `ageBounds[i]`, and
   * more.
   */
  readonly age: { readonly bounds: readonly number[]; readonly rows: readonly number[]; readonly requests: number };
}

/** Runs of a slot, at most: what is behind them counts to the last. */
export const maxRuns = 16;

/** Rows of a slot that are looked at, at most; between two of them the sharers are taken to be the same. */
const maxSamples = 256;

/**
 * Nodes of the prefix tree that are looked at, at most. Of more, every second, third, … is, and counts for those left
 * out.
 */
const maxNodes = 32_768;

/** Requests that ended since. */
const ageBounds = [1, 4, 16, 64, 256, 1_024] as const;

const stateNames = ['idle', 'active', 'retiring'] as const;

/** Draws a cache. What its mapper has mapped since the last call into the addon is not seen yet. */
export function pictureOf(memory: SlotMemory, cached: CachedRows): CachePicture {
  const { layout, slots: numbers, pool, windows } = memory;
  const { kind, pageBytes, pagesPerRow, tokensPerRow, maxTokens, maxRows, virtualBytes } = layout;
  const counts = pool.counts(); // the one crossing
  const slots: PictureSlot[] = [];
  let idlePages = 0;
  for (let slot = 0; slot < numbers.count; slot += 1) {
    const state = numbers.state[slot]!;
    const rows = numbers.rows[slot]!;
    if (state === slotStates.idle) idlePages += layout.pagesBetween(cached.registry.namedRows(slot), rows);
    // Of an idle slot no window has rows.
    if (numbers.isTransfer(slot) || (state === slotStates.idle && rows === 0)) continue;
    slots.push({
      slot, state: stateNames[state]!, generation: numbers.generation[slot]!, length: numbers.length[slot]!,
      prepared: numbers.prepared[slot]!,
      earmarked: numbers.earmarkedTokens[slot]!, rows, isQuarantined: numbers.isQuarantined[slot] === 1,
      runs: runsOf(slot, rows, cached),
      windows: windows.all.map(({ first, rows: ends }) => [first[slot]!, ends[slot]!] as const),
    });
  }
  const cachedPages = cached.registry.numbers.idlePages;
  const { rows, requests } = cached.index.rowsByAge(ageBounds, maxNodes);
  return {
    layout: {
      kind, layers: layout.sets[0]!.layers.length, pageBytes, pagesPerRow, maxTokens, maxRows, virtualBytes,
      tokensPerRow: Math.min(tokensPerRow, Number.MAX_SAFE_INTEGER), slots: numbers.sequences,
    },
    pool: counts,
    pages: { running: Math.max(0, counts.mappedPages - cachedPages - idlePages), cached: cachedPages, idle: idlePages },
    slots, windows: windows.all.map(windowOf),
    age: { bounds: ageBounds, rows, requests },
  };
}

function windowOf({ layout, first, rows }: WindowSet): PictureSet {
  const { kind, layers, windowTokens, chunkTokens, pagesPerRow, tokensPerRow } = layout;
  return {
    kind: kind === 'chunk' ? 'chunk' : 'window', layers: layers.length, tokens: windowTokens ?? chunkTokens!,
    pagesPerRow, tokensPerRow,
    mappedPages: rows.reduce((sum, end, slot) => sum + layout.pagesBetween(first[slot]!, end), 0),
  };
}

function runsOf(
  slot: number, rows: number, { registry }: CachedRows,
): PictureRun[] {
  const runs: [number, number, number][] = [];
  const put = (endRow: number, sharers: number, id: number): void => {
    const last = runs.at(-1);
    if (last !== undefined
      && (runs.length === maxRuns || (last[1] === sharers && (sharers > 1 || last[2] === id)))) last[0] = endRow;
    else runs.push([endRow, sharers, id]);
  };
  const named = registry.namedRows(slot);
  const step = Math.max(1, Math.ceil(named / maxSamples));
  const ids = named === 0 ? undefined : registry.idsOf(slot);
  for (let row = 0; row < named; row += step) {
    const id = ids![row]!;
    const sharers = registry.numbers.mappers[id]!;
    put(Math.min(named, row + step), Math.max(1, sharers), sharers > 1 ? id : -1);
  }
  if (rows > named) put(rows, 1, -1);
  return runs;
}
