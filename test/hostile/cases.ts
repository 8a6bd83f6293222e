// The cases of one row: each argument that is right, and each member of one, replaced by each hostile value in turn; and each member
// given by a getter that throws, closes what is used, calls the same again, or answers otherwise when it is asked twice.

import { hostile, OnPurpose } from './values.js';

/** Where in the arguments: the argument's index, then names of members. */
export type Place = readonly (string | number)[];

export interface Case {
  readonly title: string;
  /** Arguments with the hostile value in its place. */
  arm(meant: readonly unknown[], means: Means): unknown[];
}

/** What getters can do to the world they are in. */
export interface Means {
  readonly closeAll: () => void;
  readonly callAgain: () => void;
  readonly report: (finding: string) => void;
}

const isPlain = (value: unknown): value is Record<string | number, unknown> =>
  Array.isArray(value) || (typeof value === 'object' && value !== null && Object.getPrototypeOf(value) === Object.prototype);

/** Places up to three members deep. */
function placesIn(value: unknown, place: Place): Place[] {
  if (place.length > 3 || !isPlain(value)) return [place];
  return [place, ...Object.entries(value).flatMap(([name, member]) => placesIn(member, [...place, name]))];
}

/** A copy of `value` in which the member at `place` is defined by `member`. */
export function withMember(value: unknown, place: Place, member: PropertyDescriptor): unknown {
  const [name, ...rest] = place;
  const copy: object = Array.isArray(value) ? [...value as unknown[]] : { ...value as object };
  const inner = (value as Record<string, unknown>)[name!];
  Object.defineProperty(copy, name!, rest.length === 0 ? { enumerable: true, configurable: true, ...member }
    : { enumerable: true, configurable: true, writable: true, value: withMember(inner, rest, member) });
  return copy;
}

const at = (meant: readonly unknown[], place: Place): unknown =>
  place.reduce<unknown>((value, name) => (value as Record<string, unknown>)[name], meant);

const getters: Readonly<Record<string, (value: unknown, means: Means) => () => unknown>> = {
  'a getter that throws': () => () => { throw new OnPurpose('getter'); },
  'a getter that closes': (value, { closeAll }) => () => {
    closeAll();
    return value;
  },
  'a getter that calls again': (value, { callAgain }) => {
    let calls = 0;
    return () => {
      calls += 1;
      if (calls === 1) callAgain();
      return value;
    };
  },
  'a getter that answers once': (value, { report }) => {
    let calls = 0;
    return () => {
      calls += 1;
      if (calls > 1) report('is read twice');
      return calls > 1 ? 2 ** 30 : value;
    };
  },
};

export function casesOf(meant: readonly unknown[]): Case[] {
  const cases: Case[] = [];
  for (const place of meant.flatMap((argument, index) => placesIn(argument, [index]))) {
    const where = place.join('.');
    for (const [name, make] of Object.entries(hostile)) {
      cases.push({ title: `${where}: ${name}`, arm: (given) => withMember(given, place, { writable: true, value: make(at(given, place)) }) as unknown[] });
    }
    if (place.length === 1 || place.includes('engine')) continue; // an engine is alive: it is asked again and again
    for (const [name, make] of Object.entries(getters)) {
      cases.push({ title: `${where}: ${name}`, arm: (given, means) => withMember(given, place, { get: make(at(given, place), means) }) as unknown[] });
    }
  }
  return cases;
}
