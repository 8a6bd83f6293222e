// The report of a replay: the chart of memory over time as an SVG, or as an HTML page with the summary beside it, complete in
// one file, readable in the light and in the dark. Vega and Vega-Lite draw it; they are optional dependencies, loaded when a
// report is asked for.

import { writeFile } from 'node:fs/promises';

import { createError } from '../base/errors.js';
import { formatBytes } from '../base/format.js';
import { chartColours, chartOf } from './report-chart.js';
import { reportPage } from './report-page.js';
import type { Replay } from './result.js';

/** The part of Vega that is used; its own types need those of a browser. */
interface Vega {
  parse(spec: unknown): unknown;
  View: new (runtime: unknown, options: { readonly renderer: 'none' }) => { toSVG(): Promise<string>; finalize(): void };
}

interface VegaLite {
  compile(spec: unknown): { readonly spec: unknown };
}

export type ReportFormat = 'html' | 'svg';

/** The format that a file name asks for; undefined when it asks for neither. */
export function reportFormatOf(file: string): ReportFormat | undefined {
  const match = /\.(html?|svg)$/i.exec(file);
  return match === null ? undefined : match[1]!.toLowerCase() === 'svg' ? 'svg' : 'html';
}

export class Reporter {
  readonly #vega: Vega;
  readonly #vegaLite: VegaLite;

  /** @internal Use `Reporter.load`. */
  constructor(vega: Vega, vegaLite: VegaLite) {
    this.#vega = vega;
    this.#vegaLite = vegaLite;
  }

  /**
   * Loads the plot library; do it before a long replay. Throws KV_DEPENDENCY_MISSING, which names the command to run.
   * @param importModule How modules are found; for tests.
   */
  static async load(importModule = (name: string): Promise<unknown> => import(name)): Promise<Reporter> {
    const load = async (dependency: 'vega' | 'vega-lite'): Promise<unknown> => {
      try {
        return await importModule(dependency);
      } catch (cause) {
        if ((cause as NodeJS.ErrnoException).code !== 'ERR_MODULE_NOT_FOUND') throw cause;
        throw createError('KV_DEPENDENCY_MISSING', { dependency, purpose: 'drawing a report' }, { cause });
      }
    };
    const vegaLite = await load('vega-lite'); // first: installing it brings vega
    return new Reporter((await load('vega')) as Vega, vegaLite as VegaLite);
  }

  async render(replay: Replay, format: ReportFormat): Promise<string> {
    const view = new this.#vega.View(this.#vega.parse(this.#vegaLite.compile(chartOf(replay)).spec), { renderer: 'none' });
    try {
      const svg = themed(await view.toSVG(), replay, format);
      return format === 'svg' ? svg : reportPage(replay.result, svg);
    } finally {
      view.finalize();
    }
  }

  /** Renders in the format that the name of `file` asks for (HTML unless it ends in .svg), and writes it. */
  async write(replay: Replay, file: string): Promise<void> {
    await writeFile(file, await this.render(replay, reportFormatOf(file) ?? 'html'));
  }
}

/** Dark counterparts, by the name in `chartColours`. */
const darkColours: Readonly<Record<keyof typeof chartColours, string>> = {
  ink: '#e6edf3', faint: '#9aa4af', grid: '#2d333b', fixed: '#e0904a', mapped: '#4f8fe6', pool: '#59626d', used: '#9cc4fa',
};

/** Adds a description for readers who cannot see it, and a stylesheet that recolours it in the dark. */
function themed(svg: string, { result }: Replay, format: ReportFormat): string {
  const dark = (Object.keys(chartColours) as (keyof typeof chartColours)[]).flatMap((name) =>
    ['fill', 'stroke'].map((attribute) => `[${attribute}="${chartColours[name]}"]{${attribute}:${darkColours[name]}}`));
  const paper = format === 'svg' ? 'svg{background:#fff}' : '';
  const darkPaper = format === 'svg' ? 'svg{background:#0d1117}' : '';
  const style = `<style>${paper}@media (prefers-color-scheme: dark){${darkPaper}${dark.join('')}}</style>`;
  const title = `Memory over time: ${formatBytes(result.peakPhysicalBytes)} mapped at most, ` +
    `${formatBytes(result.staticBytes)} in a static reservation`;
  return svg.replace(/<svg[^>]*>/, (tag) => `${tag.replace('<svg', '<svg role="img"')}<title>${title}</title>${style}`);
}
