// suggestSideTensors: which outputs of an engine look like one row per token, for the `sideTensors` of a cache. It is a
// suggestion, from the shapes of some passes; a cache never discovers anything by itself. An output counts only after
// its rows followed two different numbers of tokens: a constant of 12 rows fits a prompt of 12 tokens by accident.
// Keeps shapes, never the outputs.

import { type SideDtype, sideDtypes } from '../base/dtypes.js';
import { createError } from '../base/errors.js';
import { formatCount, formatNumber, printable } from '../base/format.js';
import { checkInteger, isOptionsObject } from '../base/options.js';
import { elementsOf, isArray, lengthOf, typedArrayKind } from '../base/typed-arrays.js';

/** An output that looks like one row per token. */
export interface SuggestedSideTensor {
  /** Elements of a row. */
  readonly width: number;
  /** Type of an element. */
  readonly dtype: SideDtype;
}

/**
 * Why an output is not suggested. `scalar`, `list`, `not-a-tensor`: it has no shape · `dimensions`: not [rows, width] ·
 * `first-dimension`: its rows are not the pass's tokens · `accidental-match`: they were in one pass and not in another
 * · `width-changed`, `dtype-changed` between passes · `dtype-unknown`: not one that a cache can hold, or not said ·
 * `one-token-count`: right so far, but with one number of tokens only.
 */
export type PassThroughReason =
  | 'scalar' | 'list' | 'not-a-tensor' | 'dimensions' | 'first-dimension' | 'accidental-match'
  | 'width-changed' | 'dtype-changed' | 'dtype-unknown' | 'one-token-count';

/** An output that is passed through untouched. */
export interface PassedThrough {
  /** Why, for programs. */
  readonly reason: PassThroughReason;
  /** Why, with the numbers, for people. */
  readonly explanation: string;
}

/** What is known of one output. */
interface Observed {
  width: number;
  dtype: SideDtype | undefined;
  /** The first number of tokens that its rows followed. */
  tokens: number;
  hasFollowedTwo: boolean;
  /** Once set it stays. */
  refusal: PassedThrough | undefined;
}

const owner = 'SideTensorSuggestion.observe';

/**
 * What the outputs of some passes suggest, made by `suggestSideTensors`. Observe more passes, with other numbers of
 * tokens.
 */
export class SideTensorSuggestion {
  readonly #observed = new Map<string, Observed>();

  /**
   * Adds the outputs of a pass, by name, and the tokens that the pass has computed, at least 1: for a batch, those of
   * all its sequences. An output may be missing in a pass. Throws KV_INVALID_OPTION, and what getters of the outputs
   * throw, and has then observed nothing of the pass.
   */
  observe(outputs: Readonly<Record<string, unknown>>, tokens: number): this {
    const place = { owner, option: 'outputs' };
    if (!isOptionsObject(outputs) || typedArrayKind(outputs) !== undefined) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'type', ...place, expected: 'an object of outputs by name', received: outputs,
      });
    }
    checkInteger(owner, 'tokens', tokens, 1);
    const read = Object.keys(outputs).map((name) => [name, readOutput(outputs[name])] as const);
    for (const [name, output] of read) this.#add(name, output, tokens);
    return this;
  }

  /**
   * The outputs that look like one row per token, as the option `sideTensors` of a cache; empty until two numbers of
   * tokens were seen.
   */
  get sideTensors(): Readonly<Record<string, SuggestedSideTensor>> {
    const sure =
      [...this.#observed].filter(([, { refusal, hasFollowedTwo }]) => refusal === undefined && hasFollowedTwo);
    return Object.fromEntries(sure.map(([name, { width, dtype }]) => [name, { width, dtype: dtype! }]));
  }

  /** All other outputs, and why. */
  get passedThrough(): Readonly<Record<string, PassedThrough>> {
    const entries =
      [...this.#observed].flatMap(([name, { refusal, hasFollowedTwo, tokens }]): [string, PassedThrough][] => {
      if (refusal !== undefined) return [[name, refusal]];
      const explanation = `it was seen with ${formatCount('token', tokens)} only; observe a pass of another number`;
      return hasFollowedTwo ? [] : [[name, { reason: 'one-token-count', explanation }]];
    });
    return Object.fromEntries(entries);
  }

  #add(name: string, output: OutputTensor | OtherOutput, tokens: number): void {
    const before = this.#observed.get(name);
    if (before?.refusal !== undefined) return;
    const refusal = refusalOf(output, tokens, before);
    if (before === undefined || refusal !== undefined || output.kind !== 'tensor') {
      const { shape: [, width = 0], dtype } = output.kind === 'tensor' ? output : { shape: [], dtype: undefined };
      this.#observed.set(name, { width, dtype, tokens, hasFollowedTwo: false, refusal });
    } else if (before.tokens !== tokens) {
      before.hasFollowedTwo = true;
    }
  }
}

/**
 * What the outputs of a pass of `tokens` tokens suggest; `observe` of the result adds passes. Throws as
 * `SideTensorSuggestion.observe`.
 */
export function suggestSideTensors(outputs: Readonly<Record<string, unknown>>, tokens: number): SideTensorSuggestion {
  return new SideTensorSuggestion().observe(outputs, tokens);
}

