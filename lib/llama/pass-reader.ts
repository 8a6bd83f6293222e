// LlamaPass: a pass as an engine is given it. Reading one: each member once, each number of each sequence, and the rows that it brings, before anything is
// computed. What it costs is by the sequence, not by the token. Keeps nothing.

import { createError } from '../base/errors.js';
import { formatNumber } from '../base/format.js';
import { abortSignal, checkInteger, optional, readArray, type FieldPlace } from '../base/options.js';
import { floatsOf, isArray, isFloat32Array, isInt32Array, lengthOf, typedArrayKind } from '../base/typed-arrays.js';
import { Batch, Sequence } from '../index.js';
import type { GivenRows } from './engine-options.js';

/** What a pass computes; index: the sequence. The first `length` entries count. As the package's EnginePass. */
export interface LlamaPass {
  /** Sequences in it, 1 or more. */
  readonly length: number;
  /** Slots of the cache. */
  readonly slots: Int32Array;
  /** Tokens that the slot holds. */
  readonly positions: Int32Array;
  /** New tokens, 1 or more. */
  readonly tokenCounts: Int32Array;
  /** New tokens of all sequences, one sequence after the other. */
  readonly tokens: Int32Array;
  /** 1 when the logits of the last new token are read. */
  readonly wantsLogits: Uint8Array;
  /** A list of GivenRows of each sequence, or undefined: embeddings [token, hidden size] in the place of its tokens'. Default: none. */
  readonly inputs?: readonly unknown[] | undefined;
  /** The lease of each slot: needed where one holds selected tokens (`isLossy`). Default: none does. */
  readonly sequences?: readonly (Sequence | undefined)[] | undefined;
  /**
   * Gives the pass up: it does not count, and rejects with KV_ABORTED once nothing of it runs. On host the commands that have not begun are
   * dropped, between layers and within one; on a device what is queued runs to its end. Of a pass that blocks it is read before the first. Default: none.
   */
  readonly signal?: AbortSignal | undefined;
}

/** What bounds a pass. */
export interface PassLimits {
  /** Slots of the cache. */
  readonly slots: number;
  /** Tokens that a slot has addresses for. */
  readonly maxTokens: number;
  /** Floats of a given row: the model's hidden size. */
  readonly width: number;
}

/**
 * The same pass, whose members change no more; without `inputs` where no sequence has any, and without `sequences` where none holds selected tokens. `owner`: the method that was called. Throws
 * KV_INVALID_OPTION, which names what is wrong, and KV_LENGTH_OUT_OF_RANGE for a sequence that would outgrow its slot.
 */
export function readPass(owner: string, given: LlamaPass, { slots: mostSlots, maxTokens, width }: PassLimits): LlamaPass {
  const place = { owner, option: 'pass' };
  if (typeof given !== 'object' || (given as object | null) === null || isArray(given)) throw wrong('type', place, 'a pass: an object', given);
  if (given instanceof Batch) throw wrong('type', place, 'a pass: an object', given);
  const { length, slots, positions, tokenCounts, tokens, wantsLogits, inputs, sequences, signal } = given;
  checkInteger(owner, 'pass.length', length, 1, mostSlots);
  checkNumbers(owner, 'slots', slots, length);
  checkNumbers(owner, 'positions', positions, length);
  checkNumbers(owner, 'tokenCounts', tokenCounts, length);
  let rows = 0;
  for (let index = 0; index < length; index += 1) {
    checkElement(owner, 'slots', slots, index, 0, mostSlots - 1);
    checkElement(owner, 'positions', positions, index, 0, maxTokens);
    checkElement(owner, 'tokenCounts', tokenCounts, index, 1, maxTokens);
    const end = positions[index]! + tokenCounts[index]!;
    if (end > maxTokens) throw createError('KV_LENGTH_OUT_OF_RANGE', { slot: slots[index]!, tokens: end, maxTokens });
    rows += tokenCounts[index]!;
  }
  checkNumbers(owner, 'tokens', tokens, rows);
  if (typedArrayKind(wantsLogits) !== 'Uint8Array') throw wrong('type', { owner, option: 'pass.wantsLogits' }, 'a Uint8Array', wantsLogits);
  checkInteger(owner, 'pass.wantsLogits.length', lengthOf(wantsLogits), length);
  optional(abortSignal)(signal, { owner, option: 'pass.signal' });
  return {
    length, slots, positions, tokenCounts, tokens, wantsLogits, signal,
    inputs: readInputs(owner, inputs, length, maxTokens, width), sequences: readSequences(owner, sequences, length),
  };
}

