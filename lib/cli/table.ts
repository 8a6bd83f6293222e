// Prints tables: names beside values, and columns under headings. Thin over cli-table3; formats no numbers. Cells may hold text from
// outside, whose controls are spelt out. Without a terminal there are no colours (picocolors decides).

import Table from 'cli-table3';
import colours from 'picocolors';

import { printable } from '../base/format.js';

/** A name and its values; a title alone starts a section. */
export type TableRow = readonly [name: string, ...values: string[]] | { readonly title: string };

/** No borders, two spaces between columns, and no colours of cli-table3, which prints them without a terminal too. */
const bare = {
  style: { 'padding-left': 0, 'padding-right': 0, head: [], border: [] },
  chars: {
    top: '', 'top-mid': '', 'top-left': '', 'top-right': '',
    bottom: '', 'bottom-mid': '', 'bottom-left': '', 'bottom-right': '',
    left: '', 'left-mid': '', mid: '', 'mid-mid': '', right: '', 'right-mid': '', middle: '  ',
  },
};

/** Names on the left, dimmed; one or more values beside each. */
export function factsTable(rows: readonly TableRow[]): string {
  const table = new Table(bare);
  for (const row of rows) {
    if ('title' in row) table.push([{ content: colours.bold(printable(row.title)), colSpan: 2 }]);
    else table.push([colours.dim(printable(row[0])), ...row.slice(1).map(printable)]);
  }
  return trimLines(table.toString());
}

/** Columns under headings; all but the first are set to the right. */
export function columnsTable(headings: readonly string[], rows: readonly (readonly string[])[]): string {
  const table = new Table({
    ...bare,
    head: headings.map((heading) => colours.dim(heading)),
    colAligns: headings.map((_, index) => (index === 0 ? 'left' : 'right')),
  });
  table.push(...rows.map((row) => row.map(printable)));
  return trimLines(table.toString());
}

function trimLines(text: string): string {
  return text.split('\n').map((line) => line.trimEnd()).join('\n');
}
