// Memory plan: the numbers of `vkv plan` for one layout and page size, and optionally one length and memory, of the whole model and of
// each of its layer sets. Pure; the names are those of `--json`, stable within a major version.

import { mostRowTokens } from '../layout/set-layout.js';
import {
  computeLayout, layoutKinds, type DriverKind, type LayerSetLayout, type Layout, type LayoutKind, type LayoutOptions, type LayoutReason,
} from '../index.js';

/** The largest power of two that can be reserved of the 128 TiB of addresses that x86-64 and arm64 usually give a process. */
export const usualAddressBytes = 64 * 2 ** 40;

/** Numbers of rows, and of a slot, are of `sets[0]`: the set of full attention, where there is one. */
export interface MemoryPlan {
  readonly layout: LayoutKind;
  readonly pageBytes: number;
  readonly slots: number;
  readonly maxTokens: number;
  readonly tensors: number;
  /** Bytes of one token in one tensor; of the largest where tensors differ. */
  readonly tokenBytes: number;
  /** Bytes of one token in all tensors together. */
  readonly totalTokenBytes: number;
  /** Bytes of a slot in one reservation; this and the next two are of the reservation with the largest tokens. */
  readonly slotBytes: number;
  readonly slotStrideBytes: number;
  readonly reservationBytes: number;
  readonly reservations: number;
  readonly virtualBytes: number;
  /** Whether `virtualBytes` is at most the 64 TiB that a process can usually reserve; `vkv info` measures this machine. */
  readonly isReservable: boolean;
  /** Possibly a fraction, also below 1. */
  readonly tokensPerRow: number;
  readonly pagesPerRow: number;
  readonly rowBytes: number;
  /** Rows of a full slot. */
  readonly rowsPerSlot: number;
  /** New tokens of a sequence in a pass, for which `mostRows` and the sequence are counted. */
  readonly passTokens: number;
  /** The layer sets whose tokens have rows; one of all layers, as a rule. */
  readonly sets: readonly SetPlan[];
  /** Those that do not grow with a sequence. */
  readonly constantSets: readonly ConstantSetPlan[];
  /** What one sequence of `tokens` tokens takes. */
  readonly sequence?: undefined | SequencePlan;
  /** What fits into `memoryBytes`. */
  readonly memory?: undefined | MemoryFit;
  /** What `probeHeads` cost. */
  readonly probes?: undefined | ProbesPlan;
}

/** Keys of some heads that are stored a second time below the device (docs/importance.md). */
export interface ProbesPlan {
  /** Of a layer; 0: MLA has none. */
  readonly heads: number;
  /** Of a layer, of the largest where layers differ. */
  readonly kvHeads: number;
  /** Their bytes as a share of those of K and V. */
  readonly share: number;
  /** Selecting so many of the tokens and reading the probes of all reads as much as loading all. */
  readonly breakEvenRatio: number;
  /** The same with half of that; below 0: the probes alone are more. */
  readonly halfRatio: number;
}

/** What `layout: 'auto'` chooses for the layers that keep every token, and the rows of each layout. */
export interface AutoPlan {
  readonly driverKind: DriverKind;
  readonly layout: LayoutKind;
  readonly layoutReason: LayoutReason;
  /** Most of `rowTokens`. */
  readonly mostTokens: number;
  readonly rows: readonly AutoRows[];
}

/** Rows of one layout that `auto` chooses from. */
export interface AutoRows {
  readonly layout: LayoutKind;
  /** Tokens of a row, possibly a fraction. */
  readonly rowTokens: number;
  readonly rowBytes: number;
  /** The first rows of all slots. */
  readonly firstRowsBytes: number;
}

