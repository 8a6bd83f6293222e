// The catalogue's part for the server: why it refuses what a client sends, and that it cannot be watched. As all codes, each has a section in docs/errors.md.

import type { CatalogueEntry, ErrorCode } from './details.js';
import { joined } from './phrases.js';

type ServerCode = Extract<ErrorCode, 'KV_REQUEST_INVALID' | 'KV_SERVER_UNREACHABLE' | 'KV_NOT_SUPPORTED'>;

export const serverCodes: { readonly [C in ServerCode]: CatalogueEntry<C> } = {
  KV_REQUEST_INVALID: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ problem, hint }) => joined(`The request was refused: ${problem}.`, hint),
  },
  KV_SERVER_UNREACHABLE: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ url, problem }) => `The server at ${url} cannot be watched: ${problem}. Start it with \`vkv serve\`, or give the address that it prints.`,
  },
  KV_NOT_SUPPORTED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ option, problem, hint }) => joined(`\`${option}\` is not supported: ${problem}.`, hint),
  },
};
