// Runs the reference engine with the model of this repository on the device and on the CPU: with the package's kernels the likeliest
// tokens of some texts must be the same, decoding queued and as a captured step. Times it with those and with cuBLAS, which may refuse
// to be captured. Works on tokens: no tokenizer is needed.

import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..');
const require = createRequire(import.meta.url);
const promptTokens = 64;

/** Texts that begin at different places of the vocabulary; the first token begins a text. */
function texts(vocabularyTokens, count) {
  return Array.from({ length: count }, (_, text) =>
    Array.from({ length: promptTokens }, (_, at) => at === 0 ? 0 : 5 + ((text * 131 + at * (17 + text)) % (vocabularyTokens - 5))));
}

/** How far two logits, sums of floats, may be apart and still change places. */
const tie = 1e-3;

/** The tokens that follow each text, by how much each is the likeliest, and the milliseconds of prefilling and decoding. */
function generate(driver, { KvCache }, { model, engineOf, newTokens }) {
  const prompts = texts(model.config.vocabularyTokens, 4);
  const cache = new KvCache({
    work: 'awaited', layout: 'per-layer', model: model.shape('float32'), slots: prompts.length, maxTokens: promptTokens + newTokens, memoryBudgetBytes: 2 ** 28, driver,
    prefixCache: 'off',
  });
  const engine = engineOf(cache);
  const sequences = prompts.map(() => cache.acquire());
  const batch = cache.createBatch();
  const answers = prompts.map(() => []);
  const leads = prompts.map(() => []);
  const step = (tokens) => {
    batch.clear();
    sequences.forEach((sequence, index) => batch.add(sequence, tokens[index].length));
    cache.prepare(batch);
    const begin = performance.now();
    const { logits } = engine[tokens[0].length === 1 ? 'decode' : 'prefill']({
      length: prompts.length, slots: Int32Array.from(sequences, ({ slot }) => slot),
      positions: Int32Array.from(sequences, ({ length }) => length),
      tokenCounts: Int32Array.from(tokens, ({ length }) => length), tokens: Int32Array.from(tokens.flat()),
      wantsLogits: new Uint8Array(prompts.length).fill(1),
    });
    const ms = performance.now() - begin;
    cache.commit(batch);
    const width = engine.vocabularyTokens;
    answers.forEach((answer, index) => {
      const row = logits.subarray(index * width, (index + 1) * width);
      const best = row.reduce((most, logit, token) => logit > row[most] ? token : most, 0);
      const next = row.reduce((most, logit, token) => token === best ? most : Math.max(most, logit), -Infinity);
      answer.push(best);
      leads[index].push(row[best] - next);
    });
    return ms;
  };
  const prefillMs = step(prompts);
  let decodeMs = 0;
  for (let at = 1; at < newTokens; at += 1) decodeMs += step(answers.map((answer) => [answer.at(-1)]));
  const { target } = engine;
  for (const sequence of sequences) sequence.release();
  engine.close();
  cache.close();
  return { target, answers, leads, prefillMs, decodeMs };
}

/** Rows for a table, and whether the device's tokens were the CPU's. */
export function runEngine(driver, api) {
  const { LlamaEngine } = require(path.join(root, 'dist', 'llama', 'engine.js'));
  const { LlamaModel } = require(path.join(root, 'dist', 'llama', 'model.js'));
  const folder = path.join(root, 'examples', 'llama', 'storyteller');
  const newTokens = driver.memory().totalBytes < 8 * 2 ** 30 ? 8 : 64;
  const run = (on, cublas, decoding) => {
    const model = new LlamaModel(folder, { cublas });
    const use = { model, engineOf: (cache) => new LlamaEngine({ model, cache, decoding, passes: 'blocking' }), newTokens };
    generate(on, api, { ...use, newTokens: 2 }); // warms up the compiler
    return generate(on, api, use);
  };
  const host = api.Driver.open('host');
  const expected = { decoding: 'queued', ...run(host, 'off', 'queued') };
  host.close();
  const attempt = (cublas, decoding) => {
    try {
      return { decoding, ...run(driver, cublas, decoding) };
    } catch (error) {
      if (driver.isLost) throw error;
      return { decoding, target: `cuBLAS ${cublas}`, refusal: error.message };
    }
  };
  const own = [attempt('off', 'queued'), attempt('off', 'captured')];
  const library = process.env.VKV_CUBLAS || 'auto';
  const runs = [expected, ...own, attempt(library, 'queued'), attempt(library, 'captured')];
  const sequences = expected.answers.length;
  const table = runs.map(({ target, decoding, refusal, answers, prefillMs, decodeMs }) => ({
    'on': target, decoding,
    ...refusal === undefined
      ? {
        'prefill tokens/s': (sequences * promptTokens) / prefillMs * 1e3, 'decode tokens/s': (sequences * (newTokens - 1)) / decodeMs * 1e3,
        'tokens as the CPU\'s': answers.flat().filter((token, at) => token === expected.answers.flat()[at]).length, 'of': sequences * newTokens,
      }
      : { refusal },
  }));
  // After the first different token the texts differ; at that token the CPU must have had two equally good candidates.
  const isSame = own.every(({ refusal, answers }) => refusal === undefined && expected.answers.every((answer, index) => {
    const at = answer.findIndex((token, place) => token !== answers[index][place]);
    return at === -1 || expected.leads[index][at] < tie;
  }));
  return { table, isSame };
}
