// What a report's chart says where the pointer is, or a finger has tapped: the moment and its numbers, in a box that
// CSS alone shows. The page needs no script for it. A tap gives the focus, since not every browser of a phone takes it
// for hovering. Coordinates are those of the plot that the chart was drawn in.

import { formatBytes, formatNumber } from '../base/format.js';
import { chartColours, timeUnitOf, type ChartSize } from './report-chart.js';
import type { Replay } from './result.js';

/** The styles of the boxes: `light` for the page's own scheme, `dark` for the other. */
export const hoverStyles = {
  light: '.look>*{opacity:0;pointer-events:none}.look>.slice{opacity:1;pointer-events:all;fill:none;cursor:crosshair}.look:is(:hover,:focus)>*{opacity:1}.look{outline:none}.look .box{fill:#fff;fill-opacity:.94}',
  dark: '.look .box{fill:#161b22}',
} as const;

const boxWidth = 158;
const lineHeight = 17;

/**
 * Slices over the plot, with their boxes, as SVG. `svg`: the chart, which says where its plot is. Empty without a
 * timeline.
 */
export function hoverOf({ timeline, arrivals }: Replay, svg: string, { width, height, slices }: ChartSize): string {
  const origin = /<g[^>]*transform="translate\(([\d.]+),([\d.]+)\)"/.exec(svg);
  const end = Math.max(1, timeline.at(-1)?.at ?? 1);
  if (timeline.length === 0 || origin === null) return '';
  const unit = timeUnitOf(arrivals, end);
  const parts: string[] = [];
  for (let slice = 0, at = 0; slice < slices; slice += 1) {
    const middle = (slice + 0.5) / slices;
    while (at + 1 < timeline.length && timeline[at + 1]!.at <= middle * end) at += 1;
    const { poolBytes, mappedBytes, usedBytes } = timeline[at]!;
    const lines = [
      [chartColours.ink, `${formatNumber(middle * end / unit.unit, unit.unit === 1 ? 0 : 1)} ${unit.name}`],
      [chartColours.faint, `in the pool ${formatBytes(poolBytes)}`],
      [chartColours.mapped, `mapped ${formatBytes(mappedBytes)}`],
      [chartColours.used, `used ${formatBytes(usedBytes)}`],
    ] as const;
    const x = middle * width;
    const left = x > width / 2 ? Math.max(0, x - boxWidth - 8) : Math.min(width - boxWidth, x + 8);
    parts.push(`<g class="look" tabindex="-1"><rect class="slice" x="${(slice * width / slices).toFixed(1)}" width="${(width / slices).toFixed(1)}" height="${height}"/>` +
      `<path d="M${x.toFixed(1)} 0V${height}" stroke="${chartColours.faint}"/>` +
      `<rect class="box" x="${left.toFixed(1)}" y="6" width="${boxWidth}" height="${lineHeight * lines.length + 12}" rx="4" stroke="${chartColours.grid}"/>` +
      `${lines.map(([colour, text], line) => `<text x="${(left + 9).toFixed(1)}" y="${23 + lineHeight * line}" fill="${colour}" font-size="12">${text}</text>`).join('')}</g>`);
  }
  return `<g transform="translate(${origin[1]!},${origin[2]!})" font-family="system-ui, sans-serif" style="font-variant-numeric:tabular-nums">${parts.join('')}</g>`;
}
