// An answer as text, as it comes: whole characters only, ended by a stop string wherever that begins and ends in the tokens.
// Run it: npm run example -- text-stream

import * as path from 'node:path';

import { KvCache, OnlineScheduler } from 'virtual-kv';
import { LlamaEngine, LlamaModel, LlamaTokenizer } from 'virtual-kv/llama';
import { StopText } from 'virtual-kv/server';

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
    stopTokens: tokenizer.endTokens, // these end an answer by themselves
  });
  const pieces = tokenizer.pieces(); // tokens to text, held back until the characters are whole
  const stop = new StopText(['. He', '. She', '. The']); // text, held back while it may be the beginning of one of these
  for await (const token of stream) {
    process.stdout.write(stop.push(pieces.push(token)));
    if (stop.isStopped) stream.finish(); // no error: the answer ends here, its slot is free, its text stays cached
  }
  process.stdout.write(stop.push(pieces.end()) + stop.end());
  const { finishReason, tokens, firstTokenMs } = await stream.result;
  console.log(`\n(${tokens.length} tokens, the first after ${firstTokenMs.toFixed(0)} ms; ended by ${finishReason})`);
}

void main();
