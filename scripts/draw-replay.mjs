// Draws docs/replay-memory.svg, the chart of README.md: memory over time of a replay of 400 generated requests with the defaults, on
// this machine's memory. As an <img> a picture has no pointer: the boxes of the report that follow it are left out.
//   node scripts/draw-replay.mjs     in a clone that `npm start` or `npm test` has built
// Exit code 0: the picture is written.

import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';

import { prepare, root } from './prepare.mjs';

const file = path.join(root, 'docs', 'replay-memory.svg');

prepare();
const vkv = path.join(root, 'dist', 'cli', 'vkv.js');
const { status } = spawnSync(process.execPath, [vkv, 'replay', '--generate', '400', '--driver', 'host', '--report', file], { stdio: 'inherit' });
if (status !== 0) process.exit(status ?? 1);
const plain = readFileSync(file, 'utf8')
  .replace(/<g class="look".*?<\/g>/gs, '')
  .replace(/\.look[^{}]*\{[^{}]*\}/g, '')
  .replace(/<g [^>]*tabular-nums"><\/g>/, '')
  .replace(/<(?!svg)[^>]*>/g, (tag) => tag.replace(/ (?:aria-[a-z]+|role|class|pointer-events)="[^"]*"/g, ''));
writeFileSync(file, plain);
console.log(`docs/replay-memory.svg: ${plain.length} bytes`);
