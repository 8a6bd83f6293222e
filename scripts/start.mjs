// `npm start`: the main job, from a clean clone. Installs and builds what is missing, loads the small Llama of this repository,
// and serves requests that share prefixes through three schedulers, without and with the prefix cache; writes the report's
// plot to serving-report.svg. `npm start -- --prompt "…"` streams a completion instead, `-- --model FOLDER` one of that model.

import { prepare, prepareFolder, runNode } from './prepare.mjs';

const help = `npm start                                    serve requests that share prefixes, without and with the prefix cache
npm start -- --prompt "Tell me a story."     stream a completion of the small model of this repository
npm start -- --serve [--model FOLDER]        serve that model, or another, behind OpenAI's HTTP API
npm start -- --model FOLDER [--prompt TEXT]  stream a completion of a Llama, Mistral, Qwen2 or Qwen3 from Hugging Face

Flags of the first: npm run example -- serving-benchmark --help. Flags of the others: npm run example -- llama --help, npx vkv serve --help.
`;

const given = process.argv.slice(2);
const has = (...flags) => given.some((argument) => flags.includes(argument.split('=', 1)[0]));
if (has('--help', '-h')) process.stdout.write(help);
else if (has('--serve')) {
  prepare();
  const flags = given.filter((argument) => argument !== '--serve');
  process.exitCode = runNode('dist/cli/vkv.js', ['serve', ...(has('--model') ? [] : ['--model', 'examples/llama/storyteller']), ...flags]);
} else {
  prepare();
  prepareFolder('examples');
  const isPrompt = has('--prompt', '--model');
  process.exitCode = isPrompt
    ? runNode('build-examples/llama.js', given)
    : runNode('build-examples/serving-benchmark.js', ['--report', 'serving-report.svg', ...given]);
  if (!isPrompt && process.exitCode === 0) console.log('\nNext: npm start -- --prompt "Tell me a story."');
}
