// Memory: the budget as one bar, by what the pages are for; what running sequences map beside what other caches would take for them; the
// cache pool by the age of its text; the tiers below. A card that never had anything to show is left out.

import { byId, bytes, count, counted, drawn, element, percent } from './format.js';
import type { State } from './poll.js';

/** Tokens of a block of the paged cache that is compared with. */
const blockTokens = 16;

/** Shows a card from the first time on that it has something to show. */
function appear(id: string, hasContent: boolean): void {
  if (hasContent) byId(id).hidden = false;
}

export function drawMemory(state: State): void {
  const { cache: { pool, pages, layout } } = state;
  const uncreated = Math.max(0, pool.budgetPages - pool.createdPages);
  const parts = [
    ['running', 'running sequences', pages.running], ['cached', 'cached text, unused now', pages.cached], ['mapped', 'mapped ahead, idle', pages.idle],
    ['ready', 'free', pool.freePages], ['quarantined', 'in quarantine', pool.quarantinedPages], ['none', 'not created', uncreated],
  ] as const;
  const total = Math.max(1, parts.reduce((sum, [, , value]) => sum + value, 0));
  let from = 0;
  const bars = parts.map(([name, , value]) => {
    const rect = drawn('rect', { class: `use-${name}`, x: (1_000 * from / total).toFixed(2), width: (1_000 * value / total).toFixed(2), y: 0, height: 20 });
    from += value;
    return rect;
  });
  drawCompared(state);
  byId('budget').replaceChildren(...bars);
  byId('uses').replaceChildren(...parts.filter(([name, , value]) => value > 0 || name === 'running' || name === 'cached').map(([name, title, value]) =>
    element('li', {}, element('span', { class: `swatch use-${name}` }), element('span', {}, title),
      element('b', {}, bytes(value * layout.pageBytes)), element('small', {}, percent(value / total)))));
}

/**
 * What running sequences map, what a paged cache would take for them, which shares whole blocks too, and what slots
 * that hold all their tokens in every layer would.
 */
function drawCompared({ cache: { slots, pages, layout, windows } }: State): void {
  const bytesOf = ({ pagesPerRow, tokensPerRow }: { readonly pagesPerRow: number; readonly tokensPerRow: number }): number =>
    pagesPerRow * layout.pageBytes / tokensPerRow;
  const tokenBytes = bytesOf(layout);
  const seen = new Set<number>();
  let paged = 0;
  for (const { state, length, runs, windows: mapped } of slots) {
    if (state === 'idle') continue;
    const blocks = Math.ceil(length / blockTokens) * blockTokens;
    let from = 0;
    let own = blocks;
    for (const [endRow, sharers, id] of runs) {
      const tokens = Math.max(0, Math.min(length, endRow * layout.tokensPerRow) - from * layout.tokensPerRow);
      if (sharers > 1 && seen.has(id)) own -= Math.floor(tokens / blockTokens) * blockTokens;
      if (sharers > 1) seen.add(id);
      from = endRow;
    }
    paged += own * tokenBytes;
    for (const at of mapped.keys()) paged += Math.min(blocks, windows[at]!.tokens + blockTokens) * bytesOf(windows[at]!);
  }
  const fixed = layout.slots * layout.maxTokens * (tokenBytes + windows.reduce((sum, set) => sum + bytesOf(set), 0));
  const rows = [
    ['running', 'mapped by this cache', pages.running * layout.pageBytes], ['paged', `paged, blocks of ${blockTokens}`, paged], ['static', 'static slots', fixed],
  ] as const;
  const most = Math.max(1, ...rows.map(([, , value]) => value));
  byId('compared').replaceChildren(...rows.map(([name, title, value]) => element('li', {}, element('span', {}, title), element('b', {}, bytes(value)),
    drawn('svg', { viewBox: '0 0 1000 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
      drawn('rect', { class: `compared-${name}`, width: value === 0 ? 0 : Math.max(4, 1_000 * value / most).toFixed(2), height: 8, y: 0, x: 0 })))));
}

export function drawTiers({ tiers }: State): void {
  appear('tiers-card', tiers.length > 0);
  byId('tiers').replaceChildren(...tiers.map(({ name, state, bytes: held, capacityBytes, promotedTokens }) => element('li', {},
    element('span', {}, name, ...state === 'open' ? [] : [element('span', { class: 'pill' }, state)]),
    element('b', {}, capacityBytes === null ? bytes(held) : `${bytes(held)} of ${bytes(capacityBytes)}`),
    drawn('svg', { viewBox: '0 0 1000 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
      drawn('rect', { class: 'use-cached', width: capacityBytes === null ? 0 : Math.min(1_000, 1_000 * held / capacityBytes).toFixed(2), height: 8, x: 0, y: 0 })),
    element('small', {}, `${counted(promotedTokens, 'token')} came back from it`))));
}

export function drawAge({ cache: { age, layout } }: State): void {
  appear('age-card', age.rows.some((rows) => rows > 0));
  const largest = Math.max(1, ...age.rows);
  const names = [...age.bounds.map((bound) => (bound === 1 ? 'last' : bound < 1_000 ? `≤ ${bound}` : `≤ ${Math.round(bound / 1e3)}k`)), 'older'];
  byId('age').replaceChildren(...age.rows.map((rows, at) => {
    const height = rows === 0 ? 0 : Math.max(2, 64 * rows / largest);
    const svg = drawn('svg', { viewBox: '0 0 40 64', preserveAspectRatio: 'none', 'aria-hidden': 'true' }, drawn('rect', { x: 0, width: 40, y: 64 - height, height, rx: 2 }));
    const size = bytes(rows * layout.pagesPerRow * layout.pageBytes);
    return element('li', { title: `${counted(rows, 'row')}, ${size}: used ${at === 0 ? 'by the last request that ended' : `${names[at]!} requests ago`}` },
      element('b', {}, rows === 0 ? '' : count(rows)), svg, element('span', {}, names[at]!));
  }));
  byId('age-note').textContent = `Rows of cached text that no request uses, by the requests that ended since its last use; ${counted(age.requests, 'request')} so far.`;
}

/** The queue: a block for each request that waits, higher for longer prompts, darker the longer it waits. */
export function drawQueue({ requests: { waiting, waitingCount, maxWaiting }, history }: State): void {
  appear('queue-card', waitingCount > 0 || history.waiting.some((count) => count > 0));
  const longest = Math.max(1, ...waiting.map(({ promptTokens }) => promptTokens));
  const oldest = Math.max(1, ...waiting.map(({ ageMs }) => ageMs));
  const blocks = waiting.map(({ number, promptTokens, ageMs, preemptions }, at) => {
    const height = 6 + 22 * promptTokens / longest;
    const rect = drawn('rect', {
      class: preemptions > 0 ? 'waits preempted' : 'waits', x: 11 * at, y: 28 - height, width: 8, height, rx: 1.5, 'fill-opacity': (0.35 + 0.65 * ageMs / oldest).toFixed(2),
    }, drawn('title', {}, `request ${number}: ${counted(promptTokens, 'prompt token')}, waits ${(ageMs / 1e3).toFixed(1)} s`));
    return rect;
  });
  byId('queue').toggleAttribute('hidden', waitingCount === 0);
  byId('queue').replaceChildren(...blocks);
  byId('queue-note').textContent = waitingCount === 0 ? `No request waits; ${count(maxWaiting)} may.` : `${counted(waitingCount, 'request')} of at most ${count(maxWaiting)} wait for a slot or for memory.`;
}