/** One layer set with rows. */
export interface SetPlan {
  readonly kind: LayerSetLayout['kind'];
  readonly layers: number;
  /** Tokens of a window or chunk. */
  readonly keptTokens?: number | undefined;
  readonly layout: LayoutKind;
  readonly layoutReason: LayoutReason;
  /** Bytes of one token in all layers of the set. */
  readonly tokenBytes: number;
  readonly tokensPerRow: number;
  readonly pagesPerRow: number;
  readonly rowBytes: number;
  /** Most rows of a sequence, however long. */
  readonly mostRows: number;
  /** mostRows in bytes. */
  readonly mostBytes: number;
  /** Bytes of the window's or chunk's tokens, without what rows are rounded up by. */
  readonly keptBytes?: number | undefined;
}

/** One layer set without rows. */
export interface ConstantSetPlan {
  readonly kind: 'state' | 'fixed' | 'shared';
  readonly layers: number;
  /** Copies that a sequence has. */
  readonly faces: number;
  readonly faceBytes: number;
  readonly facePages: number;
}

export interface SequencePlan {
  readonly tokens: number;
  /** Of `sets[0]`: at most so many on the way to this length. */
  readonly rows: number;
  /** Of all sets, each with its most rows, and of all faces. */
  readonly pages: number;
  readonly physicalBytes: number;
  /** Bytes mapped and not yet used. */
  readonly unusedBytes: number;
}

export interface MemoryFit {
  readonly memoryBytes: number;
  readonly rowsThatFit: number;
  /** Sequences of `--tokens` tokens, otherwise of `maxTokens`, by memory alone: `slots` may be fewer; `slots` where one takes none. */
  readonly sequencesThatFit: number;
}

export interface PlanQuestion {
  readonly tokens?: number | undefined;
  /** Default 1: decoding. */
  readonly passTokens?: number | undefined;
  readonly memoryBytes?: number | undefined;
  readonly probeHeads?: number | undefined;
}

/** Computes a plan. Throws what `computeLayout` throws, and KV_LENGTH_OUT_OF_RANGE when `tokens` do not fit in a slot. */
export function planMemory(options: LayoutOptions, question: PlanQuestion = {}): MemoryPlan {
  const layout = computeLayout({ ...options, memoryBudgetBytes: question.memoryBytes });
  const { kind, pageBytes, slots, maxTokens, tensors, reservations } = layout;
  const { tokens, passTokens = 1, memoryBytes, probeHeads } = question;
  const largest = reservations.slice(0, layout.sets[0]!.reservations.count)
    .reduce((most, reservation) => (reservation.tokenBytes > most.tokenBytes ? reservation : most));
  return {
    layout: kind, pageBytes, slots, maxTokens,
    tensors: tensors.length,
    tokenBytes: tensors.reduce((most, { tokenBytes }) => Math.max(most, tokenBytes), 0),
    totalTokenBytes: layout.sets.reduce((sum, set) => sum + set.usedBytes(1), 0),
    slotBytes: largest.slotBytes,
    slotStrideBytes: largest.slotStrideBytes,
    reservationBytes: largest.bytes,
    reservations: reservations.length,
    virtualBytes: layout.virtualBytes,
    isReservable: layout.virtualBytes <= usualAddressBytes,
    tokensPerRow: layout.tokensPerRow,
    pagesPerRow: layout.pagesPerRow,
    rowBytes: layout.rowBytes,
    rowsPerSlot: layout.maxRows, passTokens,
    sets: layout.sets.map((set) => planSet(set, maxTokens, passTokens)),
    constantSets: layout.constantSets.map(({ kind, layers, faces, faceBytes, facePages }) =>
      ({ kind, layers: layers.length, faces, faceBytes, facePages })),
    sequence: tokens === undefined ? undefined : planSequence(layout, tokens, passTokens),
    probes: probeHeads === undefined ? undefined : planProbes(layout, probeHeads),
    memory: memoryBytes === undefined ? undefined : fitMemory(layout, memoryBytes, tokens ?? maxTokens, passTokens),
  };
}

