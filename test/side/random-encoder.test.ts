// Random requests, releases, aborts, budgets and clears on one EncoderCache. With encoders that answer at once it does exactly what a
// small model says. With encoders that answer late, fail, or are given up, each hold shows the rows of its item, bytes and holds are
// conserved, and nothing waits for ever.

import test, { type ExecutionContext } from 'ava';

import { isKvError, type EncoderHold } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { EncoderBench, rowBytes, rowsOf, turn, type Call } from './encoder-bench.js';
import { EncoderModel } from './encoder-model.js';
import { scaled } from '../runner/tier.js';

const operations = scaled(20_000);
const allowed = ['KV_ABORTED', 'KV_ENCODER_FULL', 'KV_ITEM_TOO_LARGE'] as const;

interface Held {
  readonly hold: EncoderHold;
  readonly name: string;
  readonly tokens: number;
}

class RandomEncoders {
  readonly bench: EncoderBench;
  readonly held: Held[] = [];
  readonly aborts = new Set<AbortController>();
  readonly ends: Record<string, number> = {};
  readonly #t: ExecutionContext;
  readonly #random: Random;
  readonly #answered = new Set<Call>();
  budgetRows = 12;
  open = 0;

  constructor(t: ExecutionContext, seed: number) {
    this.#t = t;
    this.#random = new Random(seed);
    this.bench = new EncoderBench(this.budgetRows);
  }

  async run(): Promise<void> {
    for (let operation = 0; operation < operations; operation += 1) {
      this.#step();
      if (this.#random.chance(0.6)) await turn();
      this.#check();
    }
  }

  /** Lets everything end: no request may be left. */
  async drain(): Promise<void> {
    for (let rounds = 0; this.open > 0 && rounds < 1000; rounds += 1) {
      for (const call of this.#running()) this.#answer(call);
      while (this.held.length > 0) this.#release();
      await turn();
    }
    this.#t.is(this.open, 0, 'every request has ended');
  }

  #step(): void {
    const random = this.#random;
    const kind = random.next();
    if (kind < 0.4) this.#ask();
    else if (kind < 0.65) this.#release();
    else if (kind < 0.85) this.#answer(this.#pick(this.#running()));
    else if (kind < 0.93) this.#pick([...this.aborts])?.abort();
    else if (kind < 0.97) this.#pick(this.#running())?.fail(new Error('mine'));
    else if (kind < 0.99) this.bench.encoder.setBudget((this.budgetRows = 1 + random.integer(16)) * rowBytes);
    else this.bench.encoder.clear(random.chance(0.5) ? { tenant: 'a' } : undefined);
  }

  #ask(): void {
    const random = this.#random;
    const number = random.integer(9);
    const tokens = 1 + number % 7; // an item has always as many
    const tenant = random.chance(0.3) ? 'a' : undefined;
    const name = `${tenant ?? ''}${number}`;
    const controller = new AbortController();
    this.aborts.add(controller);
    this.open += 1;
    const rows = rowsOf(name, tokens);
    this.bench.encoder.acquire({
      kind: 'image', hash: `${number}`, domain: { tenant }, signal: controller.signal,
      tokens: random.chance(0.7) ? tokens : undefined, whenFull: random.chance(0.8) ? 'wait' : 'refuse',
      compute: ({ signal }) => new Promise((resolve, reject) => {
        this.#t.false(signal.aborted);
        this.bench.calls.push({ name, signal, answer: () => resolve(rows.slice()), fail: reject });
      }),
    }).then((hold) => {
      if (random.chance(0.02)) hold.release();
      else this.held.push({ hold, name, tokens });
      return 'held';
    }, (error: unknown) => {
      if (error instanceof Error && error.message === 'mine') return 'failed';
      if (isKvError(error) && (allowed as readonly string[]).includes(error.code)) return error.code;
      throw error;
    }).then((end) => {
      this.ends[end] = (this.ends[end] ?? 0) + 1;
    }, (error: unknown) => this.#t.fail(String(error))).finally(() => {
      this.open -= 1;
      this.aborts.delete(controller);
    }).catch(() => {});
  }

  #release(): void {
    const at = this.#random.integer(this.held.length);
    const held = this.held[at];
    if (held === undefined) return;
    this.held[at] = this.held.at(-1)!;
    this.held.pop();
    this.#isIntact(held);
    held.hold.release();
    if (this.#random.chance(0.1)) held.hold.release();
  }

  #answer(call: Call | undefined): void {
    if (call === undefined) return;
    this.#answered.add(call);
    call.answer();
  }

  #running(): Call[] {
    return this.bench.calls.slice(-40).filter((call) => !this.#answered.has(call));
  }

  #pick<T>(of: readonly T[]): T | undefined {
    return of[this.#random.integer(of.length)];
  }

  #isIntact({ hold, name, tokens }: Held): void {
    const rows = this.bench.encoder.range(hold);
    const expected = rowsOf(name, tokens);
    if (rows.length !== expected.length || expected.some((value, index) => rows[index] !== value)) this.#t.fail(`rows of ${name}`);
  }

  #check(): void {
    const { encoder } = this.bench;
    const counts = encoder.counts();
    const { usedBytes, heldBytes, budgetBytes, outsideBytes, holds, waitingRequests, items, heldItems } = counts;
    if (this.held.length > 0) this.#isIntact(this.#pick(this.held)!);
    const problems = [
      usedBytes <= Math.max(budgetBytes, heldBytes), // more than the budget is only ever held
      heldBytes <= usedBytes, holds >= this.held.length, waitingRequests <= this.open, heldItems <= items,
      outsideBytes >= 0, budgetBytes === this.budgetRows * rowBytes,
    ].flatMap((isRight, index) => (isRight ? [] : [index]));
    if (problems.length > 0) this.#t.fail(`${problems.join()}: ${JSON.stringify(counts)}`);
  }
}

