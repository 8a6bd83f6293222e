// A model whose right answer is known in advance copies texts out of the cache, with shared prefixes, forks and returns: no
// reference computation, only what the text says.

import { layoutKinds } from 'virtual-kv';

import { Random } from '#internal/base/random.js';
import { copyingLlama, startToken, vocabularyTokens } from '../helpers/copying-llama.js';
import { LlamaWorld, type Member } from '../helpers/llama-world.js';
import { mostLikely } from '../helpers/logits.js';
import { seedOf } from '../helpers/seed.js';
import { slow } from '../runner/slow.js';

/** `count` different tokens in random order. */
function differentTokens(random: Random, count: number): number[] {
  const tokens = Array.from({ length: vocabularyTokens - 1 }, (_, index) => index + 1);
  for (let at = 0; at < count; at += 1) {
    const other = at + random.integer(tokens.length - at);
    [tokens[at], tokens[other]] = [tokens[other]!, tokens[at]!];
  }
  return tokens.slice(0, count);
}

for (const layout of layoutKinds) {
  const seed = seedOf(`copying ${layout}`);
  slow('runs models')(`answers are copied out of the cache as they stand in the text, ${layout} (seed ${seed})`, async (t) => {
    const random = new Random(seed);
    const { made, logitsOf } = copyingLlama(random);
    const world = new LlamaWorld(t, made, { layout, maxTokens: 300 });

    /** Lets a member continue the copy from `at` on, in any company. */
    const check = (member: Member, told: readonly number[], at: number): void => {
      const expected = logitsOf(told[at]!);
      const worst = expected.reduce((most, logit, token) => Math.max(most, Math.abs(logit - member.logits![token]!)), 0);
      t.is(mostLikely(member.logits!), told[at]!);
      t.true(worst < 2e-3 * expected[told[at]!]!, `off by ${worst}`);
    };
    const begin = async (told: readonly number[], at: number): Promise<Member> => {
      const member = world.acquire([startToken, ...told, told[at]!]);
      while (world.remaining(member) > 0) {
        await world.step([[member, Math.min(world.remaining(member), 1 + random.integer(40))]], 'prefill');
      }
      check(member, told, at + 1);
      return member;
    };
    const goOn = async (members: readonly (readonly [Member, readonly number[]])[], from: number, to: number): Promise<void> => {
      for (let at = from; at < to; at += 1) {
        for (const [member, told] of members) world.append(member, told[at]!);
        await world.step(members.map(([member]) => [member, 1]), 'decode');
        for (const [member, told] of members) check(member, told, at + 1);
      }
    };

    const told = differentTokens(random, 90);
    const other = [...told.slice(0, 70), ...told.slice(70).reverse()]; // the same beginning, another end
    const first = await begin(told, 10);
    const second = await begin(other, 10);
    await goOn([[first, told], [second, other]], 11, 85);
    const fork = world.fork(second);
    await goOn([[fork, other], [first, told], [second, other]], 85, 88);
    const { text } = first;
    world.release(first);
    const back = world.acquire([...text, told[3]!]); // adopted; asks for another place of the same text
    await world.finish(back);
    check(back, told, 4);
    world.close();
  });
}
