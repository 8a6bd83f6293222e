// Memory: the budget as one bar, by what the pages are for, and the cache pool by the age of its text.

import { byId, bytes, count, counted, drawn, element, percent } from './format.js';
import type { State } from './poll.js';

export function drawMemory({ cache: { pool, pages, layout } }: State): void {
  const uncreated = Math.max(0, pool.budgetPages - pool.createdPages);
  const parts = [
    ['running', 'running sequences', pages.running], ['cached', 'cached text in no use', pages.cached], ['mapped', 'mapped ahead, idle', pages.idle],
    ['ready', 'free', pool.freePages], ['quarantined', 'in quarantine', pool.quarantinedPages], ['none', 'not created', uncreated],
  ] as const;
  const total = Math.max(1, parts.reduce((sum, [, , value]) => sum + value, 0));
  let from = 0;
  const bars = parts.map(([name, , value]) => {
    const rect = drawn('rect', { class: `use-${name}`, x: (1_000 * from / total).toFixed(2), width: (1_000 * value / total).toFixed(2), y: 0, height: 20 });
    from += value;
    return rect;
  });
  byId('budget').replaceChildren(...bars);
  byId('uses').replaceChildren(...parts.filter(([name, , value]) => value > 0 || name === 'running' || name === 'cached').map(([name, title, value]) =>
    element('li', {}, element('span', { class: `swatch use-${name}` }), element('span', {}, title),
      element('b', {}, bytes(value * layout.pageBytes)), element('small', {}, percent(value / total)))));
}

export function drawAge({ cache: { age, layout } }: State): void {
  const largest = Math.max(1, ...age.rows);
  const names = [...age.bounds.map((bound) => (bound === 1 ? 'last' : bound < 1_000 ? `≤ ${bound}` : `≤ ${Math.round(bound / 1e3)}k`)), 'older'];
  byId('age').replaceChildren(...age.rows.map((rows, at) => {
    const height = rows === 0 ? 0 : Math.max(2, 64 * rows / largest);
    const svg = drawn('svg', { viewBox: '0 0 40 64', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, drawn('rect', { x: 0, width: 40, y: 64 - height, height, rx: 2 }));
    const size = bytes(rows * layout.pagesPerRow * layout.pageBytes);
    return element('li', { title: `${counted(rows, 'row')}, ${size}: used ${at === 0 ? 'by the last request that ended' : `${names[at]!} requests ago`}` },
      element('b', {}, rows === 0 ? '' : count(rows)), svg, element('span', {}, names[at]!));
  }));
  byId('age-note').textContent = `Rows of cached text in no use, by how many requests ended since it was used last; ${counted(age.requests, 'request')} so far.`;
}

/** The queue: a block for each request that waits, higher for longer prompts, darker the longer it waits. */
export function drawQueue({ requests: { waiting, waitingCount, maxWaiting } }: State): void {
  const longest = Math.max(1, ...waiting.map(({ promptTokens }) => promptTokens));
  const oldest = Math.max(1, ...waiting.map(({ ageMs }) => ageMs));
  const blocks = waiting.map(({ number, promptTokens, ageMs, preemptions }, at) => {
    const height = 6 + 22 * promptTokens / longest;
    const rect = drawn('rect', {
      class: preemptions > 0 ? 'waits preempted' : 'waits', x: 11 * at, y: 28 - height, width: 8, height, rx: 1.5, 'fill-opacity': (0.35 + 0.65 * ageMs / oldest).toFixed(2),
    }, drawn('title', {}, `request ${number}: ${counted(promptTokens, 'prompt token')}, waits ${(ageMs / 1e3).toFixed(1)} s`));
    return rect;
  });
  byId('queue').replaceChildren(...blocks);
  byId('queue-note').textContent = waitingCount === 0 ? `No request waits; ${count(maxWaiting)} may.` : `${counted(waitingCount, 'request')} of at most ${count(maxWaiting)} wait for a slot or for memory.`;
}
