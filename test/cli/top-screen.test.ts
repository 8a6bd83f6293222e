import test from 'ava';

import { topScreen } from '#internal/cli/top-screen.js';
import type { ServerState } from '#internal/server/watch-state.js';
import { WatchedWorld } from '../server/watched-world.js';

type Cache = ServerState['cache'];

/** The screen of a server whose cache has these slots and layer sets; a row is 10 tokens. */
async function screenOf(cache: Pick<Cache, 'slots' | 'windows'>, lines: number, columns = 82, more: Partial<ServerState> = {}): Promise<string[]> {
  const world = new WatchedWorld({});
  try {
    await world.server.listen({ port: 0 });
    const state = await (await fetch(`${world.url}/watch/state`)).json() as ServerState;
    const layout = { ...state.cache.layout, maxTokens: 1_000, tokensPerRow: 10 };
    // eslint-disable-next-line no-control-regex -- escape sequences
    return topScreen({ ...state, ...more, cache: { ...state.cache, ...cache, layout } }, { columns, lines }).map((line) => line.replace(/\u001B\[\d+m/g, ''));
  } finally {
    await world.close();
  }
}

const windows: Cache['windows'] = [
  { kind: 'window', layers: 1, tokens: 40, pagesPerRow: 2, tokensPerRow: 10, mappedPages: 0 },
  { kind: 'chunk', layers: 1, tokens: 200, pagesPerRow: 1, tokensPerRow: 20, mappedPages: 0 },
];
const slot = (number: number, mapped: Cache['slots'][number]['windows']): Cache['slots'][number] =>
  ({ slot: number, state: 'active', generation: 0, length: 500, prepared: 0, earmarked: 0, rows: 50, runs: [[50, 1, -1]], isQuarantined: false, windows: mapped });

test('below a slot there is a line for each layer set with a window of which it maps rows, where its tokens are', async (t) => {
  const lines = await screenOf({ windows, slots: [slot(0, [[45, 50], [20, 25]]), slot(1, [[46, 50], [0, 0]])] }, 40);
  const from = lines.findIndex((line) => line.startsWith('slot '));
  t.deepEqual(lines.slice(from + 1, from + 6), [
    `   0  active        500    50  ${'█'.repeat(50)}`,
    `           window of 40     5  ${' '.repeat(45)}▀▀▀▀▀`,
    `           chunk of 200     5  ${' '.repeat(40)}${'▀'.repeat(10)}`,
    `   1  active        500    50  ${'█'.repeat(50)}`,
    `           window of 40     4  ${' '.repeat(46)}▀▀▀▀`,
  ]);
  t.regex(lines.at(-1)!, /^▀ window · A, B, …: a shared prefix/);
});

test('a slot is drawn with the lines of its layer sets, or not at all', async (t) => {
  const slots = [0, 1, 2].map((number) => slot(number, [[45, 50], [20, 25]]));
  const whole = await screenOf({ windows, slots }, 40);
  const cut = await screenOf({ windows, slots }, whole.length - 1);
  t.is(whole.filter((line) => line.includes('▀▀')).length, 6);
  t.is(cut.filter((line) => line.includes('▀▀')).length, 4);
  t.true(cut.some((line) => line.startsWith('and 1 slot more')));
});

test('on a narrow terminal facts and legend go on in the next line, and nothing is cut', async (t) => {
  const cache = { windows, slots: [slot(0, [[45, 50], [20, 25]])] };
  const [wide, narrow] = [await screenOf(cache, 40, 89), await screenOf(cache, 40, 50)];
  t.true(narrow.every((line) => line.length <= 50), narrow.join('\n'));
  t.true(narrow.length > wide.length);
  for (const part of ['preemptions', 'steps/s, over', 'between', 'in the pool', 'q ends']) t.true(narrow.some((line) => line.includes(part)), part);
  t.is((await screenOf(cache, narrow.length, 50)).length, narrow.length);
});

test('no control sequence of a server reaches the terminal', async (t) => {
  const bell = 'x\u001B]0;owned\u0007';
  const cache = {
    windows: windows.map((window) => ({ ...window, kind: bell })), slots: [{ ...slot(0, [[45, 50], [20, 25]]), state: bell }],
  } as unknown as Cache;
  const lines = await screenOf(cache, 40, 120, { modelName: bell, driver: bell, version: bell } as unknown as Partial<ServerState>);
  t.true(lines.filter((line) => line.includes('owned')).length >= 3);
  // eslint-disable-next-line no-control-regex -- those looked for
  for (const line of lines) t.notRegex(line, /[\u0000-\u001F]/);
});
