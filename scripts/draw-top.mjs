// Draws docs/top.svg, the moving picture of README.md: `vkv top` of a server of the storyteller while clients with three system prompts
// ask it, as an animated SVG. Requests, memory and times are those of this run; the frames differ a little from run to run.
//   node scripts/draw-top.mjs     in a clone that `npm start` or `npm test` has built
// Exit code 0: the picture is written, and small enough for a page.

import { createRequire } from 'node:module';
import { writeFileSync } from 'node:fs';
import path from 'node:path';

import { prepare, root } from './prepare.mjs';

const columns = 96;
const lines = 22;
const frames = 28;
const frameMs = 400;
const everyMs = 60;
const charWidth = 7.83;
const lineHeight = 17;
const margin = 12;
const mostBytes = 300_000;

process.env.FORCE_COLOR = '1'; // for picocolors, which reads it once
prepare();
const require = createRequire(import.meta.url);
const { KvCache, OnlineScheduler } = require(path.join(root, 'dist', 'index.js'));
const { LlamaEngine, LlamaModel, LlamaTokenizer } = require(path.join(root, 'dist', 'llama', 'index.js'));
const { ModelServer } = require(path.join(root, 'dist', 'server', 'index.js'));
const { topScreen } = require(path.join(root, 'dist', 'cli', 'top-screen.js'));

/** Colours of a terminal by the codes of SGR; dim text is grey. */
const colours = { 2: '#7d8590', 31: '#ff7b72', 32: '#7ee787', 33: '#e3b341', 34: '#4c8dff', 35: '#d2a8ff', 36: '#56d4dd', 37: '#e6edf3' };

const folder = path.join(root, 'examples', 'llama', 'storyteller');
const model = await LlamaModel.load(folder);
const tokenizer = new LlamaTokenizer(folder);
const cache = new KvCache({
  model: model.shape(), slots: 12, maxTokens: 1_024, memoryBudgetBytes: 6 * 2 ** 20, driver: 'host', layout: 'fused', pageBytes: 65_536,
});
const engine = new LlamaEngine({ model, cache });
const scheduler = new OnlineScheduler({ cache, engine, maxWaiting: 64 });
const server = new ModelServer({ scheduler, tokenizer, modelName: 'storyteller', maxTokens: 1_024, stopTokens: tokenizer.endTokens });
const url = await server.listen({ port: 0 });

const heroes = ['fox', 'bear', 'girl', 'boy', 'king', 'cat', 'dog', 'bird'];
const systems = [12, 20, 28].map((sentences, which) =>
  Array.from({ length: sentences }, (_, at) => `Tell of a ${heroes[(at + which) % heroes.length]} and a ${heroes[(3 * at + which) % heroes.length]}.`).join(' '));
let asked = 0;
let isOver = false;
/** A client: asks again and again, each time for another story with one of the system prompts. */
async function client(which) {
  while (!isOver) {
    const number = asked;
    asked += 1;
    await fetch(`${url}/v1/chat/completions`, {
      method: 'POST', headers: { 'content-type': 'application/json' },
      body: JSON.stringify({
        model: 'storyteller', max_tokens: 60 + (number * 53) % 200, temperature: 0.8, seed: number + 1,
        messages: [{ role: 'system', content: systems[which % 3] }, { role: 'user', content: `Story ${number % 7} about a ${heroes[number % 8]}.` }],
      }),
    }).then((response) => response.text());
    await new Promise((resolve) => { setTimeout(resolve, 30 * (which % 4)); });
  }
}

const clients = Array.from({ length: 11 }, (_, which) => client(which));
const screens = [];
while (screens.length < frames) {
  await new Promise((resolve) => { setTimeout(resolve, everyMs); });
  const state = await (await fetch(`${url}/watch/state`)).json();
  if (screens.length > 0 || state.requests.running.length > 6) screens.push(topScreen(state, { columns, lines }));
}
isOver = true;
await Promise.all(clients);
await server.close();
engine.close?.();
cache.close();

const text = draw(screens);
if (text.length > mostBytes) throw new Error(`docs/top.svg would have ${text.length} bytes; a page takes ${mostBytes}.`);
writeFileSync(path.join(root, 'docs', 'top.svg'), text);
console.log(`docs/top.svg  ${text.length} bytes, ${frames} frames`);

function draw(all) {
  const width = Math.ceil(columns * charWidth + 2 * margin);
  const height = lines * lineHeight + 2 * margin;
  const share = 100 / all.length;
  // A line that several frames have alike is drawn once, and seen as long.
  const runs = [];
  for (let line = 0; line < lines; line += 1) {
    for (let at = 0; at < all.length;) {
      let end = at + 1;
      while (end < all.length && all[end][line] === all[at][line]) end += 1;
      if (all[at][line]) runs.push({ line, at, end, text: all[at][line] });
      at = end;
    }
  }
  const spans = new Map();
  for (const { at, end } of runs) spans.set(`${at}-${end}`, { at, end });
  const rules = [...spans].filter(([, { at, end }]) => end - at < all.length).map(([name, { at, end }]) => {
    const from = (at * share).toFixed(2);
    const to = (end * share).toFixed(2);
    const before = at === 0 ? '' : `0%{visibility:hidden}${from}%{visibility:visible}`;
    return `@keyframes k${name}{${at === 0 ? '0%{visibility:visible}' : before}${end === all.length ? '' : `${to}%{visibility:hidden}`}}` +
      `.k${name}{visibility:hidden;animation:k${name} ${all.length * frameMs}ms step-end infinite}`;
  });
  const body = runs.map(({ line, at, end, text: shown }) =>
    `<text y="${margin + lineHeight * (line + 0.8)}" class="k${at}-${end}">${painted(shown)}</text>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" role="img" ` +
    'aria-label="vkv top: requests, memory, and each slot with letters for the prefixes that it shares">\n' +
    `<style>text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#e6edf3;white-space:pre}.b{font-weight:bold}` +
    `${Object.entries(colours).map(([code, colour]) => `.c${code}{fill:${colour}}`).join('')}${rules.join('')}</style>\n` +
    `<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n${body.join('\n')}\n</svg>\n`;
}

/** Text of a terminal as spans, each where its column is, since fonts differ in width. */
function painted(line) {
  let column = 0;
  let classes = '';
  let spans = '';
  // eslint-disable-next-line no-control-regex -- colours
  for (const part of line.split(/(\u001B\[\d+m)/)) {
    // eslint-disable-next-line no-control-regex -- colours
    const code = /^\u001B\[(\d+)m$/.exec(part)?.[1];
    if (code !== undefined) classes = code === '1' ? 'b' : code in colours ? `c${code}` : '';
    else if (part !== '') {
      const at = (margin + column * charWidth).toFixed(1);
      const length = [...part].length;
      if (part.trim() !== '') {
        const width = (length * charWidth).toFixed(1);
        spans += `<tspan x="${at}" textLength="${width}"${classes === '' ? '' : ` class="${classes}"`}>${part.replaceAll('&', '&amp;').replaceAll('<', '&lt;')}</tspan>`;
      }
      column += length;
    }
  }
  return spans;
}
