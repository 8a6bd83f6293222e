// Reads options objects: rejects unknown names, checks every value and fills in defaults, before anything else happens.
// A spec lists one `Field` per option; fields are plain functions, so a module may write its own. Throws
// KV_UNKNOWN_OPTION (with a suggestion) and KV_INVALID_OPTION. Makes no deep copy and keeps no reference to the object.

import { createError } from './errors.js';
import { formatList, formatNumber } from './format.js';
import { closest, describe, didYouMean } from './phrases.js';
import { isArray } from './typed-arrays.js';

/** Where a value stands, for the error: `owner` is the class or command, `option` the dotted path (`model.kvHeads`). */
export interface FieldPlace {
  readonly owner: string;
  readonly option: string;
}

/** Checks one value (undefined when the option is absent) and returns it, or throws. */
export type Field<T> = (value: unknown, place: FieldPlace) => T;

export type FieldSpec = Readonly<Record<string, Field<unknown>>>;

/** What `readOptions` returns for a spec. */
export type OptionsOf<S extends FieldSpec> = { readonly [K in keyof S]: S[K] extends Field<infer T> ? T : never };

export interface IntegerRange {
  /** Default 0. */
  readonly min?: number;
  /** Default 2⁵³ − 1. */
  readonly max?: number;
  /** The value must be a multiple of this; default 1. */
  readonly multipleOf?: number;
  /**
   * One sentence that ends the message: what to do instead; a function where it has numbers, which take long to write
   * the first time.
   */
  readonly hint?: string | (() => string);
}

/** A spec as it is read: its names with their fields and places. */
interface SpecReading {
  readonly owner: string;
  readonly path: string;
  readonly names: readonly string[];
  readonly fields: readonly Field<unknown>[];
  readonly places: readonly FieldPlace[];
}

/** Specs are constants, as a rule of one owner each, and some are read in every request. */
const readings = new WeakMap<FieldSpec, SpecReading>();

/** Checks `options` (undefined counts as `{}`) against `spec`; `path` is the option that holds them, when nested. */
export function readOptions<S extends FieldSpec>(
  owner: string, options: unknown, spec: S, path = '',
): OptionsOf<S> {
  if (options !== undefined && (typeof options !== 'object' || options === null || isArray(options))) {
    throw invalid('type', placeOf(owner, path), 'an object', options);
  }
  const reading = readingOf(owner, spec, path);
  const values = valuesOf(options ?? {}, spec, reading);
  const { names, fields, places } = reading;
  const read: Record<string, unknown> = {};
  for (let index = 0; index < names.length; index += 1) {
    read[names[index]!] = fields[index]!(values[index], places[index]!);
  }
  return read as OptionsOf<S>;
}

const placeOf = (owner: string, path: string): FieldPlace => ({ owner, option: path || 'options' });

const prefixOf = (path: string): string => (path === '' ? '' : `${path}.`);

function readingOf(owner: string, spec: FieldSpec, path: string): SpecReading {
  const known = readings.get(spec);
  if (known?.owner === owner && known.path === path) return known;
  const names = Object.keys(spec);
  const reading = {
    owner, path, names, fields: Object.values(spec),
    places: names.map((name) => ({ owner, option: prefixOf(path) + name })),
  };
  readings.set(spec, reading);
  return reading;
}

/** The value of each name in the spec. Each is read once; `options` is not read again. */
function valuesOf(options: object, spec: FieldSpec, { owner, path, names }: SpecReading): readonly unknown[] {
  const given = Object.keys(options);
  for (const name of given) {
    if (!Object.hasOwn(spec, name)) throw unknownOption(owner, name, names, prefixOf(path));
  }
  const prototype = Object.getPrototypeOf(options) as object | null;
  if (prototype !== Object.prototype && prototype !== null) {
    checkPrototype(placeOf(owner, path), options, given.length === 0, spec, prefixOf(path));
  }
  return names.map((
    name,
  ) => (Object.hasOwn(options, name) ? (options as Readonly<Record<string, unknown>>)[name] : undefined));
}

/**
 * Only an object's own properties are options. Throws KV_INVALID_OPTION for an object of a class that has none (a Map,
 * say), or that inherits some, which would be left out without a word. What all objects inherit is no option.
 */
function checkPrototype(place: FieldPlace, options: object, isEmpty: boolean, spec: FieldSpec, prefix: string): void {
  for (let from = Object.getPrototypeOf(options) as object | null; from !== null;) {
    const next = Object.getPrototypeOf(from) as object | null;
    const inherited = next === null
      ? undefined
      : Object.keys(spec).find((name) => Object.hasOwn(from!, name) && !Object.hasOwn(options, name));
    if (inherited !== undefined) {
      const hint = `The object inherits it, from its class say; pass \`{ ${inherited}: object.${inherited} }\`.`;
      throw invalid(
        'type', { ...place, option: prefix + inherited }, 'a property of the object itself', undefined, hint);
    }
    from = next;
  }
  if (isEmpty && describe(options) !== 'an object') throw invalid('type', place, 'a plain object', options);
}

