// Tokenizing in the server: what is refused before it begins, and what may happen while it goes on.

import test from 'ava';

import type { ServedEncodeOptions, ServedTokenizer } from 'virtual-kv/server';

import { byteTokenizer } from './script-engine.js';
import { withServer } from './serving-world.js';

const turn = (): Promise<unknown> => new Promise(setImmediate);

/** Counts what it tokenizes, and takes as long as it is held; gives up when it is told to. */
class HeldTokenizer implements ServedTokenizer {
  readonly hasChatTemplate = true;
  readonly pieces = byteTokenizer.pieces;
  calls = 0;
  #held: Promise<void> | undefined;
  #letGo = (): void => {};

  hold(): void {
    this.#held = new Promise((resolve) => { this.#letGo = resolve; });
  }

  letGo(): void {
    this.#letGo();
    this.#held = undefined;
  }

  async encode(text: string, { signal }: ServedEncodeOptions): Promise<number[]> {
    this.calls += 1;
    if (this.#held !== undefined) {
      await Promise.race([this.#held, new Promise((resolve, reject) => { signal?.addEventListener('abort', () => { reject(new Error('given up')); }); })]);
    }
    return byteTokenizer.encode(text);
  }

  encodeChat(messages: Parameters<ServedTokenizer['encodeChat']>[0], values: object, options: ServedEncodeOptions): Promise<number[]> {
    return this.encode(Buffer.from(byteTokenizer.encodeChat(messages)).toString(), options);
  }
}

const codeOf = async (response: Response): Promise<string> => ((await response.json()) as { error: { code: string } }).error.code;

test('a body over its limit, and a prompt with more characters than the context can have, are refused before anything is tokenized', async (t) => {
  const tokenizer = new HeldTokenizer();
  await withServer(t, { tokenizer, maxTokens: 64, maxBodyBytes: 20_000 }, async (world) => {
    const most = 16 * 64;
    const refusals = [
      { prompt: 'a'.repeat(20_000) }, { prompt: 'a'.repeat(most + 1) }, { prompt: ['a', 'a'.repeat(most + 1)] },
      { messages: [{ role: 'user', content: 'a'.repeat(most) }, { role: 'user', content: 'a' }] }, { prompt: Array.from({ length: most + 1 }, () => 1) },
    ];
    for (const body of refusals) {
      t.is((await world.post('messages' in body ? '/v1/chat/completions' : '/v1/completions', { ...body, max_tokens: 1 })).status, 413, JSON.stringify(body).slice(0, 60));
    }
    t.is(tokenizer.calls, 0);
    const longest = await world.post('/v1/completions', { prompt: 'a'.repeat(most), max_tokens: 1 });
    t.is(longest.status, 400);
    t.is(await codeOf(longest), 'context_length_exceeded');
    t.is(tokenizer.calls, 1);
    t.is((await world.post('/v1/completions', { prompt: 'a'.repeat(60), max_tokens: 1 })).status, 200);
  });
});

test('requests whose prompts are being tokenized wait: with them the queue is full, and the server answers others', async (t) => {
  const tokenizer = new HeldTokenizer();
  await withServer(t, { tokenizer, scheduler: { maxWaiting: 3 } }, async (world) => {
    tokenizer.hold();
    const held = [world.post('/v1/completions', { prompt: 'ab', max_tokens: 2 }), world.post('/v1/completions', { prompt: 'ab', n: 2, max_tokens: 2, temperature: 1 })];
    while (tokenizer.calls < 2) await turn();
    const refused = await world.post('/v1/completions', { prompt: 'ab', max_tokens: 2 });
    t.is(refused.status, 429);
    t.regex((await refused.json() as { error: { message: string } }).error.message, /\b3 requests/);
    t.is((await fetch(`${world.url}/health`)).status, 200);
    t.is(tokenizer.calls, 2);
    tokenizer.letGo();
    for (const response of await Promise.all(held)) t.is(response.status, 200);
    t.is((await world.post('/v1/completions', { prompt: 'ab', max_tokens: 2 })).status, 200);
  });
});

test('a client that leaves gives its prompt up, and nothing of it is submitted', async (t) => {
  const tokenizer = new HeldTokenizer();
  await withServer(t, { tokenizer, scheduler: { maxWaiting: 1 } }, async (world) => {
    tokenizer.hold();
    const leaving = new AbortController();
    const left = t.throwsAsync(world.post('/v1/completions', { prompt: 'ab' }, { signal: leaving.signal }), { any: true });
    while (tokenizer.calls < 1) await turn();
    leaving.abort();
    await left;
    while (world.errors.length === 0) await turn();
    t.is((world.errors.pop() as Error).message, 'given up');
    tokenizer.letGo();
    t.is((await world.post('/v1/completions', { prompt: 'ab', max_tokens: 1 })).status, 200);
    t.is(world.scheduler.totals.completedRequests, 1);
    t.is(world.scheduler.totals.failedRequests, 0);
  });
});

test('a tokenizer that fails between the answers of a request leaves none of them running', async (t) => {
  let left = 0;
  const pieces = (): ReturnType<ServedTokenizer['pieces']> => {
    left -= 1;
    if (left === 0) throw new Error('no pieces');
    return byteTokenizer.pieces();
  };
  await withServer(t, { tokenizer: { ...byteTokenizer, pieces } }, async (world) => {
    const messages = [{ role: 'user', content: 'ab' }];
    world.engine.hold();
    let submitted = 0;
    for (let nth = 1; ; nth += 1) {
      left = nth;
      const response = world.post('/v1/chat/completions', { messages, n: 3, max_tokens: 2, temperature: 1 });
      while (left > 0 && world.scheduler.runningRequests + world.scheduler.waitingRequests < 3) await turn();
      if (left > 0) { // no call of this number
        left = 0;
        world.engine.letGo();
        t.is((await response).status, 200);
        break;
      }
      submitted = nth;
      t.is((await response).status, 500);
      t.is(world.scheduler.runningRequests + world.scheduler.waitingRequests, 0, `call ${nth}`);
      t.is((world.errors.pop() as Error).message, 'no pieces');
    }
    t.is(submitted, 3, 'one for each answer');
  });
});

test.serial('tokenizing is part of the time that a request may take', async (t) => {
  const tokenizer = new HeldTokenizer();
  await withServer(t, { tokenizer }, async (world) => {
    tokenizer.hold();
    const late = world.post('/v1/completions', { prompt: 'ab', deadline_ms: 60_000 });
    while (tokenizer.calls < 1) await turn();
    const { now } = performance;
    t.teardown(() => { performance.now = now; });
    performance.now = () => now.call(performance) + 60_000;
    tokenizer.letGo();
    const response = await late;
    t.is(response.status, 504);
    t.is(await codeOf(response), 'KV_DEADLINE_EXCEEDED');
    t.is(world.scheduler.totals.failedRequests, 0);
  });
});

test('a server that is closed meanwhile refuses what comes out of the tokenizer', async (t) => {
  const tokenizer = new HeldTokenizer();
  await withServer(t, { tokenizer, graceMs: 0 }, async (world) => {
    tokenizer.hold();
    const late = world.post('/v1/completions', { prompt: 'ab' });
    while (tokenizer.calls < 1) await turn();
    const closing = world.server.close();
    while (!world.scheduler.isClosed) await turn();
    tokenizer.letGo();
    const response = await late;
    t.is(response.status, 503);
    t.is(await codeOf(response), 'KV_CLOSED');
    await closing;
  });
});

test('a tokenizer that answers with no list of tokens is no fault of a client: 500, and the server is told', async (t) => {
  for (const answer of [undefined, null, 'abc', 5, [1, '2'], new Array(2 ** 32 - 1)]) {
    const tokenizer = { ...byteTokenizer, encode: () => answer as number[] };
    await withServer(t, { tokenizer }, async (world) => {
      const response = await world.post('/v1/completions', { prompt: 'abc', max_tokens: 1 });
      t.deepEqual([response.status, await codeOf(response)], [500, 'internal_error']);
      t.is(world.errors.length, 1);
      t.like(world.errors.splice(0)[0], { code: 'KV_INVALID_OPTION', details: { owner: 'ModelServer', option: 'tokenizer' } });
    });
  }
});

test('a function of the server that returns nonsense while answers are made is no fault of a client: 500, and the server is told', async (t) => {
  const nonsense = 5 as unknown;
  for (const [option, options] of [
    ['tokenizer', { tokenizer: { ...byteTokenizer, pieces: () => ({ push: () => nonsense as string, end: () => '' }) } }],
    ['order', { scheduler: { order: () => Number.NaN } }],
  ] as const) {
    await withServer(t, options, async (world) => {
      const response = await world.post('/v1/completions', { prompt: ['abc', 'abd'], max_tokens: 1 });
      t.deepEqual([response.status, await codeOf(response)], [500, 'internal_error'], option);
      t.like(world.errors.splice(0), { length: 1, 0: { code: 'KV_INVALID_OPTION', details: { option } } });
    });
  }
});

test('tokens in a typed array are tokens', async (t) => {
  const tokenizer = { ...byteTokenizer, encode: (text: string) => Uint8Array.from(Buffer.from(text)) as unknown as number[] };
  await withServer(t, { tokenizer }, async (world) => {
    t.is((await world.post('/v1/completions', { prompt: 'abc', max_tokens: 1 })).status, 200);
  });
});