/** The leases; undefined where none holds selected tokens. */
function readSequences(owner: string, sequences: unknown, length: number): readonly (Sequence | undefined)[] | undefined {
  if (sequences === undefined) return undefined;
  const place = { owner, option: 'pass.sequences' };
  if (!isArray(sequences)) throw wrong('type', place, 'an array of sequences', sequences);
  const read = Array.from({ length }, (_, index) => sequences[index]);
  let hasSelection = false;
  read.forEach((sequence, index) => {
    if (sequence === undefined) return;
    if (!Sequence.isInstance(sequence)) throw wrong('type', { owner, option: `pass.sequences[${index}]` }, 'a Sequence, or undefined', sequence);
    hasSelection ||= sequence.selection !== undefined;
  });
  return hasSelection ? read as readonly (Sequence | undefined)[] : undefined;
}

/** The rows of each sequence; undefined where none has any. */
function readInputs(owner: string, inputs: unknown, length: number, maxTokens: number, width: number): readonly (readonly GivenRows[] | undefined)[] | undefined {
  if (inputs === undefined) return undefined;
  const place = { owner, option: 'pass.inputs' };
  if (!isArray(inputs)) throw wrong('type', place, 'an array with a list of rows, or undefined, for each sequence', inputs);
  let read: (readonly GivenRows[] | undefined)[] | undefined;
  for (let index = 0; index < length; index += 1) {
    const input = inputs[index];
    if (input === undefined || input === null) continue;
    read ??= new Array<undefined>(length).fill(undefined);
    const own = { owner, option: `pass.inputs[${index}]` };
    read[index] = readArray(input, own, (rows, at) => readRows(rows, { owner, option: `${own.option}[${at}]` }, maxTokens, width));
  }
  return read;
}

function readRows(given: unknown, place: FieldPlace, maxTokens: number, width: number): GivenRows {
  const { owner, option } = place;
  if (typeof given !== 'object' || given === null) throw wrong('type', place, 'rows: `{ at, rows }`', given);
  const { at } = given as Partial<GivenRows>;
  checkInteger(owner, `${option}.at`, at, 0, maxTokens - 1);
  const { rows } = given as Partial<GivenRows>;
  const own = { owner, option: `${option}.rows` };
  const expected = `a Float32Array of whole rows of ${formatNumber(width)} floats, the model's hidden size`;
  if (!isFloat32Array(rows)) throw wrong('type', own, expected, rows);
  const floats = lengthOf(rows);
  if (floats === 0 || floats % width !== 0) throw wrong('range', own, expected, `one of ${formatNumber(floats)}`);
  checkInteger(owner, `${own.option}.length`, floats, width, (maxTokens - at) * width);
  return { at, rows: floatsOf(rows, 0, floats) };
}

function checkNumbers(owner: string, name: string, numbers: unknown, elements: number): void {
  if (!isInt32Array(numbers)) throw wrong('type', { owner, option: `pass.${name}` }, 'an Int32Array', numbers);
  const length = lengthOf(numbers);
  if (length < elements) checkInteger(owner, `pass.${name}.length`, length, elements);
}

function checkElement(owner: string, name: string, numbers: Int32Array, index: number, min: number, max: number): void {
  const number = numbers[index]!;
  if (number < min || number > max) checkInteger(owner, `pass.${name}[${index}]`, number, min, max);
}

function wrong(reason: 'type' | 'range', place: FieldPlace, expected: string, received: unknown): Error {
  return createError('KV_INVALID_OPTION', { reason, ...place, expected, received });
}
