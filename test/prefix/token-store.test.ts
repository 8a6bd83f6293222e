// Runs of tokens against plain arrays: whatever is appended, cut in two, joined and trimmed, in any order, the tokens stay.

import test from 'ava';

import { TokenStore } from '#internal/prefix/token-store.js';
import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { scale } from '../runner/tier.js';

/** A tree of runs as the index makes them: a run is lengthened while none hangs on it, and joined with its only child. */
interface ModelRun {
  readonly run: number;
  tokens: number[];
  parent: ModelRun | undefined;
  readonly children: Set<ModelRun>;
}

const seed = seedOf('token store');

test(`runs keep their tokens through appending, splitting, joining, trimming and closing (seed ${seed})`, (t) => {
  const random = new Random(seed);
  const store = new TokenStore();
  const runs = new Set<ModelRun>();
  const free: number[] = [];
  let made = 0;
  const append = (model: ModelRun, count: number): void => {
    const source = Int32Array.from({ length: count + 5 }, () => random.integer(1000));
    store.append(model.run, source, 3, count);
    model.tokens.push(...source.subarray(3, 3 + count));
  };
  const make = (parent: ModelRun | undefined): ModelRun => {
    const model: ModelRun = { run: free.pop() ?? made, tokens: [], parent, children: new Set() };
    made = Math.max(made, model.run + 1);
    runs.add(model);
    parent?.children.add(model);
    return model;
  };
  const drop = (model: ModelRun): void => {
    runs.delete(model);
    free.push(model.run);
    model.parent?.children.delete(model);
  };
  const check = ({ run, tokens }: ModelRun): void => {
    const copy = new Int32Array(tokens.length);
    store.copy(run, 0, tokens.length, copy, 0);
    t.deepEqual([...copy], tokens);
    t.is(store.length(run), tokens.length);
    const at = random.integer(tokens.length);
    t.is(store.tokenAt(run, at), tokens[at]!);
    const differs = at + random.integer(tokens.length - at + 1);
    const other = Int32Array.from(tokens.slice(at), (token, index) => (index === differs - at ? token + 1 : token));
    t.is(store.agree(run, at, other, 0, other.length), differs - at);
    const pieces: number[] = [];
    store.forPieces(run, (array, from, to) => pieces.push(...array.subarray(from, to)));
    t.deepEqual(pieces, tokens);
  };
  for (let operation = 0; operation < 4000 * scale; operation += 1) {
    const model = [...runs][random.integer(runs.size)];
    const choice = random.integer(100);
    const sizes = [1, 5, 127, 128, 129, 300];
    if (model === undefined || (choice < 20 && runs.size < 30)) {
      const child = make(random.chance(0.8) ? model : undefined);
      store.open(child.run);
      append(child, sizes[random.integer(sizes.length)]!);
    } else if (choice < 45) {
      if (model.children.size === 0) append(model, sizes[random.integer(sizes.length)]!);
    } else if (choice < 65 && model.tokens.length > 1) {
      const at = 1 + random.integer(model.tokens.length - 1);
      const upper = make(model.parent);
      store.split(upper.run, model.run, at);
      upper.tokens = model.tokens.splice(0, at);
      model.parent?.children.delete(model);
      model.parent = upper;
      upper.children.add(model);
    } else if (choice < 78) {
      const { parent } = model;
      if (parent?.children.size !== 1) continue;
      store.join(parent.run, model.run);
      model.tokens = [...parent.tokens, ...model.tokens];
      model.parent = parent.parent;
      drop(parent);
      model.parent?.children.add(model);
    } else if (choice < 88) {
      if (model.children.size > 0) continue;
      const kept = 1 + random.integer(model.tokens.length);
      store.trim(model.run, kept);
      model.tokens.length = kept;
    } else if (model.children.size === 0) {
      store.close(model.run);
      drop(model);
    }
    if (operation % 50 === 0) for (const each of runs) check(each);
  }
  while (runs.size > 0) {
    for (const model of [...runs]) {
      if (model.children.size > 0) continue;
      store.close(model.run);
      drop(model);
    }
  }
  t.is(store.usedPages, 0, 'no page is lost');
});
