// An engine on the cache, and the three schedulers over it. The engine is one attention head, not trained, that copies: it finds
// the place with the longest context equal to the current one, and predicts the token that followed there. It reads the text only
// from the cache's memory, so a wrong row would be a wrong answer. docs/engines.md explains it.
// Run it: npm run example -- serving

import {
  KvCache, NaiveScheduler, OfflineScheduler, OnlineScheduler, type Engine, type EngineOutput, type EnginePass,
  type GenerationRequest,
} from 'virtual-kv';

const DIM = 256; // floats per token in K and in V: a row of 64 KiB holds 64 tokens
const SLOTS = 4;
const VOCABULARY = 128; // ASCII

class CopyingEngine implements Engine {
  readonly vocabularyTokens = VOCABULARY;
  computedTokens = 0;
  readonly #logits = new Float32Array(SLOTS * VOCABULARY); // [sequence, token of the vocabulary], the same every time

  prefill(pass: EnginePass): EngineOutput {
    this.#logits.fill(0);
    for (let i = 0; i < pass.length; i += 1) {
      const [keys, values] = [pass.sequences[i]!.view(0), pass.sequences[i]!.view(1)]; // [token, DIM]: the memory itself
      const end = pass.positions[i]! + pass.tokenCounts[i]!;
      for (let at = pass.positions[i]!; at < end; at += 1) {
        const token = pass.tokens[pass.starts[i]! + at - pass.positions[i]!]!;
        for (let d = 0; d < DIM; d += 1) keys[at * DIM + d] = at > d ? values[(at - 1 - d) * DIM]! : -1; // K: what stood before
        values.fill(token, at * DIM, (at + 1) * DIM); // V: the token
      }
      this.computedTokens += end - pass.positions[i]!;
      if (pass.wantsLogits[i] === 0) continue; // the middle of a prompt
      for (let at = 1; at < end; at += 1) { // attention: the more of what stands before is the same, the better
        let same = 0;
        while (same < DIM && keys[at * DIM + same] === values[(end - 1 - same) * DIM]) same += 1;
        const logit = i * VOCABULARY + values[at * DIM]!;
        this.#logits[logit] = Math.max(this.#logits[logit]!, same);
      }
    }
    return { logits: this.#logits };
  }

  decode(pass: EnginePass): EngineOutput { // the same with one token each; a real engine has another kernel here
    return this.prefill(pass);
  }
}

const system = 'Answer in one line. Tea is made with hot water. Milk comes from a cow. Honey comes from a bee. '.repeat(4);
const questions = ['Tea is m', 'Milk comes f', 'Honey c', 'Tea is m', 'Honey comes from a b'];
const requests: GenerationRequest[] = questions.map((question) => ({
  tokens: [...Buffer.from(system + question)], maxNewTokens: 24, stopTokens: Buffer.from('.'),
}));

async function answersOf(name: string, prefixCache: 'on' | 'off'): Promise<string[]> {
  const cache = new KvCache({
    model: { layers: 1, kvHeads: 1, headDim: DIM, dtype: 'float32' }, driver: 'host', slots: SLOTS, maxTokens: 1024,
    layout: 'per-layer', // a tensor's tokens lie one behind the other: the engine takes no strides
    memoryBudgetBytes: 16 * 2 ** 20, pageBytes: 65_536, prefixCache: prefixCache === 'on' ? {} : 'off',
  });
  const engine = new CopyingEngine();
  const answers: string[] = [];
  if (name === 'online') {
    const scheduler = new OnlineScheduler({ cache, engine });
    await Promise.all(requests.map(async (request, index) => {
      answers[index] = '';
      for await (const token of scheduler.submit(request)) answers[index] += String.fromCharCode(token); // as they come
    }));
    await scheduler.close();
  } else {
    const scheduler = name === 'naive' ? new NaiveScheduler({ cache, engine }) : new OfflineScheduler({ cache, engine });
    for await (const outcome of scheduler.run(requests)) {
      if (outcome.status === 'rejected') throw outcome.reason as Error;
      answers[outcome.index] = Buffer.from(outcome.value.tokens).toString();
    }
  }
  console.log(`${name.padEnd(7)} prefix cache ${prefixCache.padEnd(3)} ${engine.computedTokens} tokens computed`);
  cache.close();
  return answers;
}

async function main(): Promise<void> {
  const all: string[][] = [];
  for (const name of ['naive', 'offline', 'online']) {
    for (const prefixCache of ['off', 'on'] as const) all.push(await answersOf(name, prefixCache));
  }
  questions.forEach((question, index) => console.log(`${question}[${all[0]![index]}]`));
  if (all.some((answers) => answers.join() !== all[0]!.join())) throw new Error('the answers differ');
}

void main();
