// The picture of the experiment: how much faster the first token comes than with all loaded, over how much is loaded, and what that does to the answer.

import { writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

import type { Measured } from './bench-cache.js';

/** Of the examples, once `npm test` has compiled them. */
interface Charts {
  drawCharts(title: { readonly text: string; readonly lines: readonly string[] }, values: readonly object[], charts: readonly object[]): Promise<string>;
  machine(): string;
}

export async function draw(file: string, experiments: readonly { readonly title: string; readonly results: readonly Measured[] }[]): Promise<void> {
  const { drawCharts, machine } = createRequire(__filename)(path.resolve(__dirname, '..', '..', '..', 'build-examples', 'charts', 'vega.js')) as Charts;
  const shown = experiments.filter(({ title }) => /800 tokens, 8 MB|1500 tokens, 50 MB/.test(title));
  const rows = shown.flatMap(({ title, results }) => {
    const all = results.find(({ way }) => way === 'all from disk')!;
    return results.filter(({ ratio }) => ratio !== undefined).map(({ way, ratio, firstTokenMs, divergence }) => ({ title, way, ratio, faster: all.firstTokenMs / firstTokenMs, divergence }));
  });
  const ways = [...new Set(rows.map(({ way }) => way))];
  const chart = (title: string, field: string, label: string): object => ({
    width: 300, height: 240, transform: [{ filter: `datum.title === '${title}'` }], mark: { type: 'line', strokeWidth: 2, point: { size: 30 } },
    encoding: {
      x: { field: 'ratio', type: 'quantitative', title: 'tokens loaded', axis: { format: '.0%' }, scale: { domain: [0, 1] } },
      y: { field, type: 'quantitative', title: label, scale: { zero: true } },
      color: { field: 'way', type: 'nominal', title: null, sort: ways, legend: { orient: 'top', columns: 3, symbolType: 'stroke', labelLimit: 300 }, scale: { domain: ways, range: ['#1c4f94', '#e07b39', '#3f9b6c', '#8a94a0', '#7db3ee'] } },
    },
  });
  const [words, sizes] = shown.map(({ title }) => title);
  const svg = await drawCharts({
    text: 'Important tokens alone: how soon the first token comes, and how far the answer is from the exact one',
    lines: [`left and middle: ${words}, the storyteller's own stories; right: ${sizes}, random weights`, machine()],
  }, rows, [
    chart(words!, 'faster', '× faster than loading all'), chart(words!, 'divergence', 'KL from the exact answer, nats'),
    ...sizes === undefined ? [] : [chart(sizes, 'faster', '× faster than loading all')],
  ]);
  writeFileSync(file, svg);
}
