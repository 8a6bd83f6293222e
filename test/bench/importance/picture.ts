// The picture of the experiment: what loading fewer tokens does to what is read and to the answer, and what memory above the disk does. Bytes, which
// repeat, and not times, which on a slow disk follow from them.

import { writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import * as path from 'node:path';

import type { Measured } from './bench-cache.js';

/** Of the examples, once `npm test` has compiled them. */
interface Charts {
  drawCharts(title: { readonly text: string; readonly lines: readonly string[] }, values: readonly object[], charts: readonly object[]): Promise<string>;
  machine(): string;
}

/** What was measured, under its title. */
export interface Drawn {
  readonly title: string;
  readonly results: readonly Measured[];
}

const colours: Readonly<Record<string, string>> = {
  'first and last': '#3f9b6c', 'random': '#8a94a0', 'all heads (H2O)': '#e07b39', 'probe heads (IMPRESS)': '#1c4f94', 'probe heads, reordered': '#7db3ee', 'one probe head, reordered': '#8b5fbf',
};
const size = { width: 300, height: 230 };
const titled = (text: string, subtitle: string): object => ({ text, subtitle, anchor: 'start', fontSize: 13, subtitleFontSize: 11, subtitleColor: '#565d66', offset: 10 });

/** Lines over how many tokens are loaded, one for each way. */
function lines(name: object, values: readonly object[], ways: readonly string[], { field, label, scale = {} }: { field: string; label: string; scale?: object }): object {
  return {
    ...size, title: name, data: { values }, mark: { type: 'line', strokeWidth: 2, point: { size: 36 } },
    encoding: {
      x: { field: 'ratio', type: 'quantitative', title: 'tokens loaded', axis: { format: '.0%', values: [0.05, 0.1, 0.25, 0.5, 1] }, scale: { type: 'log', domain: [0.045, 1.1] } },
      y: { field, type: 'quantitative', title: label, scale },
      color: {
        field: 'way', type: 'nominal', title: null, sort: ways, scale: { domain: ways, range: ways.map((way) => colours[way] ?? '#000') },
        legend: { orient: 'top', columns: 6, symbolType: 'stroke', labelLimit: 300 },
      },
    },
  };
}

/** Bars of means, one for each case. */
function bars(name: object, values: readonly object[]): object {
  return {
    ...size, title: name, data: { values },
    encoding: { y: { field: 'way', type: 'nominal', title: null, sort: null, axis: { labelLimit: 300, grid: false } }, x: { field: 'readKiB', type: 'quantitative', title: 'read from the disk for a request, KiB' } },
    layer: [
      { mark: { type: 'bar', height: 18 }, encoding: { color: { field: 'colour', type: 'nominal', legend: null, scale: null } } },
      { mark: { type: 'text', align: 'left', dx: 4, fontSize: 11 }, encoding: { text: { field: 'readKiB', type: 'quantitative', format: ',.0f' } } },
    ],
  };
}

export async function draw(file: string, experiments: readonly Drawn[]): Promise<void> {
  const { drawCharts, machine } = createRequire(__filename)(path.resolve(__dirname, '..', '..', '..', 'build-examples', 'charts', 'vega.js')) as Charts;
  const ways = Object.keys(colours).filter((way) => experiments.some(({ results }) => results.some((one) => one.way === way && one.ratio !== undefined)));
  const panelOf = (pattern: RegExp): { title: string; values: readonly object[] } | undefined => {
    const shown = experiments.find(({ title }) => pattern.test(title));
    if (shown === undefined) return undefined;
    const all = shown.results.find(({ way }) => way === 'all from disk')!;
    const values = shown.results.filter(({ ratio }) => ratio !== undefined).map((one) => ({ ...one, fewer: all.readBytes / one.readBytes }));
    return { title: shown.title, values };
  };
  const [words, sizes] = [panelOf(/, 800 tokens, 8 MB/), panelOf(/ 1500 tokens, 50 MB/)];
  const memory = experiments.find(({ title }) => /KV heads, 12 texts of 512 tokens, 50 MB/.test(title));
  const fewer = { field: 'fewer', label: '× fewer bytes than all', scale: { type: 'log', domainMin: 0.5 } };
  const charts = [
    ...words === undefined ? [] : [
      lines(titled('How little is read: a model of words', words.title), words.values, ways, fewer),
      lines(titled('How far from the exact answer: the same', 'KL of the exact answer to this one'), words.values, ways, { field: 'divergence', label: 'nats a token' }),
    ],
    ...sizes === undefined ? [] : [lines(titled('How little is read: larger sizes', `${sizes.title}, random weights`), sizes.values, ways, fewer)],
    ...memory === undefined ? [] : [bars(titled('With memory for a quarter of the texts', `${memory.title}, ratio 25 %`), memory.results
      .filter(({ ratio, way }) => way !== 'computed again' && (ratio === undefined || ratio === 0.25)).map((one) => ({ ...one, readKiB: one.readBytes / 1024, colour: one.ratio === undefined ? '#8a94a0' : one.way === 'ours, whole' ? '#1c4f94' : '#7db3ee' })))],
  ];
  writeFileSync(file, await drawCharts({
    text: 'Important tokens alone: how little is read, and how far the answer is from the exact one',
    lines: ['A prefix on a slow disk, 16 new tokens behind it. 1 × is loading all of the prefix, without probe keys.', machine()],
  }, [], charts));
}
