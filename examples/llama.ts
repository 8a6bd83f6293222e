// A Llama on the cache: loads a Hugging Face folder (Llama, Mistral or Qwen2; safetensors), and answers as it generates. Without
// arguments the small storyteller that comes with the repository tells a story and answers questions about it: each turn adopts
// the slot of the one before, so that only the new tokens are computed.
// Run it: npm run example -- llama
//         npm run example -- llama --model ./Llama-3.2-1B-Instruct --prompt "Why is the sky blue?" --temperature 0.7 --top-p 0.9
//         npm run example -- llama --driver host (default: the GPU where there is one)

import * as path from 'node:path';
import { parseArgs } from 'node:util';

import { greedy, KvCache, OnlineScheduler, randomSampler, type KvCacheOptions, type Sampler } from 'virtual-kv';

import { LlamaEngine } from './llama/engine.js';
import { LlamaModel } from './llama/model.js';
import { LlamaTokenizer, type ChatMessage } from './llama/tokenizer.js';

const storyteller = path.join(__dirname, '..', 'examples', 'llama', 'storyteller');
const story = ['Tell me a story about a fox named Mia and a red ball.', 'What did Mia lose?', 'What did they eat?'];

const { values: flags } = parseArgs({
  options: {
    'model': { type: 'string', default: storyteller },
    'prompt': { type: 'string', multiple: true },
    'plain': { type: 'boolean', default: false }, // no chat template
    'max-new-tokens': { type: 'string', default: '300' },
    'temperature': { type: 'string' },
    'top-k': { type: 'string' },
    'top-p': { type: 'string' },
    'seed': { type: 'string' },
    'threads': { type: 'string' },
    'driver': { type: 'string', default: 'auto' }, // auto, cuda or host
  },
});

/** A flag's number; nothing where it was not given. */
function numberOf(flag: string | undefined): number | undefined {
  return flag === undefined ? undefined : Number(flag);
}

function samplerOf(): Sampler {
  const [temperature, topK, topP, seed] = [flags.temperature, flags['top-k'], flags['top-p'], flags.seed].map(numberOf);
  const isGreedy = [temperature, topK, topP, seed].every((value) => value === undefined);
  return isGreedy ? greedy : randomSampler({ temperature, topK, topP, seed });
}

async function main(): Promise<void> {
  const model = new LlamaModel(flags.model, { threads: numberOf(flags.threads) });
  const tokenizer = new LlamaTokenizer(flags.model);
  const { endTokens, maxTokens } = model.config;
  using cache = new KvCache({
    model: model.shape(), slots: 4, maxTokens: Math.min(maxTokens, 32_768), memoryBudgetBytes: 2 ** 30,
    driver: flags.driver as KvCacheOptions['driver'], // checked there
  });
  using engine = new LlamaEngine({ model, cache });
  await using scheduler = new OnlineScheduler({ cache, engine });

  console.log(`on ${engine.target}\n`);
  const isChat = tokenizer.hasChatTemplate && !flags.plain;
  const messages: ChatMessage[] = [];
  for (const prompt of flags.prompt ?? (flags.model === storyteller ? story : ['Once upon a time'])) {
    messages.push({ role: 'user', content: prompt });
    const tokens = isChat ? tokenizer.encodeChat(messages) : tokenizer.encode(prompt);
    const maxNewTokens = Math.min(Number(flags['max-new-tokens']), cache.layout.maxTokens - tokens.length);
    process.stdout.write(`> ${prompt}\n`);
    const stream = scheduler.submit({ tokens, maxNewTokens, stopTokens: endTokens, sampler: samplerOf() });
    const textOf = tokenizer.stream();
    let answer = '';
    for await (const token of stream) {
      const text = textOf(token);
      answer += text;
      process.stdout.write(text);
    }
    messages.push({ role: 'assistant', content: answer });
    const { promptTokens, cachedTokens, tokens: generated, firstTokenMs, totalMs } = await stream.result;
    const perSecond = (generated.length - 1) / (totalMs - firstTokenMs) * 1e3;
    console.log(`\n  (${promptTokens} prompt tokens, ${cachedTokens} of them cached; first token after ${firstTokenMs.toFixed(0)} ms, ` +
      `then ${perSecond.toFixed(0)} tokens/s)\n`);
  }
}

main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
});
