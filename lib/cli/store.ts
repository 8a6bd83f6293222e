// `vkv store info|verify DIRECTORY`: what a directory of disk stores holds, and whether every byte is what was stored.
// Each namespace of the directory in turn; one that another process has open is refused. `verify` has a progress bar on
// a terminal, and ends with 1 where it found damage, or no store.

import { Command } from 'commander';
import colours = require('picocolors');

import { formatBytes, formatCount, formatNumber, printableJson } from '../base/format.js';
import type { DiskStore } from '../store/disk-store.js';
import { openNamespaces } from '../store/namespaces.js';
import { ProgressBar } from './progress-bar.js';
import { columnsTable } from './table.js';

type Row = Readonly<Record<string, number | string | boolean | readonly string[] | undefined>>;

/** What a subcommand does with one namespace, and how its rows are printed. */
interface Operation {
  readonly run: (store: DiskStore, signal: AbortSignal) => Promise<Row>;
  readonly headings: readonly string[];
  readonly cells: (row: Row) => readonly string[];
}

const bytes = (value: Row[string]): string => formatBytes(value as number);
const count = (value: Row[string]): string => formatNumber(value as number);

const info: Operation = {
  run: (store) => {
    const { blocks, bytes: payloadBytes, fileBytes, foreignFiles, direct, checksum } = store.stats();
    const row = { blocks, ...store.contents(), bytes: payloadBytes, fileBytes, foreignFiles, direct, checksum };
    return Promise.resolve(row);
  },
  headings: ['namespace', 'blocks', 'reordered', 'tokens', 'bytes', 'files', 'O_DIRECT'],
  cells: (row) => [
    count(row['blocks']), count(row['reordered']), count(row['tokens']), bytes(row['bytes']), bytes(row['fileBytes']),
    row['direct'] as string,
  ],
};

const verify: Operation = {
  run: async (store, signal) => await withBar('starting', (bar) => store.verify({
    signal,
    onProgress: ({ blocks, totalBlocks, bytes: read }) => {
      const status = `${formatCount('block', blocks)} of ${formatNumber(totalBlocks)} · ${formatBytes(read)} read`;
      bar?.update(blocks / Math.max(1, totalBlocks), status);
    },
  })) as unknown as Row,
  headings: ['namespace', 'blocks', 'bytes', 'corrupt', 'unreadable'],
  cells: (row) => [
    count(row['blocks']), bytes(row['bytes']),
    ...['corrupt', 'unreadable'].map((name) => count((row[name] as readonly string[]).length)),
  ],
};

export function storeCommand(): Command {
  const command = new Command('store').description('look after the disk stores of a directory');
  for (const [name, description, operation] of [
    ['info', 'blocks, tokens and bytes of each namespace', info],
    ['verify', 'read every block and check every byte', verify],
  ] as const) {
    command.command(name)
      .description(description)
      .argument('<directory>', 'the option `directory` of the stores')
      .option('--json', 'print JSON, sizes in bytes')
      .action((directory: string, { json }: { json?: boolean }) => runOperation(directory, operation, json === true));
  }
  return command;
}

async function runOperation(directory: string, operation: Operation, json: boolean): Promise<void> {
  const stop = new AbortController();
  const interrupt = (): void => stop.abort();
  process.once('SIGINT', interrupt); // a second Ctrl-C ends at once
  const rows: Row[] = [];
  try {
    for await (const { name, store } of openNamespaces(directory)) {
      rows.push({ namespace: name, ...await operation.run(store, stop.signal) });
      if (stop.signal.aborted) break;
    }
  } finally {
    process.off('SIGINT', interrupt);
  }
  const table = (): string => rows.length === 0
    ? 'No disk store here.'
    : columnsTable(operation.headings, rows.map((row) => [row['namespace'] as string, ...operation.cells(row)]));
  process.stdout.write(`${json ? printableJson({ directory, namespaces: rows }) : table()}\n`);
  if (rows.length === 0 && operation !== info) process.exitCode = 1;
  if (stop.signal.aborted) process.exitCode = 130;
  if (rows.some(({ corrupt = [], unreadable = [] }) => (corrupt as readonly string[]).length + (unreadable as readonly string[]).length > 0)) process.exitCode = 1;
}

/** Runs something with a progress bar on stderr; without one where that is no terminal. */
async function withBar<T>(status: string, run: (bar: ProgressBar | undefined) => Promise<T>): Promise<T> {
  const bar = process.stderr.isTTY ? new ProgressBar(process.stderr, colours.cyan, status) : undefined;
  try {
    return await run(bar);
  } finally {
    bar?.stop();
  }
}