/** What `auto` chooses; undefined where no layer keeps every token. Throws what `computeLayout` throws. */
export function planAuto(options: LayoutOptions, { memoryBytes }: PlanQuestion = {}): AutoPlan | undefined {
  const setIn = (layout: LayoutOptions['layout']): LayerSetLayout =>
    computeLayout({ ...options, layout, memoryBudgetBytes: memoryBytes }).sets[0]!;
  const { kind, layout, layoutReason } = setIn('auto');
  if (kind !== 'full') return undefined;
  const { driverKind = 'host' } = options;
  const rows = layoutKinds.map((layout) => {
    const { tokensPerRow: rowTokens, rowBytes } = setIn(layout);
    return { layout, rowTokens, rowBytes, firstRowsBytes: options.slots * rowBytes };
  });
  return { driverKind, layout, layoutReason, mostTokens: mostRowTokens(driverKind, options.maxTokens), rows };
}

/** The plan as `--json` prints it: flat. */
export function flattenPlan({ sequence, memory, probes, ...plan }: MemoryPlan): Record<string, unknown> {
  return { ...plan, ...sequence, ...memory, ...probes === undefined ? {} : { probes } };
}

function planProbes({ tensors }: Layout, probeHeads: number): ProbesPlan {
  const keys = tensors.filter(({ role }) => role === 'key');
  const bytes = keys.reduce((sum, { heads, tokenBytes }) => sum + (tokenBytes / heads) * Math.min(probeHeads, heads), 0);
  const share = bytes / tensors.reduce((sum, { tokenBytes }) => sum + tokenBytes, 0);
  const kvHeads = Math.max(0, ...keys.map(({ heads }) => heads));
  return { heads: Math.min(probeHeads, kvHeads), kvHeads, share, breakEvenRatio: 1 - share, halfRatio: 0.5 - share };
}

function planSet(set: LayerSetLayout, maxTokens: number, passTokens: number): SetPlan {
  const { kind, layout, layoutReason, tokensPerRow, pagesPerRow, rowBytes } = set;
  const keptTokens = set.windowTokens ?? set.chunkTokens;
  const mostRows = set.mostRows(passTokens);
  return {
    kind, layers: set.layers.length, keptTokens, layout, layoutReason, tokenBytes: set.usedBytes(1), tokensPerRow, pagesPerRow, rowBytes,
    mostRows, mostBytes: mostRows * rowBytes,
    keptBytes: keptTokens === undefined ? undefined : set.usedBytes(Math.min(keptTokens, maxTokens)),
  };
}

/** Windows hold their most rows on the way, states all their faces. */
function planSequence(layout: Layout, tokens: number, passTokens: number): SequencePlan {
  const rowsOf = (set: LayerSetLayout): number => Math.min(set.rowsFor(tokens), set.mostRows(passTokens));
  const rows = rowsOf(layout.sets[0]!);
  let [pages, usedBytes] = [0, 0];
  for (const set of layout.sets) {
    const kept = set.windowTokens ?? set.chunkTokens ?? tokens;
    pages += set.pagesFor(rowsOf(set));
    usedBytes += set.usedBytes(Math.min(tokens, kept));
  }
  for (const { faces, faceBytes, facePages } of layout.constantSets) {
    pages += faces * facePages;
    usedBytes += faces * faceBytes;
  }
  const physicalBytes = pages * layout.pageBytes;
  return { tokens, rows, pages, physicalBytes, unusedBytes: physicalBytes - usedBytes };
}

function fitMemory(layout: Layout, memoryBytes: number, tokens: number, passTokens: number): MemoryFit {
  const { pages } = planSequence(layout, tokens, passTokens);
  const pagesThatFit = Math.floor(memoryBytes / layout.pageBytes);
  return {
    memoryBytes,
    rowsThatFit: Math.floor(memoryBytes / layout.rowBytes),
    sequencesThatFit: pages === 0 ? layout.slots : Math.floor(pagesThatFit / pages),
  };
}
