// What `vkv replay` prints: a progress bar on stderr while it runs (on a terminal only), and at the end a table of facts, memory as
// bars, and the verdict in one sentence. Computes nothing.

import path = require('node:path');

import colours = require('picocolors');

import { formatBytes, formatCount, formatNumber, printable } from '../base/format.js';
import type { ReplayProgress } from '../replay/replay-loop.js';
import { isAllRefused, isSound, type ReplayResult } from '../replay/result.js';
import { factsOf, memoryBarsOf, verdictOf } from '../replay/summary.js';
import { describeModel } from './model-options.js';
import { ProgressBar } from './progress-bar.js';
import { factsTable } from './table.js';

const BAR_WIDTH = 40;

/** The progress bar; does nothing where stderr is no terminal. */
export class ReplayBar {
  readonly #bar: ProgressBar | undefined;

  constructor(stream: NodeJS.WriteStream = process.stderr) {
    if (stream.isTTY) this.#bar = new ProgressBar(stream, colours.cyan, 'starting');
  }

  update({ fraction, completedRequests, runningRequests, memory }: ReplayProgress): void {
    const status = [
      ...(fraction === undefined ? [] : [`${formatNumber(100 * fraction)} %`]),
      `${formatCount('request', completedRequests)} done, ${formatNumber(runningRequests)} running`,
      `${formatBytes(memory.usedBytes)} used of ${formatBytes(memory.mappedBytes)} mapped`,
    ];
    this.#bar?.update(fraction ?? 0, status.join(' · '));
  }

  stop(): void {
    this.#bar?.stop();
  }
}

/** The summary, as lines for stdout. */
export function summaryText(result: ReplayResult): string {
  const { trace, model, driver } = result;
  const title = colours.bold(`Replay of ${printable(path.basename(trace.name))} on ${driver.kind}`);
  const isGood = isSound(result) && !isAllRefused(result);
  const paint = isGood ? (result.interrupted ? colours.yellow : colours.green) : colours.red;
  return [
    `${title}  ${colours.dim(describeModel(model))}`, '',
    factsTable(factsOf(result).map(({ name: fact, value }) => [fact, value] as const)), '',
    colours.bold('Memory at the peak'), ...barLines(result), '',
    paint(verdictOf(result)),
  ].join('\n');
}

function barLines(result: ReplayResult): string[] {
  const bars = memoryBarsOf(result);
  const most = Math.max(...bars.map(({ bytes }) => bytes), 1);
  const nameWidth = Math.max(...bars.map(({ name }) => name.length));
  const sizeWidth = Math.max(...bars.map(({ bytes }) => formatBytes(bytes).length));
  const tints = [colours.yellow, colours.cyan, colours.dim, colours.blue];
  return bars.map(({ name, bytes, note }, index) => {
    const size = formatBytes(bytes).padStart(sizeWidth);
    return `${colours.dim(name.padEnd(nameWidth))}  ${size}  ${tints[index]!(barOf(bytes / most))}  ${colours.dim(note)}`;
  });
}

/** A bar of at most BAR_WIDTH characters, exact to an eighth of one; never empty. */
function barOf(share: number): string {
  const eighths = Math.max(1, Math.round(share * BAR_WIDTH * 8));
  return '█'.repeat(Math.floor(eighths / 8)) + (['', '▏', '▎', '▍', '▌', '▋', '▊', '▉'][eighths % 8] ?? '');
}
