// Memory plan: the numbers `vkv plan` answers with, for one layout, page size and (when asked) length and memory. Pure;
// the names are those of `--json` and stay stable within a major version.

import { createError } from '../base/errors.js';
import { computeLayout, type Layout, type LayoutKind, type LayoutOptions } from '../layout/layout.js';

/** What can be reserved of the 128 TiB of addresses that x86-64 and arm64 usually give a process, in whole powers of two. */
export const usualAddressBytes = 64 * 2 ** 40;

export interface MemoryPlan {
  readonly layout: LayoutKind;
  readonly pageBytes: number;
  readonly slots: number;
  readonly maxTokens: number;
  readonly tensors: number;
  /** One token in one tensor; the largest where tensors differ. */
  readonly tokenBytes: number;
  /** One token in all tensors together. */
  readonly totalTokenBytes: number;
  /** In one reservation, the one of the largest tokens where they differ; so are the next two. */
  readonly slotBytes: number;
  readonly slotStrideBytes: number;
  readonly reservationBytes: number;
  readonly reservations: number;
  readonly virtualBytes: number;
  /** Whether a process on the usual Linux can reserve so many addresses, 64 TiB; `vkv info` says it of this machine. */
  readonly isReservable: boolean;
  /** Possibly a fraction, also below 1. */
  readonly tokensPerRow: number;
  readonly pagesPerRow: number;
  readonly rowBytes: number;
  /** Rows of a slot that is full. */
  readonly rowsPerSlot: number;
  /** One sequence of so many tokens. */
  readonly sequence?: undefined | SequencePlan;
  /** What fits into so much memory. */
  readonly memory?: undefined | MemoryFit;
}

export interface SequencePlan {
  readonly tokens: number;
  readonly rows: number;
  readonly pages: number;
  readonly physicalBytes: number;
  /** Mapped and not yet used. */
  readonly unusedBytes: number;
}

export interface MemoryFit {
  readonly memoryBytes: number;
  readonly rowsThatFit: number;
  /** Sequences of `--tokens` tokens, else of `maxTokens`, by memory alone: `slots` may be fewer. */
  readonly sequencesThatFit: number;
}

export interface PlanQuestion {
  readonly tokens?: number | undefined;
  readonly memoryBytes?: number | undefined;
}

/** Throws what `computeLayout` throws, and KV_LENGTH_OUT_OF_RANGE when `tokens` do not fit in a slot. */
export function planMemory(options: LayoutOptions, question: PlanQuestion = {}): MemoryPlan {
  const layout = computeLayout(options);
  const { kind, pageBytes, slots, maxTokens, tensors, reservations } = layout;
  const { tokens, memoryBytes } = question;
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
    memory: memoryBytes === undefined ? undefined : fitMemory(layout, memoryBytes, tokens ?? maxTokens),
  };
}

/** The plan as `--json` prints it: everything on one level. */
export function flattenPlan({ sequence, memory, ...plan }: MemoryPlan): Record<string, unknown> {
  return { ...plan, ...sequence, ...memory };
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
