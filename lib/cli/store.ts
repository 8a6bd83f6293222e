// `vkv store info|verify|gc DIRECTORY`: what a directory of disk stores holds, whether every byte is what was stored, and the bytes of removed
// records back. Each namespace of the directory in turn, with a progress bar on a terminal; one that another process has open is refused.
// `verify` ends with 1 where it found damage, and so do `verify` and `gc` where there is no store.

import { Command } from 'commander';
import colours = require('picocolors');

import { formatBytes, formatCount, formatNumber, printableJson } from '../base/format.js';
import type { DiskStore } from '../store/disk-store.js';
import { openNamespaces } from '../store/namespaces.js';
import type { GcResult, VerifyResult } from '../store/store-record.js';
import { ProgressBar } from './progress-bar.js';
import { columnsTable } from './table.js';

/** How often a collection is asked how far it is. */
const askEveryMs = 100;

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
  run: async (store) => {
    const { records, liveBytes, deadBytes, fileBytes, segments, tombstones, foreignFiles, direct, checksum } = store.stats();
    let [read, tokens, reordered] = [0, 0, 0];
    const status = (): string => `${formatCount('record', read)} of ${formatNumber(records)}`;
    await withBar(status(), async (bar) => {
      for await (const record of store.records()) {
        read += 1;
        tokens += record.tokens.length;
        reordered += record.isReordered ? 1 : 0;
        bar?.update(read / Math.max(1, records), status());
      }
    });
    return { records, reordered, tokens, liveBytes, deadBytes, fileBytes, segments, tombstones, foreignFiles, direct, checksum };
  },
  headings: ['namespace', 'records', 'reordered', 'tokens', 'live', 'removed', 'files', 'segments', 'O_DIRECT'],
  cells: (row) => [
    count(row['records']), count(row['reordered']), count(row['tokens']), bytes(row['liveBytes']), bytes(row['deadBytes']), bytes(row['fileBytes']), count(row['segments']),
    row['direct'] as string,
  ],
};

const verify: Operation = {
  run: async (store, signal) => rowOf(await withBar('starting', (bar) => store.verify({
    signal,
    onProgress: ({ records, totalRecords, bytes: read }) => {
      bar?.update(records / Math.max(1, totalRecords), `${formatCount('record', records)} of ${formatNumber(totalRecords)} · ${formatBytes(read)} read`);
    },
  }))),
  headings: ['namespace', 'records', 'bytes', 'corrupt', 'unreadable'],
  cells: (row) => [count(row['records']), bytes(row['bytes']), ...['corrupt', 'unreadable'].map((name) => count((row[name] as readonly string[]).length))],
};

const gc: Operation = {
  run: async (store) => ({ ...await collect(store), fileBytes: store.stats().fileBytes }),
  headings: ['namespace', 'deleted segments', 'freed', 'copied', 'files'],
  cells: (row) => [count(row['droppedSegments']), bytes(row['freedBytes']), bytes(row['copiedBytes']), bytes(row['fileBytes'])],
};

/** What removed records occupy falls while files go: the store says so when it is asked. */
async function collect(store: DiskStore): Promise<GcResult> {
  const { deadBytes } = store.stats();
  const freed = (): number => Math.max(0, deadBytes - store.stats().deadBytes);
  const status = (freedBytes: number): string => `${formatBytes(freedBytes)} of ${formatBytes(deadBytes)} removed given back`;
  return withBar(status(0), async (bar) => {
    const timer = bar === undefined ? undefined : setInterval(() => {
      const freedBytes = freed();
      bar.update(freedBytes / Math.max(1, deadBytes), status(freedBytes));
    }, askEveryMs);
    try {
      return await store.gc();
    } finally {
      clearInterval(timer);
    }
  });
}

function rowOf({ corrupt, unreadable, ...result }: VerifyResult): Row {
  const hex = (keys: readonly Uint8Array[]): readonly string[] => keys.map((key) => Buffer.from(key).toString('hex'));
  return { ...result, corrupt: hex(corrupt), unreadable: hex(unreadable) };
}

export function storeCommand(): Command {
  const command = new Command('store').description('look after the disk stores of a directory');
  for (const [name, description, operation] of [
    ['info', 'records, bytes and segments of each namespace', info],
    ['verify', 'read every record and check every byte', verify],
    ['gc', 'give the bytes of removed records back', gc],
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
