// The screen of `vkv top`: the state of a server as lines of text that fit a terminal. Shared rows have a letter for each prefix, so that
// they can be told apart without colours. Computes nothing but widths.

import colours = require('picocolors');

import { formatBytes, formatCount, formatNumber, printable } from '../base/format.js';
import type { ServerState } from '../server/watch-state.js';

type Slot = ServerState['cache']['slots'][number];
type Paint = (text: string) => string;

export interface ScreenOptions {
  /** Columns of the terminal. */
  readonly columns: number;
  /** Lines at most. */
  readonly lines: number;
  /** Why the state is not the newest. */
  readonly problem?: string | undefined;
}

/** The end of the screen; `window` where there are sets with windows. */
const windowLegend = '▀ window';
const legend = ['A, B, …: a shared prefix', '█ own', '░ not used yet', '▒ kept', 'q ends'];

/** Columns of the names of facts. */
const nameWidth = 10;

const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz';
const paints: readonly Paint[] = [colours.cyan, colours.yellow, colours.magenta, colours.green, colours.red, colours.white];

/** Lines of the screen. A control sequence in a text of the server's does not reach the terminal. */
export function topScreen(given: ServerState, { columns, lines, problem }: ScreenOptions): string[] {
  const state = JSON.parse(JSON.stringify(given), (_, value: unknown) => (typeof value === 'string' ? printable(value) : value)) as ServerState;
  const head = [titleLine(state, columns, problem), '', ...factLines(state, columns), ''];
  const { slots, layout, windows } = state.cache;
  const foot = wrapped([...windows.length > 0 ? [windowLegend] : [], ...legend], columns);
  const shown = slots.filter(({ state: of, rows }) => of !== 'idle' || rows > 0).sort((a, b) => Number(a.state === 'idle') - Number(b.state === 'idle') || a.slot - b.slot);
  const linesOf = ({ windows: mapped }: Slot): number => 1 + mapped.filter(([first, end]) => end > first).length;
  let room = lines - head.length - 1 - foot.length; // the scale, and the legend
  const isCut = shown.reduce((sum, slot) => sum + linesOf(slot), 0) > room;
  if (isCut) room -= 1; // how many more there are
  const drawn = shown.filter((slot) => (room -= linesOf(slot)) >= 0);
  const mapWidth = Math.max(10, columns - 32);
  const scaleTokens = Math.min(layout.maxTokens, Math.max(
    Math.min(layout.maxTokens, layout.tokensPerRow),
    ...shown.map(({ rows, windows: mapped }) => Math.max(rows * layout.tokensPerRow, ...mapped.map(([, end], at) => end * windows[at]!.tokensPerRow))),
  ));
  const names = letterNames(shown);
  const numbers = new Map(state.requests.running.map(({ slot, number }) => [slot, number]));
  const scale = `0 … ${formatNumber(Math.round(scaleTokens))} of ${formatNumber(layout.maxTokens)} tokens`;
  return [
    ...head, colours.dim(`slot  request    tokens  rows  ${scale}`.slice(0, columns)),
    ...drawn.flatMap((slot) => [
      slotLine(slot, numbers.get(slot.slot), { mapWidth, scaleTokens, names, tokensPerRow: layout.tokensPerRow }),
      ...windowLines(slot, windows, mapWidth / scaleTokens),
    ]),
    ...isCut ? [colours.dim(`and ${formatCount('slot', shown.length - drawn.length)} more`)] : [],
    ...shown.length === 0 ? [colours.dim('No slot has memory.')] : [],
    ...foot.map((line) => colours.dim(line)),
  ];
}

function titleLine({ modelName: name, driver, uptimeMs, version, isClosing, cache: { layout } }: ServerState, columns: number, problem: string | undefined): string {
  const slots = `${formatCount('slot', layout.slots)} of ${formatNumber(layout.maxTokens)} tokens`;
  const parts = [...isClosing ? ['ending'] : [], driver, slots, `up ${duration(uptimeMs)}`, `virtual-kv ${version}`];
  const [about = ''] = wrapped(parts, columns - name.length - 2); // what does not fit is left out
  if (problem !== undefined) return `${colours.bold(name)}  ${colours.red(problem.slice(0, Math.max(0, columns - name.length - 2)))}`;
  return `${colours.bold(name)}  ${isClosing ? colours.yellow(about) : colours.dim(about)}`;
}

