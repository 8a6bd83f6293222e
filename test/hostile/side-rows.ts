// Rows of the table about side tensors: what a cache, its sequences, hand-overs and schedulers are told of them.

import * as kv from 'virtual-kv';

import type { Call, Rows } from './table.js';
import { pageBytes, vocabularyTokens, type World } from './world.js';

const call = (run: (...given: never[]) => unknown, ...meant: readonly unknown[]): Call => ({ run, meant });
const hidden = (tokens: number) => ({ hidden: new Float32Array(2 * tokens) });
const request = {
  tokens: Int32Array.of(1, 2, 3), maxNewTokens: 2, needs: ['hidden'], handOver: ['hidden'], input: [{ at: 0 }], releaseInput: () => {},
};

/** What is handed over goes with the world. */
function handOver(world: World): kv.HandOver {
  const given = world.sequence.handOver();
  world.closable.push(given);
  return given;
}

/** A stream, whose hand-over goes with the world. */
function submit(world: World, options: unknown, ...answers: unknown[]): kv.TokenStream {
  const stream = world.online(...answers).submit(options as kv.GenerationRequest);
  world.closable.push({ close: () => stream.result.then(({ side }) => side?.close(), () => {}) });
  return stream;
}

export const sideRows = {
  KvCache: {
    sideCounts: null,
    setSideBudget: ({ cache }) => call(cache.setSideBudget.bind(cache), 16 * pageBytes),
    writeSide: ({ cache, batch }) => call(cache.writeSide.bind(cache), batch, hidden(3)),
    'acquire with needs': ({ cache }) => call(cache.acquire.bind(cache), { tokens: Int32Array.of(1, 2, 3), needs: ['hidden'] }),
    'lookup with needs': ({ cache: { prefixes } }) => call(prefixes.lookup.bind(prefixes), { tokens: [1, 2, 3], needs: ['hidden'] }),
  },
  Sequence: {
    handOver: (world) => call((names: never) => {
      const given = world.sequence.handOver(names);
      world.closable.push(given);
      return given;
    }, ['hidden']),
    sideTokens: ({ sequence }) => call(sequence.sideTokens.bind(sequence), 'hidden'),
    writeSide: ({ sequence }) => call(sequence.writeSide.bind(sequence), 3, hidden(3)),
  },
  HandOver: {
    close: null,
    new: () => call((...given: never[]) => new (kv.HandOver as unknown as new (...given: unknown[]) => unknown)(...given), {}),
    address: (world) => {
      const given = handOver(world);
      return call(given.address.bind(given), 'hidden');
    },
    rows: (world) => {
      const given = handOver(world);
      return call(given.rows.bind(given), 'hidden', 1, 3);
    },
  },
  OnlineScheduler: {
    'submit with side tensors': (world) => call((options: unknown) => submit(world, options), request),
    'engine answers side rows': (world) => call((answer: unknown) => submit(world, { ...request, salt: 'new' }, answer),
      { logits: new Float32Array(8 * vocabularyTokens), side: hidden(3) }),
  },
} as const satisfies Readonly<Record<string, Rows>>;
