// Decodes one sequence behind token 1 with mapped weights, in a process of its own: node mapped-decode.js FOLDER TOKENS. Sends the tokens, how fast they
// came, and the memory that only this process has, before it opens the model and at its end.

import { KvCache, OnlineScheduler } from 'virtual-kv';
import { LlamaEngine, LlamaModel } from 'virtual-kv/llama';

import { privateBytes } from './private-bytes.js';

/** What the process sends. */
export interface Decoded {
  readonly tokens: readonly number[];
  /** Behind the first one. */
  readonly tokensPerS: number;
  readonly bytesBefore: number;
  readonly privateBytes: number;
}

const [folder, tokens] = process.argv.slice(2);

async function main(): Promise<void> {
  const bytesBefore = privateBytes();
  const model = new LlamaModel(folder!);
  const cache = new KvCache({ model: model.shape(), slots: 1, maxTokens: 2_048, memoryBudgetBytes: 2 ** 28, driver: 'host', pageBytes: 65_536, prefixCache: 'off' });
  const engine = new LlamaEngine({ model, cache });
  const scheduler = new OnlineScheduler({ cache, engine });
  const result = await scheduler.submit({ tokens: Int32Array.of(1), maxNewTokens: Number(tokens) }).result;
  const tokensPerS = 1e3 * (result.tokens.length - 1) / (result.totalMs - result.firstTokenMs);
  process.send!({ tokens: [...result.tokens], tokensPerS, bytesBefore, privateBytes: privateBytes() } satisfies Decoded);
  await scheduler.close();
  engine.close();
  cache.close();
}

if (require.main === module) void main();
