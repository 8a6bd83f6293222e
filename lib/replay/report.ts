// The report of a replay: the chart of memory over time, and with tiers those of where prompts came from, as an SVG, or
// as an HTML page with the summary beside them, complete in one file, readable in the light and in the dark. Vega and
// Vega-Lite draw it; they are optional dependencies, loaded when a report is asked for.

import { writeFile } from 'node:fs/promises';

import { createError } from '../base/errors.js';
import { formatBytes } from '../base/format.js';
import { chartColours, chartConfig, chartOf, chartSizes, type ChartSize } from './report-chart.js';
import { hoverOf, hoverStyles } from './report-hover.js';
import { reportPage } from './report-page.js';
import { tierChartsOf } from './report-tiers-chart.js';
import type { Replay } from './result.js';

/** The part of Vega that is used; its own types need those of a browser. */
interface Vega {
  parse(spec: unknown): unknown;
  View: new (
    runtime: unknown, options: { readonly renderer: 'none' },
  ) => { toSVG(): Promise<string>; finalize(): void };
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
    const tiers = tierChartsOf(replay);
    const { result } = replay;
    const title =
      `Memory over time: ${formatBytes(result.peakPhysicalBytes)} mapped at most, ${formatBytes(result.staticBytes)} in a static reservation`;
    const memory = (
      size: ChartSize,
    ): Promise<string> => this.#draw(chartOf(replay, size), title, format, (svg) => hoverOf(replay, svg, size));
    if (format === 'svg') return tiers === undefined ? memory(chartSizes.wide)
      : this.#draw(below([chartOf(replay), tiers.hits, tiers.firstToken]), title, format);
    return reportPage(result, {
      memory: await memory(chartSizes.wide), narrow: await memory(chartSizes.narrow),
      tiers: tiers === undefined ? undefined : {
        hits: await this.#draw(tiers.hits, 'Where prompts came from, over time', format),
        firstToken: await this.#draw(
          tiers.firstToken, 'Time to the first token, by where most of the prompt came from', format),
      },
    });
  }

  /** Renders in the format that the name of `file` asks for (HTML unless it ends in .svg), and writes it. */
  async write(replay: Replay, file: string): Promise<void> {
    await writeFile(file, await this.render(replay, reportFormatOf(file) ?? 'html'));
  }

  /** `hover`: what is drawn over the chart, of which it gets the SVG. */
  async #draw(
    spec: Readonly<Record<string, unknown>>, title: string, format: ReportFormat,
    hover: (svg: string) => string = () => '',
  ): Promise<string> {
    const view = new this.#vega.View(this.#vega.parse(this.#vegaLite.compile(spec).spec), { renderer: 'none' });
    try {
      const svg = shortPaths(await view.toSVG());
      return themed(svg.replace(/<\/svg>\s*$/, `${hover(svg)}</svg>`), title, format);
    } finally {
      view.finalize();
    }
  }
}

/**
 * Paths of straight lines in a third of their bytes: to a tenth of a pixel, and steps as horizontal and vertical lines.
 */
export function shortPaths(svg: string): string {
  return svg.replace(/ d="(M[^"A-KN-Ya-z]*)"/g, (whole: string, path: string) => {
    const corners = [...path.matchAll(/([MLZ])(?:(-?[\d.]+),(-?[\d.]+))?/g)];
    let [lastX, lastY, short] = ['', '', ''];
    for (const [, command, rawX, rawY] of corners) {
      if (rawX === undefined || rawY === undefined) {
        short += command!;
        continue;
      }
      const [x, y] = [String(Math.round(10 * Number(rawX)) / 10), String(Math.round(10 * Number(rawY)) / 10)];
      if (command === 'M') short += `M${x},${y}`;
      else if (y === lastY) short += x === lastX ? '' : `H${x}`;
      else short += x === lastX ? `V${y}` : `L${x},${y}`;
      [lastX, lastY] = [x, y];
    }
    return corners.map(([part]) => part).join('') === path ? ` d="${short}"` : whole;
  });
}

/** Dark counterparts, by the name in `chartColours`. */
const darkColours: Readonly<Record<keyof typeof chartColours, string>> = {
  ink: '#e6edf3', faint: '#9aa4af', grid: '#2d333b', fixed: '#e0904a', mapped: '#4f8fe6', pool: '#59626d',
  used: '#9cc4fa', host: '#4cc79b', remote: '#b08cf0',
};

/** Charts one under the other, each with scales of its own. */
function below(charts: readonly Readonly<Record<string, unknown>>[]): Readonly<Record<string, unknown>> {
  const views = charts.map(({ $schema: _, config: __, padding: ___, background: ____, ...view }) => view);
  return {
    $schema: charts[0]!['$schema'], config: chartConfig, padding: 10, background: 'transparent', spacing: 44,
    vconcat: views, resolve: { scale: { color: 'independent' } },
  };
}

/** Adds a description for readers who cannot see it, and a stylesheet that recolours it in the dark. */
function themed(svg: string, title: string, format: ReportFormat): string {
  const dark = (Object.keys(chartColours) as (keyof typeof chartColours)[]).flatMap((name) =>
    ['fill', 'stroke'].map((attribute) => `[${attribute}="${chartColours[name]}"]{${attribute}:${darkColours[name]}}`));
  const paper = format === 'svg' ? 'svg{background:#fff}' : '';
  const darkPaper = format === 'svg' ? 'svg{background:#0d1117}' : '';
  const style =
    `<style>${paper}${hoverStyles.light}@media (prefers-color-scheme: dark){${darkPaper}${hoverStyles.dark}${dark.join('')}}</style>`;
  return svg.replace(/<svg[^>]*>/, (tag) => `${tag.replace('<svg', '<svg role="img"')}<title>${title}</title>${style}`);
}
