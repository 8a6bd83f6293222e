// The smallest engine, whole: it says the letter that occurs most often, which it counts in the K that the cache keeps.
// Run it: npm run example -- first-engine

import { KvCache, OnlineScheduler, type Engine } from 'virtual-kv';

const [DIM, SLOTS, VOCABULARY] = [64, 8, 128]; // one head of 64 floats; ASCII
const cache = new KvCache({
  model: { layers: 1, kvHeads: 1, headDim: DIM, dtype: 'float32' }, // your model's numbers
  driver: 'host', slots: SLOTS, maxTokens: 4_096, memoryBudgetBytes: 2 ** 26,
});
const { key } = cache.layer(0);
const row = key.strides.token; // elements from a token to the next: other layers' tokens may lie between
const logits = new Float32Array(SLOTS * VOCABULARY);
const engine: Engine = {
  vocabularyTokens: VOCABULARY,
  prefill(pass) {
    logits.fill(0);
    for (let i = 0; i < pass.length; i += 1) {
      const keys = key.view(pass.sequences[i]!); // K of layer 0, a token every `row` elements; native code takes `addressOf`
      const from = pass.positions[i]!;
      const end = from + pass.tokenCounts[i]!;
      for (let at = from; at < end; at += 1) keys[at * row] = pass.tokens[pass.starts[i]! + at - from]!; // 1. write the new ones
      if (pass.wantsLogits[i] === 0) continue; // the middle of a prompt
      for (let at = 0; at < end; at += 1) logits[i * VOCABULARY + keys[at * row]!]! += 1; // 2. attend to all
    }
    return { logits }; // 3. answer
  },
  decode(pass) {
    return this.prefill(pass); // the same with one token each; a real engine has another kernel here
  },
};

async function main(): Promise<void> {
  const scheduler = new OnlineScheduler({ cache, engine });
  const request = { tokens: [...Buffer.from('A banana, please: ')], maxNewTokens: 5 };
  for await (const token of scheduler.submit(request)) process.stdout.write(String.fromCharCode(token)); // as they come
  const { tokens, promptTokens, cachedTokens } = await scheduler.submit(request).result; // or all at once
  console.log(`, and again ${Buffer.from(tokens)}: ${cachedTokens} of ${promptTokens} prompt tokens were cached`);
  await scheduler.close();
  cache.close();
}

void main();
