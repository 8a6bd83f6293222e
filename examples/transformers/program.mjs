// A program on transformers.js. It knows nothing of virtual-kv.

import { env, pipeline } from '@huggingface/transformers';

env.localModelPath = '/';
const generator = await pipeline('text-generation', process.argv[2], { dtype: 'fp32' });
const line = 'Once upon a time there was a fox who lived in a forest. The fox had a friend, a small bird. ';
const options = { max_new_tokens: 16, do_sample: false, return_full_text: false };
for (const end of ['One day the fox', 'One night the bird', 'In the morning']) {
  const startMs = performance.now();
  const [{ generated_text: text }] = await generator(line.repeat(25) + end, options);
  console.log(`${(performance.now() - startMs).toFixed(0).padStart(6)} ms  ${end}${text}`);
}