/**
 * Far more than any list of options needs. A `length` beyond it is a mistake, and reading so many holes would block the
 * process.
 */
const maxElements = 2 ** 20;

/** Maps an array's elements through `read`, each read once. Throws KV_INVALID_OPTION, and what its getters throw. */
export function readArray<T>(value: unknown, place: FieldPlace, read: (element: unknown, index: number) => T): T[] {
  if (!isArray(value)) throw invalid('type', place, 'an array', value);
  const { length } = value;
  if (length > maxElements) throw invalid(
    'range', place, `an array of at most ${formatNumber(maxElements)} elements`, `one of ${formatNumber(length)}`);
  const elements: T[] = [];
  for (let index = 0; index < length; index += 1) elements.push(read(value[index], index));
  return elements;
}

/**
 * Takes the iterator of `value` and returns an iterable over it. Throws KV_INVALID_OPTION for a value that cannot be
 * iterated (a detached array, a borrowed prototype), before anything has begun. `expected` ends "must be …".
 */
export function readIterable(value: unknown, place: FieldPlace, expected: string): Iterable<unknown> {
  let iterator: Iterator<unknown>;
  try {
    if (typeof value !== 'object' || value === null) throw new TypeError(expected);
    iterator = (value as Iterable<unknown>)[Symbol.iterator]();
  } catch (cause) {
    if (!(cause instanceof TypeError)) throw cause; // the caller's own
    throw createError('KV_INVALID_OPTION', { reason: 'type', ...place, expected, received: value }, { cause });
  }
  return {
    [Symbol.iterator]: () => ({
      next: () => iterator.next(),
      return: () => iterator.return?.() ?? { done: true, value: undefined },
    }),
  };
}

/** The error of a constructor that only the package may call; `how` is what its users call instead. */
export function notConstructible(owner: string, how: string): Error {
  return invalid('type', { owner, option: `new ${owner}` }, `left to \`${how}\``, 'a call');
}

/** Whether it is an object and no array. */
export function isOptionsObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

/**
 * Checks one integer argument against an inclusive range. Allocates nothing when it is right, for calls made per token
 * or step.
 */
export function checkInteger(
  owner: string, option: string, value: unknown, min = 0, max = Number.MAX_SAFE_INTEGER, hint?: IntegerRange['hint'],
): asserts value is number {
  if (Number.isSafeInteger(value) && (value as number) >= min && (value as number) <= max) return;
  const reason = typeof value === 'number' ? 'range' : 'type';
  throw invalid(reason, { owner, option }, integerRange(min, max), value, hint);
}

/** A safe integer in a range. */
export function integer(range: IntegerRange = {}): Field<number> {
  const { min = 0, max = Number.MAX_SAFE_INTEGER, multipleOf = 1, hint } = range;
  return (value, place) => {
    checkInteger(place.owner, place.option, value, min, max, hint);
    if (value % multipleOf !== 0) {
      throw invalid('range', place, `a multiple of ${formatNumber(multipleOf)}`, value, hint);
    }
    return value;
  };
}

/** A finite number in an inclusive range. */
export function number(min = -Infinity, max = Infinity): Field<number> {
  // Written only where it is needed: the first number that is formatted loads the system's rules for that, which takes
  // tens of ms.
  const expected = (): string => min === -Infinity && max === Infinity
    ? 'a finite number'
    : max === Infinity ? `a number, at least ${formatNumber(min, 6)}`
      : `a number from ${formatNumber(min, 6)} to ${formatNumber(max, 6)}`;
  return (value, place) => {
    if (typeof value !== 'number') throw invalid('type', place, expected(), value);
    if (!Number.isFinite(value) || value < min || value > max) throw invalid('range', place, expected(), value);
    return value;
  };
}

/** How many choices a message lists at most. */
const listedChoices = 8;

/** One of a few strings. */
export function oneOf<const T extends string>(choices: readonly T[]): Field<T> {
  return (value, place) => {
    if ((choices as readonly unknown[]).includes(value)) return value as T;
    const hint = typeof value === 'string' ? didYouMean(value, choices) : undefined;
    const named = formatList(choices.slice(0, listedChoices).map((choice) => `'${choice}'`));
    const expected =
      choices.length <= listedChoices ? named : `one of ${formatNumber(choices.length)} names, such as ${named}`;
    throw invalid(typeof value === 'string' ? 'range' : 'type', place, expected, value, hint);
  };
}

/** true or false; nothing is converted. */
export const boolean: Field<boolean> = (value, place) => {
  if (typeof value !== 'boolean') throw invalid('type', place, 'true or false', value);
  return value;
};

/** A string, which may be empty. */
export const text: Field<string> = (value, place) => {
  if (typeof value !== 'string') throw invalid('type', place, 'a string', value);
  return value;
};

/** A string that is not empty. */
export const string: Field<string> = (value, place) => {
  const given = text(value, place);
  if (given === '') throw invalid('range', place, 'a string that is not empty', value);
  return given;
};

