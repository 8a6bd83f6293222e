// Draws a Vega-Lite specification as SVG, in the style that the examples' charts share. Needs the packages `vega` and
// `vega-lite`, which a clean clone installs.

const config = {
  font: 'system-ui, sans-serif', view: { stroke: null }, axis: { gridColor: '#e4e6ea', titleFontWeight: 'normal' },
};

/** Draws `charts`, which share `values`, side by side. */
export async function drawCharts(values: readonly object[], charts: readonly object[]): Promise<string> {
  const load = async (name: string): Promise<unknown> => import(name); // their types need a browser's
  const vegaLite = (await load('vega-lite')) as { compile(spec: unknown): { readonly spec: unknown } };
  const vega = (await load('vega')) as {
    parse(spec: unknown): unknown;
    View: new (runtime: unknown, options: object) => { toSVG(): Promise<string> };
  };
  const spec = {
    $schema: 'https://vega.github.io/schema/vega-lite/v6.json', background: 'white', padding: 12, spacing: 36,
    config, data: { values }, hconcat: charts,
  };
  return new vega.View(vega.parse(vegaLite.compile(spec).spec), { renderer: 'none' }).toSVG();
}
