// gpu-check's results: the file of numbers, to which each program adds its part when it has it, so that a later failure loses nothing; and
// tables of them, for a terminal and, as Markdown, for a page.

import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const Table = createRequire(import.meta.url)('cli-table3');

export function readResults(file) {
  return existsSync(file) ? JSON.parse(readFileSync(file, 'utf8')) : {};
}

/** Adds parts to the file, replacing those of the same names; does nothing without a file. */
export function addResults(file, parts) {
  if (file === undefined) return;
  writeFileSync(`${file}.part`, `${JSON.stringify({ ...readResults(file), ...parts }, undefined, 2)}\n`);
  renameSync(`${file}.part`, file);
}

const columnsOf = (rows) => [...new Set(rows.flatMap(Object.keys))];

/** Three digits or more; the median, 99th percentile and largest of times. */
function cell(value) {
  if (value === undefined || value === null) return '';
  if (typeof value === 'number') return Number.isInteger(value) ? value.toLocaleString('en') : value.toFixed(Math.abs(value) < 10 ? 2 : 1);
  if (typeof value !== 'object') return String(value);
  return value.samples === 0 ? '' : `${value.p50Us.toFixed(1)} / ${value.p99Us.toFixed(1)} / ${value.maxUs.toFixed(1)}`;
}

/** Prints rows, which are objects, with a column for each of their keys; nothing where there are no rows. */
export function print(title, rows) {
  if (rows.length === 0) return;
  const columns = columnsOf(rows);
  const table = new Table({ head: columns, style: { head: [], border: [], compact: true } });
  for (const row of rows) table.push(columns.map((column) => cell(row[column])));
  console.log(`\n${title}\n${table.toString()}`);
}

/** The same table as Markdown. */
export function markdown(rows) {
  const columns = columnsOf(rows);
  const line = (cells) => `| ${cells.join(' | ')} |`;
  return [line(columns), line(columns.map(() => '---')), ...rows.map((row) => line(columns.map((column) => cell(row[column]))))].join('\n');
}