/** A function; its parameters cannot be checked. */
export function callable<F extends (...parameters: never[]) => unknown>(): Field<F> {
  return (value, place) => {
    if (typeof value !== 'function') throw invalid('type', place, 'a function', value);
    return value as F;
  };
}

/**
 * A policy: a function. `shipped` are the package's own factories by name: a factory that was not called, or only its
 * name, is refused with a hint to call it.
 */
export function policy<P extends (...parameters: never[]) => unknown>(
  shipped: Readonly<Record<string, (...options: never[]) => P>>,
): Field<P> {
  return (value, place) => {
    const meant = Object.entries(shipped).find(([name, make]) => value === name || value === make)?.[0];
    if (meant === undefined) return callable<P>()(value, place);
    throw invalid(
      'type', place, 'a policy that was made', value, `Call it: \`${place.option.split('.').at(-1)}: ${meant}()\`.`);
  };
}

/**
 * A class that recognizes its instances by a private field: `instanceof` accepts any object with the right prototype.
 */
export interface KnownClass<T> {
  readonly name: string;
  isInstance(value: unknown): value is T;
}

/** An instance of a class; `expected` ends "must be …", by default "a Name". */
export function instanceOf<T>(known: KnownClass<T>, expected = `a ${known.name}`): Field<T> {
  return (value, place) => {
    if (!known.isInstance(value)) throw invalid('type', place, expected, value);
    return value;
  };
}

const largestAddress = 2n ** 64n - 1n;

/** Whether it is a bigint of 64 bits, as native code takes an address, a handle or a stream; 0n is one. */
export function isAddress(value: unknown): value is bigint {
  return typeof value === 'bigint' && value >= 0n && value <= largestAddress;
}

/** What the clock of an option returns. Throws KV_INVALID_OPTION unless it is a number of milliseconds. */
export function checkTime(ms: unknown, owner: string, option: string): number {
  if (typeof ms === 'number' && Number.isFinite(ms)) return ms;
  throw createError('KV_INVALID_OPTION', {
    reason: typeof ms === 'number' ? 'range' : 'type', owner, option,
    expected: 'a function that returns a number of milliseconds', received: ms,
    isReturned: true,
  });
}

/** A CUstream. */
export const streamField: Field<bigint> = (value, place) => {
  if (isAddress(value)) return value;
  throw invalid(typeof value === 'bigint' ? 'range' : 'type', place, 'a CUstream: a bigint, at least 0', value);
};

const { removeEventListener } = EventTarget.prototype;
const { get: abortedGetter } = Object.getOwnPropertyDescriptor(AbortSignal.prototype, 'aborted')!;

/** An AbortSignal. */
export const abortSignal: Field<AbortSignal> = (value, place) => {
  try {
    Reflect.apply(abortedGetter!, value, []);
    // throws for an object with a borrowed prototype
    removeEventListener.call(value as AbortSignal, 'abort', null as never);
    return value as AbortSignal;
  } catch {
    throw invalid('type', place, 'an AbortSignal', value);
  }
};

/** A nested options object; absent counts as `{}`, so that the error names its required fields. */
export function nested<S extends FieldSpec>(spec: S): Field<OptionsOf<S>> {
  return (value, place) => readOptions(place.owner, value, spec, place.option);
}

/** An array, each element checked by `field`. */
export function arrayOf<T>(field: Field<T>): Field<readonly T[]> {
  return (value, place) => readArray(value, place, (element, index) =>
    field(element, { ...place, option: `${place.option}[${index}]` }));
}

/** Absent stays undefined. */
export function optional<T>(field: Field<T>): Field<T | undefined> {
  return (value, place) => (value === undefined ? undefined : field(value, place));
}

/** Absent becomes `fallback`, unchecked. */
export function withDefault<T>(field: Field<T>, fallback: T): Field<T> {
  return (value, place) => (value === undefined ? fallback : field(value, place));
}

/** The error of an option that is not among `names`. `prefix` is put before each name. */
export function unknownOption(owner: string, name: string, names: readonly string[], prefix: string): Error {
  const found = closest(name, names);
  const suggestion = found === undefined ? undefined : prefix + found;
  const known = found === undefined ? names.map((one) => prefix + one) : undefined;
  return createError('KV_UNKNOWN_OPTION', { owner, option: prefix + name, suggestion, known });
}

function integerRange(min: number, max: number): string {
  if (max === Number.MAX_SAFE_INTEGER) return `an integer, at least ${formatNumber(min)}`;
  if (max < min) return 'one that exists, and there is none';
  if (min === max) return formatNumber(min);
  return `an integer from ${formatNumber(min)} to ${formatNumber(max)}`;
}

function invalid(
  reason: 'type' | 'range', place: FieldPlace, expected: string, received: unknown, hint?: IntegerRange['hint'],
): Error {
  return createError('KV_INVALID_OPTION', {
    reason, ...place, expected, received, hint: typeof hint === 'function' ? hint() : hint,
  });
}
