// Prints gpu-check's goals from its results, and writes a page with every table: node scripts/gpu/report.mjs RESULTS.json [PAGE.md]

import { writeFileSync } from 'node:fs';

import { markdown, print, readResults } from './results.mjs';

const [file, page] = process.argv.slice(2);
const {
  machine, kernels = [], blockTable = [], calls = [], growth = [], sideRows = [], sideSteps = [], tierCopies = [], tierSteps = [], engine = [], products,
} = readResults(file);

const ratio = 'block table, % of contiguous µs';
const goalOf = (row) => Object.entries(row).find(([key]) => key.startsWith('goal '))?.[1];
const goals = [...kernels, ...blockTable].filter((row) => goalOf(row) !== undefined)
  .map((row) => ({ 'goal 80 % of the copy': goalOf(row), '%': row['% of the copy'], 'what': row.what }));
const ratios = blockTable.filter((row) => row[ratio] !== undefined).map(({ what, ...row }) => ({ what, [ratio]: row[ratio] }));
const reached = goals.filter((row) => Object.values(row)[0] === 'reached').length;

print(`Goals: ${reached} of ${goals.length} reached; a missed one fails no check`, goals);
print('The same kernel, over contiguous slots and over a block table', ratios);

if (page !== undefined) {
  const tables = [
    ['Kernels', kernels], ['Contiguous slots and a block table', blockTable.map(({ question: _, ...row }) => row)],
    ['Matrix products', products?.table ?? []], ['Reference engine', engine], ['Calls of the driver, µs', calls], ['Growth, µs', growth],
    ['Rows from the device in side tensors', sideRows], ['Rows of decoding steps', sideSteps], ['Copies of tiers', tierCopies],
    ['Decoding beside copies of tiers', tierSteps],
  ].filter(([, rows]) => rows.length > 0).map(([title, rows]) => `## ${title}\n\n${markdown(rows)}\n`);
  const device = machine === undefined ? '' : `${machine.device.deviceName}, CUDA driver ${machine.device.driverVersion}, ${machine.date}\n\n`;
  writeFileSync(page, `# What gpu-check measured\n\n${device}${tables.join('\n')}`);
}
