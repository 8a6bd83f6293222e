// The part of the catalogue about stores on disk.

import { printable } from './format.js';
import type { CatalogueEntry, ErrorDetails } from './details.js';
import { statusText } from './phrases.js';

type StoreCode = 'KV_STORE_UNAVAILABLE' | 'KV_STORE_LOCKED' | 'KV_STORE_FOREIGN' | 'KV_STORE_VERSION' | 'KV_STORE_FAILED';

export const storeCodes: { readonly [C in StoreCode]: CatalogueEntry<C> } = {
  KV_STORE_UNAVAILABLE: {
    class: 'KvError',
    recovery: 'fix',
    template: (details) => `Cannot open a disk store at ${printable(details.path)}: \`${details.call}\` returned ${statusText(details)}. ${remedy(details)}`,
  },
  KV_STORE_LOCKED: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ path, process }) =>
      `The disk store at ${printable(path)} is open${process > 0 ? ` in process ${process}` : ' elsewhere'}. ` +
      'Close it there, or give each process a directory or a namespace of its own.',
  },
  KV_STORE_FOREIGN: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ path }) => `${printable(path)} is no part of a disk store, or damaged. Nothing was changed; name another directory, or move it away.`,
  },
  KV_STORE_VERSION: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ path, version, latestVersion }) =>
      `${printable(path)} was written by a later version of this package (format${version > 0 ? ` ${version}` : ''}; this one reads up to ` +
      `${latestVersion}). Nothing was changed; update the package, or name another directory.`,
  },
  KV_STORE_FAILED: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ path, call, ...status }) =>
      `The disk refused \`${call}\` for the store at ${printable(path)}${status.status ? `: ${statusText({ call, ...status })}` : ''}. ` +
      'What was not on disk for good is dropped; store it again, and check the disk if this repeats.',
  },
};

/** What to do about a refused call. */
function remedy({ statusName }: ErrorDetails['KV_STORE_UNAVAILABLE']): string {
  switch (statusName) {
    case 'ENOTDIR': return 'A file is in its place; name a directory.';
    case 'EACCES': case 'EPERM': case 'EROFS': return 'Give this process the right to write there, or name another directory.';
    case 'ENOSPC': case 'EDQUOT': return 'Free space on that file system, or name another directory.';
    case 'EMFILE': case 'ENFILE': return 'Raise the limit of open files (`ulimit -n`), or use larger segments.';
    default: return 'Check the disk, or name another directory.';
  }
}
