// The part of the catalogue about stores below the device: on disk, and over a network.

import { pid } from 'node:process';

import { formatCount, formatList, formatNumber, printable } from './format.js';
import type { CatalogueEntry, ErrorDetails, RemoteRefusal } from './details.js';
import { joined, statusText } from './phrases.js';

type StoreCode =
  | 'KV_STORE_UNAVAILABLE' | 'KV_STORE_LOCKED' | 'KV_STORE_FOREIGN' | 'KV_STORE_VERSION' | 'KV_STORE_FAILED'
  | 'KV_TIER_UNREACHABLE' | 'KV_TIER_REFUSED' | 'KV_TIER_DAMAGED' | 'KV_TIER_STALLED';

/** What to do about a store over a network that refuses. */
const remedies: Readonly<Record<RemoteRefusal, string>> = {
  credentials: 'Give the name and password of one of its users, in `url`, `nodes` or the options of `client`.',
  permission: 'Allow its user `GETRANGE`, `SET`, `EXISTS`, `EXPIRE`, `UNLINK` and `INFO` on keys `kvt:*`.',
  database: 'Name a database that it has, at the end of its address, or raise `databases` in its configuration.',
  protocol: 'Give the address of a Redis or Valkey, with `rediss:` where it speaks TLS and `redis:` where it does not.',
  'is-cluster': 'It is one node of a cluster: give some of its nodes as `nodes`, or a cluster\'s client.',
  'no-cluster': 'It is no cluster: give its address as `url`.',
  full: 'Give it more `maxmemory`, or a `maxmemory-policy` that evicts, such as `allkeys-lru`.',
  other: 'See the store\'s own documentation for this reply.',
};

export const storeCodes: { readonly [C in StoreCode]: CatalogueEntry<C> } = {
  KV_STORE_UNAVAILABLE: {
    class: 'KvError',
    recovery: 'fix',
    template: (
      details,
    ) => `Cannot open a disk store at ${printable(details.path)}: \`${details.call}\` returned ${statusText(details)}. ${remedy(details)}`,
  },
  KV_STORE_LOCKED: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ path, process }) =>
      `The disk store at ${printable(path)} is open ${process === pid ? 'in this process' : process > 0 ? `in process ${process}` : 'elsewhere'}. ` +
      'Close it there, or give each process a directory or a namespace of its own.',
  },
  KV_STORE_FOREIGN: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ path }) =>
      `${printable(path)} is no part of a disk store, or damaged. Nothing was changed; name another directory, or move it away.`,
  },
  KV_STORE_VERSION: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ path, version, latestVersion }) => version < latestVersion
      ? `${printable(path)} was written by an earlier version of this package (format ${version}; this one has ` +
        `${latestVersion}). Nothing was changed: delete the folder, whose text can be computed again, ` +
        'or name another directory.'
      : `${printable(path)} was written by a later version of this package (format ${version}; this one has ` +
        `${latestVersion}). Nothing was changed; update the package, or name another directory.`,
  },
  KV_STORE_FAILED: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ path, call, ...status }) =>
      `The disk refused \`${call}\` for the store at ${printable(path)}${status.status ? `: ${statusText({ call, ...status })}` : ''}. ` +
      'Blocks that were not yet safe on disk are dropped; store them again, and check the disk if this repeats.',
  },
  KV_TIER_UNREACHABLE: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ tier, address, problem }) =>
      `The tier \`${printable(tier)}\` cannot reach its store at ${printable(address)}: ${printable(problem)}. Start the store, or correct its ` +
      'address.',
  },
  KV_TIER_REFUSED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ tier, address, reason, reply }) =>
      joined(
        `The store of the tier \`${printable(tier)}\` at ${printable(address)} refused: '${printable(reply.replace(/\.$/, ''))}'.`,
        remedies[reason]),
  },
  KV_TIER_DAMAGED: {
    class: 'KvError',
    recovery: 'none',
    template: ({ tier, key, problem }) =>
      `A block of the tier \`${printable(tier)}\` is damaged: the value of \`${printable(key)}\` ${problem}. It counts as absent and ` +
      'will be computed again.',
  },
  KV_TIER_STALLED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ tiers, calls, timeoutMs }) =>
      `Closing waits for ${formatCount('call', calls)} of the ${tiers.length === 1 ? 'tier' : 'tiers'} ${formatList(tiers.map((name) => `\`${printable(name)}\``), 'and')}, which ` +
      `answered nothing for ${formatNumber(timeoutMs)} ms. Text that was about to be stored may be missing there. Have \`close\` of the tier end its running calls, or raise \`prefixCache.tierCloseTimeoutMs\`.`,
  },
};

/** What to do about a refused call. */
function remedy({ statusName }: ErrorDetails['KV_STORE_UNAVAILABLE']): string {
  switch (statusName) {
    case 'ENOENT': return 'There is no such directory; check its name.';
    case 'ENOTDIR': return 'A file is in its place; name a directory.';
    case 'EACCES': case 'EPERM': case 'EROFS': return 'Give this process the right to write there, or name another directory.';
    case 'ENOSPC': case 'EDQUOT': return 'Free space on that file system, or name another directory.';
    case 'EMFILE': case 'ENFILE': return 'Raise the limit of open files (`ulimit -n`).';
    default: return 'Check the disk, or name another directory.';
  }
}
