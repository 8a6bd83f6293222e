// Draws a Vega-Lite specification as SVG, in the style that the examples' charts share: with a title that says what was measured, of what
// and where. Needs the packages `vega` and `vega-lite`, which a clean clone installs.

import { cpus } from 'node:os';

const font = 'system-ui, sans-serif';
const config = {
  font, view: { stroke: null }, axis: { gridColor: '#e4e6ea', titleFontWeight: 'normal', labelFontSize: 12, titleFontSize: 12 },
  legend: { labelFontSize: 12 },
};

/** What stands above charts. */
export interface ChartTitle {
  readonly text: string;
  /** The workload, the machine: a line each. */
  readonly lines: readonly string[];
}

/** The processors of this machine and the version of Node, as a line below a title. */
export function machine(): string {
  const all = cpus();
  const model = (all[0]?.model ?? 'unknown').replace(/\((?:R|TM)\)/g, '').replace(/\s+/g, ' ').trim();
  return `${model}, ${all.length} ${all.length === 1 ? 'processor' : 'processors'}; Node.js ${process.versions.node}`;
}

/** Draws `charts`, which share `values`, side by side below a title. */
export async function drawCharts({ text, lines }: ChartTitle, values: readonly object[], charts: readonly object[]): Promise<string> {
  const load = async (name: string): Promise<unknown> => import(name); // their types need a browser's
  const vegaLite = (await load('vega-lite')) as { compile(spec: unknown): { readonly spec: unknown } };
  const vega = (await load('vega')) as {
    parse(spec: unknown): unknown;
    View: new (runtime: unknown, options: object) => { toSVG(): Promise<string> };
  };
  const spec = {
    $schema: 'https://vega.github.io/schema/vega-lite/v6.json', background: 'white', padding: 16, spacing: 40,
    title: { text, subtitle: lines, anchor: 'start', fontSize: 16, subtitleFontSize: 12, subtitleColor: '#565d66', subtitlePadding: 6, offset: 18 },
    config, data: { values }, hconcat: charts,
  };
  const svg = await new vega.View(vega.parse(vegaLite.compile(spec).spec), { renderer: 'none' }).toSVG();
  const said = [text, ...lines].join('. ').replace(/&/g, '&amp;').replace(/</g, '&lt;');
  // The title says it all; what Vega notes on each mark for scripts and screen readers is two fifths of the file.
  const plain = svg.replace(/ (?:aria-[a-z]+|role|class|pointer-events)="[^"]*"/g, '').replace(/ (?:stroke-)?opacity="1"/g, '');
  return plain.replace(/<svg[^>]*>/, (tag) => `${tag.replace('<svg', '<svg role="img"')}<title>${said}</title>`);
}