function factLines({ requests, recent, totals, prefixes, cache: { pool, pages, layout, age } }: ServerState, columns: number): string[] {
  const size = (count: number): string => formatBytes(count * layout.pageBytes);
  const budget = Math.max(1, pool.budgetPages);
  const width = Math.max(10, Math.min(30, columns - 72));
  const running = Math.round(width * pages.running / budget);
  const cached = Math.min(width - running, Math.ceil(width * (pages.cached + pages.idle) / budget));
  const bar = colours.blue('█'.repeat(Math.min(width, running))) + colours.cyan('▒'.repeat(cached)) + colours.dim('·'.repeat(Math.max(0, width - running - cached)));
  const times = (name: string, { p50, p90 }: ServerState['recent']['wait']): string =>
    (columns < 90 ? `${name} ${duration(p50)}, ${duration(p90)}` : `${name} ${duration(p50)} (p90 ${duration(p90)})`);
  const pooled = age.rows.reduce((sum, rows) => sum + rows, 0);
  const facts: readonly (readonly [string, readonly string[]])[] = [
    ['requests', [
      `${formatNumber(requests.running.length)} running, ${formatNumber(requests.waitingCount)} waiting`,
      `${formatNumber(totals.completedRequests)} answered, ${formatNumber(totals.failedRequests)} failed, ` +
        formatCount('preemption', totals.preemptions),
    ]],
    ['speed', [
      `${formatNumber(recent.tokensPerSecond, 1)} tokens/s`,
      `${formatNumber(recent.stepsPerSecond, 1)} steps/s, over ${duration(recent.windowMs)}`,
    ]],
    [columns < 90 ? 'p50, p90' : 'times', [
      times('wait', recent.wait), times('first token', recent.firstToken), times('between', recent.betweenTokens),
    ]],
    ['cache', [
      `${share(recent.hitRate)} of prompts lately, ${share(prefixes.hitRate)} in all`, `${formatCount('row', pooled)} in the pool`,
    ]],
  ];
  const uses = `${size(pages.running)} running, ${size(pages.cached + pages.idle)} kept, of ${size(pool.budgetPages)}`;
  const memory = nameWidth + width + 1 + uses.length <= columns ? [`${bar} ${uses}`] : [bar, uses];
  const named = (name: string, lines: readonly string[]): string[] =>
    lines.map((line, at) => `${colours.dim((at === 0 ? name : '').padEnd(nameWidth))}${line}`);
  return [...facts.flatMap(([name, parts]) => named(name, wrapped(parts, columns - nameWidth))), ...named('memory', memory)];
}

/** Parts with dots between them, on as many lines as they need. */
function wrapped(parts: readonly string[], width: number): string[] {
  const lines: string[] = [];
  for (const part of parts) {
    const last = lines.at(-1);
    const joined = last === undefined ? part : `${last} · ${part}`;
    if (last !== undefined && joined.length <= width) lines[lines.length - 1] = joined;
    else lines.push(part.slice(0, Math.max(0, width)));
  }
  return lines;
}

interface LineOptions {
  readonly mapWidth: number;
  /** Tokens of the whole width. */
  readonly scaleTokens: number;
  readonly names: ReadonlyMap<number, number>;
  readonly tokensPerRow: number;
}

function slotLine({ slot, state, length, rows, runs, isQuarantined }: Slot, request: number | undefined, { mapWidth, scaleTokens, names, tokensPerRow }: LineOptions): string {
  const who = request === undefined ? isQuarantined ? 'lost' : state === 'idle' ? 'kept' : state : `#${request}`;
  const cell = (tokens: number): string => {
    const row = tokens / tokensPerRow;
    const run = runs.find(([endRow]) => row < endRow);
    if (run === undefined || row >= rows) return ' ';
    if (state !== 'idle' && tokens >= length) return colours.dim('░');
    const [, sharers, id] = run;
    const name = names.get(id);
    if (sharers > 1 && name !== undefined) return paints[name % paints.length]!(letters[name % letters.length]!);
    return state === 'idle' ? colours.dim('▒') : colours.blue('█');
  };
  const map = Array.from(
    { length: Math.ceil(mapWidth * Math.min(1, rows * tokensPerRow / scaleTokens)) },
    (_, at) => cell(at * scaleTokens / mapWidth),
  ).join('');
  return `${String(slot).padStart(4)}  ${who.padEnd(9)} ${formatNumber(length).padStart(7)} ${formatNumber(rows).padStart(5)}  ${map}`;
}

/** A line for each set with a window of which the slot maps rows: they lie where its tokens are. */
function windowLines({ windows: mapped }: Slot, sets: ServerState['cache']['windows'], columnsPerToken: number): string[] {
  return mapped.flatMap(([first, end], at) => {
    if (end === first) return [];
    const { kind, tokens, tokensPerRow } = sets[at]!;
    const column = (row: number): number => Math.floor(row * tokensPerRow * columnsPerToken);
    const name = `${kind} of ${formatNumber(tokens)}`.padStart(23);
    const width = Math.max(1, column(end) - column(first));
    return [`${colours.dim(`${name} ${formatNumber(end - first).padStart(5)}`)}  ${' '.repeat(column(first))}${colours.magenta('▀'.repeat(width))}`];
  });
}

/** A number for each shared run, in the order in which the slots show them. */
function letterNames(slots: readonly Slot[]): Map<number, number> {
  const names = new Map<number, number>();
  for (const { runs } of slots) for (const [, sharers, id] of runs) if (sharers > 1 && !names.has(id)) names.set(id, names.size);
  return names;
}

function share(value: number | null): string {
  return value === null ? '–' : `${formatNumber(100 * value)} %`;
}

function duration(ms: number | null): string {
  if (ms === null) return '–';
  if (ms < 1_000) return `${formatNumber(ms, ms < 10 ? 1 : 0)} ms`;
  if (ms < 120_000) return `${formatNumber(ms / 1e3, ms < 10_000 ? 1 : 0)} s`;
  return ms < 7_200_000 ? `${formatNumber(ms / 60_000)} min` : `${formatNumber(ms / 3_600_000, 1)} h`;
}
