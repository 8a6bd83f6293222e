// Prints tables: names beside values, and columns under headings. Formats no numbers. Cells may hold text from outside, whose controls
// are spelt out. Without a terminal there are no colours (picocolors decides).

import colours = require('picocolors');

import { printable } from '../base/format.js';

/** A name and its values; a title alone starts a section. */
export type TableRow = readonly [name: string, ...values: string[]] | { readonly title: string };

interface Cell {
  readonly text: string;
  readonly paint?: (text: string) => string;
}

const GAP = '  ';

/** Names on the left, dimmed; one or more values beside each. */
export function factsTable(rows: readonly TableRow[]): string {
  const cells = rows.map((row): readonly Cell[] => {
    if ('title' in row) return [{ text: printable(row.title), paint: colours.bold }];
    const [name, ...values] = row;
    return [{ text: printable(name), paint: colours.dim }, ...values.map((value) => ({ text: printable(value) }))];
  });
  return linesOf(cells, widthsOf(cells.filter((_, at) => !('title' in rows[at]!))), 'left');
}

/** Columns under headings; all but the first are set to the right. */
export function columnsTable(headings: readonly string[], rows: readonly (readonly string[])[]): string {
  const cells = [
    headings.map((text): Cell => ({ text, paint: colours.dim })),
    ...rows.map((row) => row.map((value): Cell => ({ text: printable(value) }))),
  ];
  return linesOf(cells, widthsOf(cells), 'right');
}

function widthsOf(rows: readonly (readonly Cell[])[]): number[] {
  const columns = Math.max(0, ...rows.map((row) => row.length));
  return Array.from({ length: columns }, (_, at) => Math.max(...rows.map((row) => columnsOf(row[at]?.text ?? ''))));
}

/** @param side Where columns behind the first one are set to. */
function linesOf(rows: readonly (readonly Cell[])[], widths: readonly number[], side: 'left' | 'right'): string {
  const line = (row: readonly Cell[]): string => row.map(({ text, paint = String }, at) => {
    const blanks = ' '.repeat(Math.max(0, (widths[at] ?? 0) - columnsOf(text)));
    if (at > 0 && side === 'right') return blanks + paint(text);
    return at === row.length - 1 ? paint(text) : paint(text) + blanks;
  }).join(GAP).trimEnd();
  return rows.map(line).join('\n');
}

/** Columns of a terminal that a text takes: two for each wide character, none for one that is drawn over the last. */
function columnsOf(text: string): number {
  let columns = 0;
  for (const character of text) {
    if (/[\p{Mn}\p{Me}\p{Cf}]/u.test(character)) continue;
    columns += /[\u1100-\u115F\u2E80-\uA4CF\uAC00-\uD7A3\uF900-\uFAFF\uFE30-\uFE6F\uFF00-\uFF60\uFFE0-\uFFE6]|[\u{20000}-\u{3FFFD}]|\p{Emoji_Presentation}/u.test(character) ? 2 : 1;
  }
  return columns;
}
