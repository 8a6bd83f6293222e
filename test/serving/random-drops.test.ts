// Requests that come and are cancelled at random, often all of a pass, over an engine that stops in some of the passes that no request needs
// and goes on with others: right answers, and nothing left.

import { isKvError, OnlineScheduler, type Engine, type EngineOutput, type EnginePass, type GenerationRequest, type TokenStream } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';
import { turn, vocabularyTokens, type PatternEngine } from './pattern-engine.js';
import { assertAnswer, randomRequests, servingTests } from './serving-bench.js';

/** An engine that answers a few turns later, and stops at random in passes that no request needs: before or after it has written, or not at all. */
class RandomlyStopping implements Engine {
  readonly vocabularyTokens = vocabularyTokens;
  stopped = 0;
  ignored = 0;
  readonly #engine: PatternEngine;
  readonly #random: Random;

  constructor(engine: PatternEngine, random: Random) {
    this.#engine = engine;
    this.#random = random;
  }

  prefill(pass: EnginePass): Promise<EngineOutput> {
    return this.#call('prefill', pass);
  }

  decode(pass: EnginePass): Promise<EngineOutput> {
    return this.#call('decode', pass);
  }

  async #call(name: 'prefill' | 'decode', pass: EnginePass): Promise<EngineOutput> {
    const [isEarly, stops] = [this.#random.chance(0.5), this.#random.chance(0.7)];
    const { signal } = pass;
    for (let turns = this.#random.integer(4); turns > 0 && !(isEarly && stops && signal.aborted); turns -= 1) await turn();
    if (isEarly && stops && signal.aborted) this.#stop();
    const output = await this.#engine[name](pass);
    if (stops && signal.aborted) this.#stop();
    if (signal.aborted) this.ignored += 1;
    return output;
  }

  #stop(): never {
    this.stopped += 1;
    throw new Error('stopped');
  }
}

const seed = seedOf('dropped passes of schedulers');

servingTests(`requests that come and are cancelled at random, often all of them, get right answers and leave nothing (seed ${seed})`, { slots: 3, rows: 9 }, async (serving) => {
  const { t, cache, engine } = serving;
  const random = new Random(seed);
  const stopping = new RandomlyStopping(engine, random);
  const scheduler = new OnlineScheduler({ cache, engine: stopping, prefillTokensPerStep: 48, minPendingTokens: 8, watermarkRows: 1 });
  const open = new Set<TokenStream>();
  const ends: Promise<void>[] = [];
  let done = 0;
  const serve = async (one: GenerationRequest): Promise<void> => {
    const stream = scheduler.submit(one);
    open.add(stream);
    try {
      assertAnswer(t, one, await stream.result);
      done += 1;
    } catch (error) {
      if (!isKvError(error, 'KV_ABORTED')) throw error;
    } finally {
      open.delete(stream);
    }
  };
  for (const one of randomRequests(random, 400, 120, 12)) {
    ends.push(serve(one));
    for (let turns = random.integer(12); turns > 0; turns -= 1) await turn();
    if (random.chance(0.15)) for (const stream of open) stream.cancel();
    else if (random.chance(0.2)) for (const stream of open) if (random.chance(0.5)) stream.cancel();
  }
  await Promise.all(ends);
  await scheduler.close();
  t.log({ done, stopped: stopping.stopped, ignored: stopping.ignored });
  t.true(done > 100 && stopping.stopped > 10 && stopping.ignored > 3);
}, slow('a random world of requests'));
