// Rows of the hostile table for the HTTP server: options, where it listens, and what a tokenizer answers while requests come. What a client
// sends is under test in test/server/fuzz.test.ts.

import { ModelServer, sessionPolicy, type ListenOptions, type ModelServerOptions, type ServedTokenizer } from 'virtual-kv/server';

import type { Call, Row, Rows } from './table.js';
import type { World } from './world.js';

const call = (run: (...given: never[]) => unknown, ...meant: readonly unknown[]): Call => ({ run, meant });

/** Each letter is a token. */
const tokenizer = (): ServedTokenizer => ({
  hasChatTemplate: true, encode: (text) => [...text].map(() => 1), encodeChat: () => [1, 2, 3],
  pieces: () => ({ push: () => 'a', end: () => '' }),
});

const optionsOf = (world: World): ModelServerOptions => ({
  scheduler: world.online(), tokenizer: tokenizer(), modelName: 'm', stopTokens: [5], maxTokens: 64, apiKeys: ['key'], maxBodyBytes: 1_000,
  maxPromptCharacters: 100, maxChoices: 2, maxConnections: 3, requestTimeoutMs: 1_000, stallTimeoutMs: 1_000, deadlineMs: 60_000, graceMs: 0,
});

function serverOf(world: World, options: ModelServerOptions, onError?: (error: unknown) => void): ModelServer {
  const server = new ModelServer(options, onError);
  world.closable.push(server);
  return server;
}

/** What the system refuses is no error of ours: an address that is not there or is taken. */
function isOfSystem(error: unknown): boolean {
  return error instanceof Error && 'syscall' in error;
}

/** Sends a request to a server whose tokenizer has `part`; throws what the server told of, or that it did not answer. */
async function serve(world: World, path: string, body: object, part: Partial<ServedTokenizer>): Promise<void> {
  const errors: unknown[] = [];
  const { apiKeys: _apiKeys, ...options } = optionsOf(world);
  const server = serverOf(world, {
    ...options, requestTimeoutMs: 60_000, stallTimeoutMs: 60_000, // the machine may be slow
    tokenizer: { ...tokenizer(), ...part },
  }, (error) => { errors.push(error); });
  const url = await server.listen({ port: 0 });
  const response = await fetch(url + path, {
    method: 'POST', headers: { 'content-type': 'application/json', connection: 'close' }, body: JSON.stringify({ model: 'm', max_tokens: 2, ...body }),
  });
  const answer = await response.json() as object;
  if (!('error' in answer) && !('choices' in answer)) throw new Error(`answered ${JSON.stringify(answer)}`);
  if (errors.length > 0) throw errors[0];
}

const completion = (part: (answer: never) => Partial<ServedTokenizer>, meant: unknown): Row =>
  (world) => call((answer: never) => serve(world, '/v1/completions', { prompt: 'abc' }, part(answer)), meant);

export const serverRows: Readonly<Record<string, Rows>> = {
  ModelServer: {
    close: null,
    new: (world) => call((options: ModelServerOptions, onError: () => void) => serverOf(world, options, onError), optionsOf(world), () => {}),
    listen: (world) => {
      const server = serverOf(world, optionsOf(world));
      return call(async (options: ListenOptions) => {
        try {
          await server.listen(options);
        } catch (error) {
          if (!isOfSystem(error)) throw error;
        }
      }, { port: 0, host: '127.0.0.1' });
    },
    'tokenizer encode answers': completion((answer) => ({ encode: () => answer }), [1, 2, 3]),
    'tokenizer pieces answers': completion((answer) => ({ pieces: () => answer }), { push: () => 'a', end: () => '' }),
    'tokenizer push answers': completion((answer) => ({ pieces: () => ({ push: () => answer, end: () => answer }) }), 'a'),
    'tokenizer encodeChat answers': (world) => call(
      (answer: never) => serve(world, '/v1/chat/completions', { messages: [{ role: 'user', content: 'a' }] }, { encodeChat: () => answer }), [1, 2, 3]),
  },
  sessionPolicy: { call: () => call(sessionPolicy, () => 0) },
};
