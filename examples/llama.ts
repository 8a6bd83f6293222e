// A Llama on the cache: loads a Hugging Face folder (Llama, Mistral, Qwen2, Qwen3; safetensors), and answers as it generates.
// Without arguments the small storyteller that comes with the repository tells a story and answers questions about it: each
// turn adopts the slot of the one before, so that only the new tokens are computed.
// Run it: npm run example -- llama
//         npm run example -- llama --model ./Llama-3.2-1B-Instruct --prompt "Why is the sky blue?" --temperature 0.7 --top-p 0.9
//         npm run example -- llama --driver host (default: the GPU where there is one)

import * as path from 'node:path';

import { Option } from 'commander';

import { greedy, KvCache, OnlineScheduler, randomSampler, type GenerationResult, type Sampler } from 'virtual-kv';
import { LlamaEngine, LlamaModel, LlamaTokenizer, type ChatMessage } from 'virtual-kv/llama';

import { anyNumber, exampleCommand, runExample, wholeNumber } from './console/command.js';

const storyteller = path.join(__dirname, '..', 'examples', 'llama', 'storyteller');
const story = ['Tell me a story about a fox named Mia and a red ball.', 'What did Mia lose?', 'What did they eat?'];
const memoryBudgetBytes = 2 ** 30;

interface Flags {
  readonly model: string;
  readonly prompt?: readonly string[];
  readonly plain?: boolean;
  readonly maxNewTokens: number;
  readonly temperature?: number;
  readonly topK?: number;
  readonly topP?: number;
  readonly seed?: number;
  readonly threads?: number;
  readonly kvDtype?: 'float32' | 'float16' | 'bfloat16';
  readonly driver: 'auto' | 'cuda' | 'host';
}

const flags = exampleCommand('llama', 'Answers prompts with a model from a Hugging Face folder, token by token.')
  .addOption(new Option('--model <folder>', 'config.json, tokenizer.json and safetensors; or a .gguf file').default(storyteller, 'the storyteller'))
  .option('--prompt <text>', 'what to answer; again for the next turn', (text: string, before: readonly string[] = []) => [...before, text])
  .option('--plain', 'no chat template')
  .option('--max-new-tokens <count>', 'tokens of an answer at most', wholeNumber(1), 300)
  .option('--temperature <number>', 'above 0 answers vary; 0 takes the likeliest token', anyNumber(0))
  .option('--top-k <count>', 'choose among so many tokens', wholeNumber(1))
  .option('--top-p <share>', 'choose among the tokens with this share of the probability', anyNumber(0, 1))
  .option('--seed <number>', 'another seed, another answer', wholeNumber(0))
  .option('--threads <count>', 'threads on the CPU', wholeNumber(1))
  .addOption(new Option('--kv-dtype <name>', "type of K and V; bfloat16 moved logits by up to 0.08 of 11 on a real shape, and a likeliest token (default: the weights')")
    .choices(['float32', 'float16', 'bfloat16']))
  .addOption(new Option('--driver <kind>', 'where to compute').choices(['auto', 'cuda', 'host']).default('auto'))
  .parse().opts<Flags>();

function samplerOf({ temperature, topK, topP, seed }: Flags): Sampler {
  const isGreedy = temperature === 0 || [temperature, topK, topP, seed].every((value) => value === undefined);
  return isGreedy ? greedy : randomSampler({ temperature, topK, topP, seed });
}

/** Tokens that a sequence can have: those the model was made for, as far as there is memory for them. */
function longestText({ layout, pool }: KvCache): number {
  return Math.min(layout.maxTokens, layout.tokensIn(Math.floor(pool.counts().budgetPages / layout.pagesPerRow)));
}

function summaryOf({ promptTokens, cachedTokens, tokens, finishReason, firstTokenMs, totalMs }: GenerationResult, mostTokens: number): string {
  const speed = tokens.length > 1 ? `, then ${((tokens.length - 1) / (totalMs - firstTokenMs) * 1e3).toFixed(0)} tokens/s` : '';
  const end = promptTokens + tokens.length > mostTokens ? 'where the context ends' : 'by --max-new-tokens';
  const cut = finishReason === 'stop' ? '' : `; cut ${end}`;
  return `(${promptTokens} prompt tokens, ${cachedTokens} of them cached; first token after ${firstTokenMs.toFixed(0)} ms${speed}${cut})`;
}

async function main(): Promise<void> {
  const model = new LlamaModel(flags.model, { threads: flags.threads });
  const tokenizer = new LlamaTokenizer(flags.model);
  const stopTokens = [...model.config.endTokens, ...tokenizer.endTokens];
  using cache = new KvCache({
    model: model.shape(flags.kvDtype), slots: 4, maxTokens: Math.min(model.config.maxTokens, 32_768), memoryBudgetBytes, driver: flags.driver,
  });
  using engine = new LlamaEngine({ model, cache });
  await using scheduler = new OnlineScheduler({ cache, engine });
  const mostTokens = longestText(cache);

  console.log(`on ${engine.target}\n`);
  const isChat = tokenizer.hasChatTemplate && flags.plain !== true;
  const messages: ChatMessage[] = [];
  for (const prompt of flags.prompt ?? (flags.model === storyteller ? story : ['Once upon a time'])) {
    messages.push({ role: 'user', content: prompt });
    const tokens = isChat ? tokenizer.encodeChat(messages) : tokenizer.encode(prompt);
    if (tokens.length === 0) throw new Error('The prompt has no tokens. Give --prompt some text.');
    if (tokens.length > mostTokens) {
      throw new Error(`The prompt${messages.length > 1 ? ', with what was said before,' : ''} has ${tokens.length} tokens; there is room ` +
        `for ${mostTokens}. Shorten it, or give a --model for longer texts.`);
    }
    const maxNewTokens = Math.min(flags.maxNewTokens, mostTokens - tokens.length + 1); // the last one needs no room
    console.log(`> ${prompt}`);
    const stream = scheduler.submit({ tokens, maxNewTokens, stopTokens, sampler: samplerOf(flags) });
    const textOf = tokenizer.stream();
    let answer = '';
    for await (const token of stream) {
      const text = textOf(token);
      answer += text;
      process.stdout.write(text);
    }
    messages.push({ role: 'assistant', content: answer });
    console.log(`\n  ${summaryOf(await stream.result, mostTokens)}\n`);
  }
}

runExample(main);
