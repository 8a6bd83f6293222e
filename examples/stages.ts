// A pipeline of stages: a language model looks at an image and answers, a second model turns its hidden states into codes of speech, a
// third turns those into samples. Three conversations of seven turns, once without and once with caches: every stage computes only what
// is new, the next one reads cached and new rows as one array, and every output is the same to the last bit. Every stage has a switch.
// Run it: npm run example -- stages, or with caches of some stages off: npm run example -- stages --off encoder,talker

import * as path from 'node:path';

import { LlamaModel, LlamaTokenizer, type ChatMessage } from 'virtual-kv/llama';

import { InvalidArgumentError } from 'commander';

import { exampleCommand, runExample } from './console/command.js';
import { stripes } from './stages/image.js';
import { Pipeline, stageNames, type CacheSwitches, type StageName, type Spoken } from './stages/pipeline.js';

const storyteller = path.join(__dirname, '..', 'examples', 'llama', 'storyteller');
const story = 'There once was a clever fox named Mia. Mia was clever and loved a golden ball. One cold morning the ball was gone. Mia looked in the ' +
  'garden, and looked at the river, and looked in the old forest. Then she met a small bear named Tom. Tom was kind and had seen the ball. ' +
  '"It is on the hill," he said. They went up the hill together, and there it was. Mia was happy. They sat down and ate soup and honey, ' +
  'and went home when the sun was low. ';
const questions = [
  `${story}What did Mia lose?`, 'Who helped her?', 'What did they eat?', 'Where was the ball?', 'Who is Tom?', 'What was the weather like?',
  'Tell me the story again.',
];
const pictures = 3;
const wordsPerAnswer = 32;

interface Run {
  readonly spoken: readonly Spoken[];
  /** Cells of the table, by its rows. */
  readonly cells: readonly string[];
}

/** All conversations side by side, turn by turn. */
async function converse(model: LlamaModel, tokenizer: LlamaTokenizer, caches: CacheSwitches): Promise<Run> {
  const pipeline = new Pipeline(model, caches);
  const stopTokens = [...model.config.endTokens, ...tokenizer.endTokens];
  const messages: ChatMessage[][] = Array.from({ length: pictures }, () => []);
  const spoken: Spoken[] = [];
  const startMs = performance.now();
  for (const content of questions) {
    spoken.push(...await Promise.all(messages.map(async (conversation, picture) => {
      conversation.push({ role: 'user', content });
      const answer = await pipeline.speak(stripes(picture + 1), tokenizer.encodeChat(conversation), wordsPerAnswer, stopTokens);
      const textOf = tokenizer.stream();
      conversation.push({ role: 'assistant', content: [...answer.tokens].map((token) => textOf(token)).join('') });
      return answer;
    })));
  }
  const totalMs = performance.now() - startMs;
  const stages = [pipeline.thinker, pipeline.talker, pipeline.vocoder].flatMap(({ scheduler: { totals } }) => {
    const computed = totals.promptTokens - totals.cachedTokens;
    return [`${totals.promptTokens}`, `${computed}`, `${(totals.prefillMs + totals.decodeMs).toFixed(0)} ms`];
  });
  const cells = [`${pipeline.encodedImages}`, `${pipeline.encoderMs.toFixed(0)} ms`, ...stages, `${totalMs.toFixed(0)} ms`];
  await pipeline.close();
  return { spoken, cells };
}

/** Whether two runs made the same, bit for bit. */
function isSame(one: Spoken, other: Spoken): boolean {
  return (['tokens', 'codes', 'samples'] as const).every((part) => {
    const [a, b] = [one[part], other[part]];
    return Buffer.from(a.buffer, a.byteOffset, a.byteLength).equals(Buffer.from(b.buffer, b.byteOffset, b.byteLength));
  });
}

/** Caches on, but for those of some stages. */
function switches(off: readonly StageName[]): CacheSwitches {
  const [encoder, thinker, talker, vocoder] = stageNames.map((name) => !off.includes(name)) as [boolean, boolean, boolean, boolean];
  return { encoder, thinker, talker, vocoder };
}

function readStages(list: string): readonly StageName[] {
  return list.split(',').map((given) => {
    const name = stageNames.find((stage) => stage === given.trim());
    if (name === undefined) throw new InvalidArgumentError(`Name stages of ${stageNames.join(', ')}.`);
    return name;
  });
}

async function main(): Promise<void> {
  const { off: cacheless } = exampleCommand('stages', 'Three stages behind an encoder, without caches and with them.')
    .option('--off <stages>', `stages whose caches stay off in the second run: ${stageNames.join(', ')}, separated by commas`, readStages, [])
    .parse().opts<{ off: readonly StageName[] }>();
  const caches = switches(cacheless);
  const model = new LlamaModel(storyteller);
  const tokenizer = new LlamaTokenizer(storyteller);
  await converse(model, tokenizer, caches); // warms up
  const off = await converse(model, tokenizer, switches(stageNames));
  const on = await converse(model, tokenizer, caches);
  const stages = ['thinker', 'talker', 'vocoder'].flatMap((stage) => [`${stage}: prompt tokens`, '  of these computed', '  its engine']);
  const rows = ['images encoded', 'encoder', ...stages, 'all of it'];
  console.log(`${pictures} conversations of ${questions.length} turns about an image each\n`);
  console.log(`${''.padEnd(24)}${'caches off'.padStart(12)}${(cacheless.length === 0 ? 'caches on' : 'some on').padStart(12)}`);
  rows.forEach((row, index) => {
    console.log(`${row.padEnd(24)}${off.cells[index]!.padStart(12)}${on.cells[index]!.padStart(12)}`);
  });
  const different = off.spoken.filter((spoken, index) => !isSame(spoken, on.spoken[index]!)).length;
  if (different > 0) throw new Error(`${different} of ${off.spoken.length} requests differ. That is a bug.`);
  const sum = (part: 'tokens' | 'codes' | 'samples'): number => on.spoken.reduce((all, spoken) => all + spoken[part].length, 0);
  console.log(`\nAll ${on.spoken.length} requests are the same, bit for bit: ${sum('tokens')} words, ${sum('codes')} codes, ${sum('samples')} samples.`);
}

runExample(main);
