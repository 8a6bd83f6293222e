// The part of the catalogue about requests for tokens: how one ends without an answer in a scheduler, why the server
// refuses what a client sends, and that the server cannot be watched.

import type { CatalogueEntry, ErrorCode } from './details.js';
import { formatCount, formatNumber } from './format.js';
import { joined } from './phrases.js';

type ServingCode = Extract<
  ErrorCode,
  | 'KV_QUEUE_FULL' | 'KV_DEADLINE_EXCEEDED' | 'KV_ENGINE_FAILED'
  | 'KV_ENGINE_STALLED' | 'KV_CALLBACK_FAILED' | 'KV_STREAM_STATE'
  | 'KV_REQUEST_INVALID' | 'KV_SERVER_UNREACHABLE' | 'KV_NOT_SUPPORTED'
>;

export const servingCodes: { readonly [C in ServingCode]: CatalogueEntry<C> } = {
  KV_QUEUE_FULL: {
    class: 'KvCapacityError',
    recovery: 'retry',
    template: ({ waitingRequests, maxWaiting }) =>
      `The queue is full: ${formatCount('request', waitingRequests)} ${waitingRequests === 1 ? 'waits' : 'wait'}, and ` +
      `\`maxWaiting\` is ${formatNumber(maxWaiting)}. Await \`scheduler.queueFree()\`, or turn the client away.`,
  },
  KV_DEADLINE_EXCEEDED: {
    class: 'KvCapacityError',
    recovery: 'retry',
    template: ({ deadlineMs, generatedTokens, maxNewTokens }) =>
      `The request was not done in ${formatNumber(deadlineMs, 1)} ms: ${formatNumber(generatedTokens)} of at most ` +
      `${formatCount('token', maxNewTokens)} were generated. Raise \`deadlineMs\`, or send fewer requests at once.`,
  },
  KV_ENGINE_FAILED: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ call, sequences, problem }) =>
      `The engine's \`${call}\` of ${formatCount('sequence', sequences)} failed: ${problem}. The tokens of this pass do not count; see ` +
      '`cause` if there is one.',
  },
  KV_ENGINE_STALLED: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ call, sequences, timeoutMs }) =>
      `The engine's \`${call}\` of ${formatCount('sequence', sequences)} has not answered in ${formatNumber(timeoutMs, 1)} ms ` +
      '(`passTimeoutMs`). Until it does, the slots of the pass stay out of use and its requests end with this error. Make the engine ' +
      'answer, with an error if need be, or restart the process.',
  },
  KV_CALLBACK_FAILED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ option, operation }) => `\`${option}\` threw an error instead of ${operation}. See \`cause\`.`,
  },
  KV_STREAM_STATE: {
    class: 'KvStateError',
    recovery: 'fix',
    template: ({ operation, problem }) =>
      `Cannot ${operation} this stream: it ${problem}. Await \`stream.result\` for the whole answer, or read its tokens with one ` +
      '`for await`.',
  },
  KV_REQUEST_INVALID: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ problem, hint }) => joined(`The request was refused: ${problem}.`, hint),
  },
  KV_SERVER_UNREACHABLE: {
    class: 'KvError',
    recovery: 'retry',
    template: ({ url, problem }) =>
      `The server at ${url} cannot be watched: ${problem}. Start it with \`vkv serve\`, or give the address that it prints.`,
  },
  KV_NOT_SUPPORTED: {
    class: 'KvError',
    recovery: 'fix',
    template: ({ option, problem, hint }) => joined(`\`${option}\` is not supported: ${problem}.`, hint),
  },
};
