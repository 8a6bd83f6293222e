'use strict';
// `node scripts/progress.cjs TITLE COMMAND…`: runs a build and says how far it is: files done of all, as ninja counts them ([12/135]), or
// the share that make tells ([ 9%]). Its output is shown when it fails. Exit code: the command's.
const { spawn } = require('node:child_process');

const [title, command, ...args] = process.argv.slice(2);
const { isTTY } = process.stderr;
const startMs = performance.now();
let output = '';
let shown = '';
/** Where lines cannot be written over, a tenth is news. */
let lastTenth = 0;

function show(text, share) {
  if (text === shown) return;
  shown = text;
  if (isTTY) process.stderr.write(`\r\u001B[Kvirtual-kv: ${title} … ${text}`);
  else if (Math.floor(10 * share) > lastTenth && share < 1) {
    lastTenth = Math.floor(10 * share);
    process.stderr.write(`${text}, `);
  }
}

process.stderr.write(`virtual-kv: ${title} … `);
const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'] });
for (const stream of [child.stdout, child.stderr]) {
  stream.setEncoding('utf8').on('data', (text) => {
    output += text;
    const counts = [...text.matchAll(/^\[(\d+)\/(\d+)\]/gm)].at(-1);
    const percent = [...text.matchAll(/^\[ *(\d+)%\]/gm)].at(-1);
    if (counts && counts[2] > 20) show(`${counts[1]} of ${counts[2]} files`, counts[1] / counts[2]);
    else if (percent) show(`${percent[1]} %`, percent[1] / 100);
  });
}
child.on('error', (error) => { output += error.message; });
child.on('close', (code) => {
  const end = code === 0 ? `${((performance.now() - startMs) / 1e3).toFixed(1)} s` : `failed\n${output}`;
  process.stderr.write(`${isTTY ? `\r\u001B[Kvirtual-kv: ${title} … ` : ''}${end}\n`);
  process.exitCode = code ?? 1;
});
