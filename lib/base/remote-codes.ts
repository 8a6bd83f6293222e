// The part of the catalogue about stores that are reached over a network.

import { printable } from './format.js';
import type { CatalogueEntry, RemoteRefusal } from './details.js';
import { joined } from './phrases.js';

type RemoteCode = 'KV_TIER_UNREACHABLE' | 'KV_TIER_REFUSED' | 'KV_TIER_DAMAGED';

const remedies: Readonly<Record<RemoteRefusal, string>> = {
  credentials: 'Give the name and password of one of its users, in `url`, `nodes` or the options of `client`.',
  permission: 'Allow its user `GET`, `SET`, `EXISTS`, `EXPIRE`, `UNLINK`, `PING` and `INFO` on keys `kvt:*`.',
  protocol: 'Give the address of a Redis or Valkey, with `rediss:` where it speaks TLS and `redis:` where it does not.',
  'is-cluster': 'It is one node of a cluster: give some of its nodes as `nodes`, or a cluster\'s client.',
  'no-cluster': 'It is no cluster: give its address as `url`.',
  full: 'Give it more `maxmemory`, or a `maxmemory-policy` that evicts, such as `allkeys-lru`.',
  other: 'See the store\'s own documentation for this reply.',
};

export const remoteCodes: { readonly [C in RemoteCode]: CatalogueEntry<C> } = {
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
      joined(`The store of the tier \`${printable(tier)}\` at ${printable(address)} refused: '${printable(reply.replace(/\.$/, ''))}'.`, remedies[reason]),
  },
  KV_TIER_DAMAGED: {
    class: 'KvError',
    recovery: 'none',
    template: ({ tier, key, problem }) =>
      `A block of the tier \`${printable(tier)}\` is not what was stored: the value of \`${printable(key)}\` ${problem}. It counts as absent and ` +
      'will be computed again.',
  },
};