const otherOutputs = {
  'scalar': 'it is a single value', 'list': 'it is a list; a tensor has a `shape`',
  'not-a-tensor': 'it has no `shape` that fits it',
} as const;

/** Why the output cannot be one row per token; undefined when it can, as far as `before` and this pass say. */
function refusalOf(
  output: OutputTensor | OtherOutput, tokens: number, before: Observed | undefined,
): PassedThrough | undefined {
  if (output.kind !== 'tensor') return { reason: output.kind, explanation: otherOutputs[output.kind] };
  const { shape, dtype, dtypeName } = output;
  const [rows, width] = shape;
  if (shape.length !== 2 || width === 0) {
    const sizes = shape.map((size) => formatNumber(size)).join(' × ');
    return { reason: 'dimensions', explanation: `its shape is [${sizes}], and not [tokens × width]` };
  }
  if (rows !== tokens) {
    const now = `${formatCount('row', rows!)} in a pass of ${formatCount('token', tokens)}`;
    if (before === undefined) return { reason: 'first-dimension', explanation: `it has ${now}` };
    const then = formatCount('token', before.tokens);
    return {
      reason: 'accidental-match', explanation: `it has ${now}, although it had as many rows as a pass of ${then}`,
    };
  }
  if (dtype === undefined) {
    const name = printable(dtypeName.slice(0, 40));
    return {
      reason: 'dtype-unknown',
      explanation: `no dtype of a cache is certain from '${name}'; name it as \`dtype\`, such as 'bfloat16'`,
    };
  }
  if (before !== undefined && before.width !== width) {
    return {
      reason: 'width-changed',
      explanation: `its rows have ${formatNumber(width!)} elements, and had ${formatNumber(before.width)}`,
    };
  }
  if (before !== undefined && before.dtype !== dtype) {
    return { reason: 'dtype-changed', explanation: `its elements are ${dtype}, and were ${before.dtype}` };
  }
  return undefined;
}

// OutputTensor: what an output of an engine's pass says of itself: its shape and the type of its elements. Engines in
// Node.js differ (`shape` and `dtype`, onnxruntime's `dims` and `type`, typed arrays), so this reads all of them. Never
// reads elements.

/** A tensor's shape, and its dtype where that is one that a cache can hold. */
export interface OutputTensor {
  readonly kind: 'tensor';
  readonly shape: readonly number[];
  readonly dtype: SideDtype | undefined;
  /** The dtype as the tensor names it, for messages. */
  readonly dtypeName: string;
}

/** What is no tensor. */
export interface OtherOutput {
  readonly kind: 'scalar' | 'list' | 'not-a-tensor';
}

/** More dimensions than any tensor has: a longer list is no shape. */
const mostDimensions = 16;

const shortNames: Readonly<Record<string, SideDtype>> =
  { f32: 'float32', f16: 'float16', bf16: 'bfloat16', i8: 'int8', i32: 'int32' };

const arrayDtypes: Readonly<Record<string, SideDtype>> =
  { Float32Array: 'float32', Float16Array: 'float16', Int8Array: 'int8', Int32Array: 'int32' };

/** Reads each member of `value` once. Throws what its getters throw. */
export function readOutput(value: unknown): OutputTensor | OtherOutput {
  if (typeof value === 'function') return { kind: 'not-a-tensor' };
  if (typeof value !== 'object' || value === null) return { kind: 'scalar' };
  if (isArray(value)) return { kind: 'list' };
  const { shape: named, dims, dtype, type } = value as Readonly<Record<string, unknown>>;
  const array = typedArrayKind(value);
  const length = array === undefined ? undefined : lengthOf(value as Float32Array);
  const given = named ?? dims ?? (length === undefined ? undefined : [length]);
  const shape = shapeOf(given);
  if (shape === undefined) return { kind: 'not-a-tensor' };
  if (length !== undefined && shape.reduce((product, size) => product * size, 1) !== length) {
    return { kind: 'not-a-tensor' };
  }
  return {
    kind: 'tensor', shape,
    ...dtypeOf(dtype ?? type, () => array ?? typedArrayKind((value as { readonly data?: unknown }).data)),
  };
}

/** Undefined for what is no list of sizes. */
function shapeOf(value: unknown): readonly number[] | undefined {
  const list = elementsOf(value);
  if (list === undefined || list.length > mostDimensions) return undefined;
  const shape = Array.from({ length: list.length }, (_, index) => list.elements[index]);
  return shape.every((size) => Number.isSafeInteger(size) && (size as number) >= 0) ? shape as number[] : undefined;
}

/**
 * By the name that it gives, else by the typed array of its elements, of which a Uint16Array and a Uint8Array say too
 * little.
 */
function dtypeOf(name: unknown, arrayOf: () => string | undefined): Pick<OutputTensor, 'dtype' | 'dtypeName'> {
  if (typeof name === 'string') {
    const lower = name.toLowerCase();
    const dtype =
      sideDtypes.find((one) => one === lower) ?? (Object.hasOwn(shortNames, lower) ? shortNames[lower] : undefined)
      ?? (/^f(?:loat)?8/.test(lower) ? 'float8' : undefined);
    return { dtype, dtypeName: name };
  }
  const array = arrayOf() ?? 'none';
  return { dtype: Object.hasOwn(arrayDtypes, array) ? arrayDtypes[array] : undefined, dtypeName: array };
}
