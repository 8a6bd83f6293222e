// Memory plan: the numbers of `vkv plan` for one layout and page size, and optionally one length and memory. Pure; the names are
// those of `--json`, stable within a major version.

import { createError } from '../base/errors.js';
import { computeLayout, type Layout, type LayoutKind, type LayoutOptions } from '../index.js';

/** The largest power of two that can be reserved of the 128 TiB of addresses that x86-64 and arm64 usually give a process. */
export const usualAddressBytes = 64 * 2 ** 40;

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

export interface SequencePlan {
  readonly tokens: number;
  readonly rows: number;
  readonly pages: number;
  readonly physicalBytes: number;
  /** Bytes mapped and not yet used. */
  readonly unusedBytes: number;
}

export interface MemoryFit {
  readonly memoryBytes: number;
  readonly rowsThatFit: number;
  /** Sequences of `--tokens` tokens, otherwise of `maxTokens`, by memory alone: `slots` may be fewer. */
  readonly sequencesThatFit: number;
}

export interface PlanQuestion {
  readonly tokens?: number | undefined;
  readonly memoryBytes?: number | undefined;
  readonly probeHeads?: number | undefined;
}

/** Computes a plan. Throws what `computeLayout` throws, and KV_LENGTH_OUT_OF_RANGE when `tokens` do not fit in a slot. */
export function planMemory(options: LayoutOptions, question: PlanQuestion = {}): MemoryPlan {
  const layout = computeLayout(options);
  const { kind, pageBytes, slots, maxTokens, tensors, reservations } = layout;
  const { tokens, memoryBytes, probeHeads } = question;
  const largest = reservations.find(({ tokenBytes }) => tokenBytes === layout.maxTokenBytes);
  if (largest === undefined) throw createError('KV_INTERNAL', { problem: 'a layout has no reservation' });
  return {
    layout: kind, pageBytes, slots, maxTokens,
    tensors: tensors.length,
    tokenBytes: Math.max(...tensors.map(({ tokenBytes }) => tokenBytes)),
    totalTokenBytes: layout.usedBytes(1),
    slotBytes: largest.slotBytes,
    slotStrideBytes: largest.slotStrideBytes,
    reservationBytes: largest.bytes,
    reservations: reservations.length,
    virtualBytes: layout.virtualBytes,
    isReservable: layout.virtualBytes <= usualAddressBytes,
    tokensPerRow: layout.tokensPerRow,
    pagesPerRow: layout.pagesPerRow,
    rowBytes: layout.rowBytes,
    rowsPerSlot: layout.maxRows,
    sequence: tokens === undefined ? undefined : planSequence(layout, tokens),
    probes: probeHeads === undefined ? undefined : planProbes(layout, probeHeads),
    memory: memoryBytes === undefined ? undefined : fitMemory(layout, memoryBytes, tokens ?? maxTokens),
  };
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

function planSequence(layout: Layout, tokens: number): SequencePlan {
  const rows = layout.rowsFor(tokens);
  const pages = layout.pagesFor(rows);
  const physicalBytes = pages * layout.pageBytes;
  return { tokens, rows, pages, physicalBytes, unusedBytes: physicalBytes - layout.usedBytes(tokens) };
}

function fitMemory(layout: Layout, memoryBytes: number, tokens: number): MemoryFit {
  const { pages } = planSequence(layout, tokens);
  const pagesThatFit = Math.floor(memoryBytes / layout.pageBytes);
  return {
    memoryBytes,
    rowsThatFit: Math.floor(memoryBytes / layout.rowBytes),
    sequencesThatFit: Math.floor(pagesThatFit / pages),
  };
}
