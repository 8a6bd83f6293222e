// Charts: small line charts of the last two minutes, as the server keeps them, each with its own scale from 0; what the pointer is at is
// written beside its title.

import { byId, drawn, element, percent, short, time } from './format.js';
import type { State } from './poll.js';

/** Points of a chart, a second each. */
const points = 120;
const width = 280;
const height = 124;
const left = 50;
const right = 6;
const top = 8;
const bottom = 20;

interface Line {
  readonly name: string;
  readonly style: 'first' | 'second';
  readonly of: (history: State['history']) => readonly (number | null)[];
}

interface ChartOptions {
  readonly title: string;
  readonly lines: readonly Line[];
  readonly format: (value: number | null) => string;
  /** The top of the scale; default: what the values need. */
  readonly most?: number;
}

class Chart {
  readonly element: HTMLElement;
  readonly #options: ChartOptions;
  #values: readonly (readonly (number | null)[])[];
  readonly #svg: SVGSVGElement;
  readonly #now: HTMLElement;
  #hovered = -1;

  constructor(options: ChartOptions) {
    this.#options = options;
    this.#values = options.lines.map(() => []);
    this.#svg = drawn('svg', { viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': options.title });
    this.#now = element('span', { class: 'now' });
    this.element = element('figure', { class: 'chart' }, element('figcaption', {}, options.title, this.#now), this.#svg);
    this.#svg.addEventListener('pointermove', (event) => {
      const box = this.#svg.getBoundingClientRect();
      const x = (event.clientX - box.left) / box.width * width;
      this.#hovered = points - 1 - Math.round((x - left) / (width - left - right) * (points - 1));
      this.#draw();
    });
    this.#svg.addEventListener('pointerleave', () => {
      this.#hovered = -1;
      this.#draw();
    });
  }

  draw({ history }: State): void {
    this.#values = this.#options.lines.map(({ of }) => of(history));
    this.#draw();
  }

  #draw(): void {
    const { lines, format, most } = this.#options;
    const largest = Math.max(0, ...this.#values.flat().map((value) => value ?? 0));
    const scale = most ?? niceTop(largest);
    const y = (value: number): number => top + (1 - Math.min(1, value / scale)) * (height - bottom - top);
    const x = (at: number, length: number): number => left + (points - length + at) / (points - 1) * (width - left - right);
    const parts: SVGElement[] = [0, 0.5, 1].flatMap((share) => [
      drawn('line', { class: 'grid', x1: left, x2: width - right, y1: y(share * scale), y2: y(share * scale) }),
      drawn('text', { class: 'tick', x: left - 7, y: y(share * scale) + 4 }, format(share * scale)),
    ]);
    for (const [seconds, anchor] of [[120, 'start'], [60, 'middle'], [0, 'end']] as const) {
      const at = { x: x(points - 1 - Math.min(points - 1, seconds), points), y: height - 4 };
      parts.push(drawn('text', { class: `tick ${anchor}`, ...at }, seconds === 0 ? 'now' : `−${seconds / 60} min`));
    }
    const length = this.#values[0]?.length ?? 0;
    const shown = this.#hovered >= 0 && this.#hovered < length ? length - 1 - this.#hovered : length - 1;
    for (const [at, { style }] of lines.entries()) {
      const values = this.#values[at]!;
      const runs: string[] = [];
      let isOpen = false;
      for (const [index, value] of values.entries()) {
        if (value === null) isOpen = false;
        else {
          runs.push(`${isOpen ? 'L' : 'M'}${x(index, length).toFixed(1)} ${y(value).toFixed(1)}`);
          isOpen = true;
        }
      }
      if (at === 0 && runs.length > 1 && runs.filter((run) => run.startsWith('M')).length === 1) {
        const first = /^M(\S+)/.exec(runs[0]!)![1]!;
        const last = /^.(\S+)/.exec(runs.at(-1)!)![1]!;
        parts.push(drawn('path', { class: `area ${style}`, d: `${runs.join('')}L${last} ${y(0)}L${first} ${y(0)}Z` }));
      }
      parts.push(drawn('path', { class: `line ${style}`, d: runs.join('') }));
      const value = values[shown];
      if (value !== null && value !== undefined) parts.push(drawn('circle', { class: `dot ${style}`, cx: x(shown, length), cy: y(value), r: 3.5 }));
    }
    if (this.#hovered >= 0 && this.#hovered < length) {
      parts.push(drawn('line', { class: 'cursor', x1: x(shown, length), x2: x(shown, length), y1: top, y2: height - bottom }));
    }
    this.#svg.replaceChildren(...parts);
    this.#now.replaceChildren(...lines.map(({ name, style }, at) => element('span', { class: `key ${style}` },
      `${name === '' ? '' : `${name} `}${format(this.#values[at]![shown] ?? null)}`)));
  }
}

/** 1, 2 or 5 times a power of ten, or a little more than `value`. */
function niceTop(value: number): number {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((top) => top >= value)!;
}

export class Charts {
  readonly #charts: readonly Chart[];

  constructor() {
    this.#charts = [
      new Chart({ title: 'Tokens a second', format: (value) => (value === null ? '–' : short(value)), lines: [
        { name: '', style: 'first', of: ({ tokensPerSecond }) => tokensPerSecond },
      ] }),
      new Chart({ title: 'Prompt tokens cached', format: percent, most: 1, lines: [
        { name: '', style: 'first', of: ({ hitRate }) => hitRate },
      ] }),
      new Chart({ title: 'Time to first token', format: time, lines: [
        { name: 'median', style: 'first', of: ({ firstToken }) => firstToken },
        { name: 'p90', style: 'second', of: ({ firstTokenP90 }) => firstTokenP90 },
      ] }),
      new Chart({ title: 'Time between tokens', format: time, lines: [
        { name: 'median', style: 'first', of: ({ betweenTokens }) => betweenTokens },
        { name: 'p90', style: 'second', of: ({ betweenTokensP90 }) => betweenTokensP90 },
      ] }),
    ];
    byId('charts').replaceChildren(...this.#charts.map((chart) => chart.element));
  }

  draw(state: State): void {
    for (const chart of this.#charts) chart.draw(state);
  }
}