const seed = seedOf('random encoder items');

test(`${operations} random operations with slow encoders leave nothing behind, seed ${seed}`, async (t) => {
  const world = new RandomEncoders(t, seed);
  await world.run();
  await world.drain();
  while (world.held.length > 0) world.held.pop()!.hold.release();
  const { encoder } = world.bench;
  t.like(encoder.counts(), { holds: 0, heldItems: 0, heldBytes: 0, outsideBytes: 0, computingItems: 0, waitingRequests: 0 });
  encoder.setBudget(1);
  t.like(encoder.counts(), { items: 0, usedBytes: 0 });
  const { computedBytes, evictions, hits, joins, misses, waits } = encoder.metrics;
  for (const count of [computedBytes, evictions, hits, joins, misses, waits]) t.true(count > operations / 200);
  for (const end of ['held', 'failed', ...allowed]) t.true((world.ends[end] ?? 0) > 0, end);
});

const modelSeed = seedOf('encoder items and their model');

test(`${operations} random operations on an encoder cache do what the model says, seed ${modelSeed}`, async (t) => {
  const random = new Random(modelSeed);
  const bench = new EncoderBench(12);
  const model = new EncoderModel(12);
  const names = Array.from({ length: 10 }, (_, index) => ({ name: `x${index}`, tokens: 1 + index % 6 }));
  const aborts = new Map<number, AbortController>();
  const holds = new Map<number, EncoderHold>();
  const ends = new Map<number, string>();
  const pick = <T>(of: readonly T[]): T | undefined => of[random.integer(of.length)];
  for (let operation = 0; operation < operations; operation += 1) {
    // Every other while most ask for what is there, and few let go of it.
    const isBusy = operation % 800 < 100;
    const kind = isBusy && random.chance(0.5) ? 0 : random.next();
    if (kind < 0.42) {
      const { name, tokens } = pick(isBusy && random.chance(0.9) ? names.filter(({ name }) => model.find(name)) : names) ?? names[0]!;
      const controller = new AbortController();
      const isPatient = random.chance(0.9);
      aborts.set(operation, controller);
      bench.take(name, tokens, { signal: controller.signal, whenFull: isPatient ? 'wait' : 'refuse' }).then((hold) => {
        holds.set(operation, hold);
        ends.set(operation, 'held');
      }, (error: unknown) => ends.set(operation, isKvError(error) ? error.code : String(error)));
      model.ask(operation, name, tokens, isPatient);
    } else if (kind < 0.92) {
      const given = pick([...holds.keys()]);
      if (given !== undefined) {
        holds.get(given)!.release();
        holds.delete(given);
        model.release(given);
      }
    } else if (kind < 0.96) {
      const aborted = pick(model.waiting());
      if (aborted !== undefined) {
        aborts.get(aborted)!.abort();
        model.abort(aborted);
      }
    } else if (kind < 0.98) {
      const rows = 1 + random.integer(16);
      bench.encoder.setBudget(rows * rowBytes);
      model.setBudget(rows);
    } else if (kind < 0.985) {
      bench.encoder.clear();
      model.clear();
    }
    await turn();
    const { usedBytes, heldBytes, waitingRequests } = bench.encoder.counts();
    const is = {
      ends: [...ends].sort(([a], [b]) => a - b), found: names.filter(({ name }) => bench.has(name)).map(({ name }) => name),
      used: usedBytes / rowBytes, held: heldBytes / rowBytes, waiting: waitingRequests, evictions: bench.encoder.metrics.evictions,
    };
    const should = {
      ends: [...model.ends].sort(([a], [b]) => a - b), found: names.filter(({ name }) => model.find(name)).map(({ name }) => name),
      used: model.used, held: model.held, waiting: model.waiting().length, evictions: model.evictions,
    };
    ends.clear();
    model.ends.clear();
    if (JSON.stringify(is) !== JSON.stringify(should)) {
      t.deepEqual(is, should, `operation ${operation}`);
      return;
    }
  }
  const { evictions, hits, joins, waits } = bench.encoder.metrics;
  t.true([evictions, hits, joins, waits].every((count) => count > operations / 200));
  t.true(model.overtaken > 0, 'some waited behind those that wait');
});
