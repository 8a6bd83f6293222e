// Decodes one sequence with mapped weights, in a process of its own: node mapped-decode.js FOLDER TOKENS. Prints the memory that only it has, before it
// opens the model and at its end.

import { KvCache, OnlineScheduler } from 'virtual-kv';
import { LlamaEngine, LlamaModel } from 'virtual-kv/llama';

import { privateBytes } from './private-bytes.js';

const [folder, tokens] = process.argv.slice(2);

async function main(): Promise<void> {
  const before = privateBytes();
  const model = new LlamaModel(folder!);
  const cache = new KvCache({ model: model.shape(), slots: 1, maxTokens: 1_024, memoryBudgetBytes: 2 ** 28, driver: 'host', pageBytes: 65_536, prefixCache: 'off' });
  const engine = new LlamaEngine({ model, cache });
  const scheduler = new OnlineScheduler({ cache, engine });
  await scheduler.submit({ tokens: new Int32Array(16).fill(7), maxNewTokens: Number(tokens) }).result;
  process.send!({ before, after: privateBytes() });
  await scheduler.close();
  engine.close();
  cache.close();
}

void main();
