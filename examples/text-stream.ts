// An answer as text, as it comes: whole characters only, ended by a stop string wherever that begins and ends in the tokens.
// Run it: npm run example -- text-stream

import * as path from 'node:path';

import { KvCache, OnlineScheduler } from 'virtual-kv';
import { LlamaEngine, LlamaModel, LlamaTokenizer } from 'virtual-kv/llama';

const folder = path.join(__dirname, '..', 'examples', 'llama', 'storyteller');

async function main(): Promise<void> {
  const model = new LlamaModel(folder);
  const tokenizer = new LlamaTokenizer(folder);
  using cache = new KvCache({
    model: model.shape(), slots: 4, maxTokens: model.config.maxTokens, memoryBudgetBytes: 2 ** 28, driver: 'host',
  });
  using engine = new LlamaEngine({ model, cache });
  await using scheduler = new OnlineScheduler({ cache, engine });
  const stream = scheduler.submit({
    tokens: tokenizer.encodeChat([{ role: 'user', content: 'Tell me a story about a fox named Mia.' }]), maxNewTokens: 200,
    stopTokens: tokenizer.endTokens, tokenizer, stopStrings: ['. He', '. She', '. The'], // what ends the answer
  });
  for await (const piece of stream.pieces()) process.stdout.write(piece);
  const { finishReason, stopString, tokens, firstTokenMs } = await stream.result;
  const end = stopString === undefined ? '' : `, at ${JSON.stringify(stopString)}`;
  console.log(`\n(${tokens.length} tokens, the first after ${firstTokenMs.toFixed(0)} ms; ended by ${finishReason}${end})`);
}

void main();
