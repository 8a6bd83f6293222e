// The reference engine behind the online scheduler, with the prefix cache, in a process of its own: node ours.js FILE. K and V are float16,
// as llama.cpp's are, and there is memory for as many tokens as its contexts have.

import { KvCache, OnlineScheduler } from 'virtual-kv';
import { LlamaEngine, LlamaModel } from 'virtual-kv/llama';

import { serve } from './loads.js';

const model = new LlamaModel(process.argv[2]!);
const cache = new KvCache({ model: model.shape('float16'), slots: 16, maxTokens: 2_048, memoryBudgetBytes: 2 ** 28, driver: 'host', pageBytes: 65_536 });
const engine = new LlamaEngine({ model, cache });
const scheduler = new OnlineScheduler({ cache, engine });

serve({
  answer: ({ prompts, newTokens }) => Promise.all(prompts.map(async (prompt) =>
    [...(await scheduler.submit({ tokens: Int32Array.from(prompt), maxNewTokens: newTokens }).result).tokens])),
});
