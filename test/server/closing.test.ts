import test from 'ava';

import { LlamaTokenizer } from 'virtual-kv/llama';
import { ModelServer, type ModelServerOptions } from 'virtual-kv/server';

import { refuses } from '../helpers/refuses.js';
import { scriptFrom } from './script-engine.js';
import { ServingWorld } from './serving-world.js';

const chat = (content: string, more: object = {}): object => ({ messages: [{ role: 'user', content }], max_tokens: 30, ...more });

test('closing finishes streams that have begun, and takes no new requests', async (t) => {
  const world = new ServingWorld({ slots: 1 });
  await world.server.listen({ port: 0 });
  const { url } = world;
  world.engine.hold();
  const responses = await Promise.all([world.post('/v1/chat/completions', chat('a', { stream: true })), world.post('/v1/chat/completions', chat('a', { stream: true }))]);
  const closed = world.server.close();
  t.true(world.server.isClosed);
  t.is(world.server.close(), closed, 'the second call waits for the first');
  await t.throwsAsync(fetch(`${url}/health`));
  world.engine.letGo();
  for (const response of responses) {
    const text = await response.text();
    t.true(text.endsWith('data: [DONE]\n\n'));
    t.true(text.includes('"finish_reason":"length"'));
  }
  await closed;
  t.is(world.scheduler.totals.completedRequests, 2);
  t.is(world.server.url, undefined);
  await t.throwsAsync(world.server.listen(), { code: 'KV_CLOSED' });
  world.cache.close();
});

test('answers that are not done when the time for them is over end with an error that says so', async (t) => {
  const world = new ServingWorld({ graceMs: 0 });
  await world.server.listen({ port: 0 });
  world.engine.hold();
  const stream = await world.post('/v1/chat/completions', chat('a', { stream: true }));
  const whole = world.post('/v1/chat/completions', chat('a'));
  while (world.scheduler.runningRequests + world.scheduler.waitingRequests < 2) await new Promise(setImmediate);
  const closed = world.server.close();
  while (!world.scheduler.isClosed) await new Promise(setImmediate);
  world.engine.letGo();
  t.regex(await stream.text(), /"code":"KV_CLOSED"/);
  t.is((await whole).status, 503);
  await closed;
  t.is(world.cache.counts().activeSlots, 0);
  world.cache.close();
});

test('requests on a connection that stays open are refused while the server closes', async (t) => {
  const world = new ServingWorld({ slots: 1 });
  await world.server.listen({ port: 0 });
  world.engine.hold();
  const socket = await world.connect();
  const wire = (path: string, body: string): string => `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`;
  let all = '';
  const gone = new Promise((resolve) => { socket.on('error', () => {}).once('close', resolve); });
  socket.on('data', (chunk: Buffer) => { all += chunk.toString(); });
  socket.write(wire('/v1/completions', JSON.stringify({ prompt: 'abc', max_tokens: 4 })));
  while (world.scheduler.runningRequests === 0) await new Promise(setImmediate);
  const closed = world.server.close();
  socket.write(wire('/v1/completions', JSON.stringify({ prompt: 'abc' })));
  while (socket.bytesWritten < 200) await new Promise(setImmediate);
  world.engine.letGo();
  await Promise.all([closed, gone]); // then all has come that was sent
  t.true(all.startsWith('HTTP/1.1 200'));
  t.true(all.includes(JSON.stringify(scriptFrom(3, 4)).slice(1, -1)));
  t.false(all.includes('HTTP/1.1 200', 20));
  t.is(world.scheduler.totals.completedRequests, 1);
  world.cache.close();
});

test('connections that ask nothing, or never did, do not delay the end', async (t) => {
  const world = new ServingWorld({ graceMs: 2 ** 31 - 1 });
  await world.server.listen({ port: 0 });
  const silent = (await world.connect()).on('error', () => {});
  t.is((await world.post('/v1/chat/completions', chat('a', { max_tokens: 1 }))).status, 200);
  const gone = new Promise((resolve) => { silent.once('close', resolve); });
  await world.server.close();
  await gone;
  world.cache.close();
});

test('missing packages are named', async (t) => {
  const world = new ServingWorld();
  const { scheduler } = world;
  const tokenizer = { hasChatTemplate: false, encode: () => [1], encodeChat: () => [1], pieces: () => ({ push: () => '', end: () => '' }) };
  const options: ModelServerOptions = { scheduler, tokenizer, modelName: 'a', maxTokens: 8 };
  const missing = (): never => { throw Object.assign(new Error('Cannot find module'), { code: 'MODULE_NOT_FOUND' }); };
  refuses(t, () => new ModelServer(options, undefined, missing),
    'KV_DEPENDENCY_MISSING', { dependency: 'hono @hono/node-server' });
  t.throws(() => new LlamaTokenizer('nowhere', missing), { code: 'KV_DEPENDENCY_MISSING' });
  const server = new ModelServer(options);
  await t.throwsAsync(server.listen({ port: -1 }), { code: 'KV_INVALID_OPTION' });
  t.is(server.url, undefined);
  await world.close();
});

test('a server that is closed while it begins to listen says so, and listens no more', async (t) => {
  const world = new ServingWorld();
  const listening = t.throwsAsync(world.server.listen({ port: 0, host: 'localhost' }), { code: 'KV_CLOSED' });
  await world.close();
  await listening;
  t.is(world.server.url, undefined);
});
