// Alone in its process: it puts constructors of arrays in the place of JavaScript's own, which refuse memory when they are told to.

import test from 'ava';

import { PrefixIndex, rowArithmetic, sharedDomain } from '#internal/prefix/index.js';
import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { scaled } from '../runner/tier.js';

const own = { Int32Array, Uint8Array, Float64Array };

/** Does `work`, for which the `nth` new array is refused. Returns whether it came to that. */
function refusing(nth: number, work: () => void): boolean {
  let left = nth;
  const replace = (name: keyof typeof own, constructor: unknown): void => {
    Object.assign(globalThis, { [name]: constructor });
    Object.defineProperty(own[name].prototype, 'constructor', { value: constructor, configurable: true, writable: true });
  };
  for (const name of Object.keys(own) as (keyof typeof own)[]) {
    replace(name, new Proxy(own[name], {
      construct: (target, given: unknown[], newTarget: new () => unknown) => {
        if (typeof given[0] === 'number') left -= 1; // the others are views of memory that is there
        if (left === 0) throw new RangeError('Array buffer allocation failed');
        return Reflect.construct(target, given, newTarget === target ? target : newTarget) as object;
      },
    }));
  }
  try {
    work();
    return false;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    return true;
  } finally {
    for (const name of Object.keys(own) as (keyof typeof own)[]) replace(name, own[name]);
  }
}

const seed = seedOf('refused memory');

test(`text that memory is refused for is committed by the same call later, and all is right between (seed ${seed})`, (t) => {
  const random = new Random(seed);
  let refusals = 0;
  for (let round = 0; round < scaled(2); round += 1) {
    const index = new PrefixIndex({ arithmetic: rowArithmetic({ tokenBytes: 3, pageBytes: 7 }) });
    let rows = 0;
    const texts: Int32Array[] = [];
    for (let step = 0; step < 12; step += 1) {
      const before = texts[random.integer(Math.max(1, texts.length))] ?? new Int32Array(0);
      const start = before.subarray(0, random.integer(before.length + 1));
      const text = Int32Array.from([...start, ...Array.from({ length: 1 + random.integer(9_000) }, () => random.integer(50))]);
      texts.push(text);
      const table = new Int32Array(text.length).fill(-1);
      const path = index.open(index.match(sharedDomain, text), { rows: table, isStored: true, level: 0 });
      for (let row = 0; row < table.length; row += 1) if (table[row] === -1) table[row] = rows++;
      for (const length of [random.integer(text.length), random.integer(text.length), text.length].sort((a, b) => a - b)) {
        const commit = (): void => { index.commit(path, text, length); };
        for (let nth = 1; refusing(nth, commit); nth += 1) {
          refusals += 1;
          index.verify();
        }
      }
      index.verify();
      t.is(index.match(sharedDomain, text, text.length).tokens, text.length);
      index.release(path);
      index.dropped.clear();
    }
    for (const text of texts) t.is(index.match(sharedDomain, text, text.length).tokens, text.length);
  }
  t.true(refusals > 0);
});
