// A cache without side tensors pays nothing for them: none of its calls enters a file of lib/side, and a request of a scheduler three
// functions when it is read and checked, whatever it computes.

import test from 'ava';

import { OnlineScheduler, type KvCache } from 'virtual-kv';

import { calledOn, useSequences } from '../helpers/called-functions.js';
import { PatternEngine } from '../serving/pattern-engine.js';

const files = /\/dist\/(side\/|serving\/side-)/;
const sideTensors = { hidden: { width: 16, dtype: 'float32' } } as const;

/** Requests of a scheduler: prompts in chunks, answers one token at a time, a duplicate. */
function serve(requests: number, maxNewTokens: number): (cache: KvCache) => Promise<void> {
  return async (cache) => {
    const scheduler = new OnlineScheduler({ cache, engine: new PatternEngine({ cache }), prefillTokensPerStep: 8 });
    const tokens = Array.from({ length: 30 }, (_, index) => index);
    await Promise.all(Array.from({ length: requests }, () => scheduler.submit({ tokens, maxNewTokens }).result));
    await scheduler.close();
  };
}

test.serial('without side tensors no call of a sequence or a step enters their files', async (t) => {
  t.deepEqual(await calledOn({}, files, useSequences), {});
  const withThem = await calledOn({ sideTensors }, files, useSequences);
  t.true(Object.keys(withThem).length > 20, 'which the same calls do where there are any');
});

for (const [requests, maxNewTokens] of [[1, 2], [1, 30], [5, 30]] as const) {
  test.serial(`without side tensors a scheduler's request enters three functions, whatever it computes (${requests} × ${maxNewTokens} tokens)`, async (t) => {
    const entered = await calledOn({}, files, serve(requests, maxNewTokens));
    t.deepEqual(entered, { handOverField: requests, checkSideNames: requests, checkSideFits: requests });
    const withThem = await calledOn({ sideTensors }, files, serve(requests, maxNewTokens));
    t.true(Object.keys(withThem).length > 20, 'where there are side tensors many');
  });
}
