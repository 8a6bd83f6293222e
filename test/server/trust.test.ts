// Whom the server trusts: what a key may see of others' text, how urgent it may be, which pages and names reach it, and
// how many connections one address may hold. And that each refusal of the HTTP layer says why, with an id.

import { request, type IncomingHttpHeaders } from 'node:http';
import type { Socket } from 'node:net';

import test, { type ExecutionContext } from 'ava';

import { ServingWorld, withServer } from './serving-world.js';

const prompt = 'a prompt of some length that only its own client may find again '.repeat(6);

interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

/** A request with headers that fetch does not send. */
function ask(world: ServingWorld, path: string, headers: Record<string, string> = {}, method = 'GET', body?: string): Promise<Answer> {
  const { hostname: host, port } = new URL(world.url);
  return new Promise((resolve, reject) => {
    const sent = request({ host, port, path, method, headers, agent: false }, (response) => {
      let text = '';
      response.on('data', (chunk: Buffer) => { text += chunk.toString(); });
      response.on('end', () => { resolve({ status: response.statusCode!, headers: response.headers, body: text }); });
    });
    sent.on('error', reject);
    sent.end(body);
  });
}

async function cachedTokens(world: ServingWorld, key: string, more: object = {}): Promise<number> {
  const { usage } = await world.client(key).completions.create({ model: 'script', prompt, max_tokens: 2, ...more });
  return usage!.prompt_tokens_details!.cached_tokens!;
}

test('a key finds text of its own tenant only, whatever `user` it names', (t) => withServer(t, {
  apiKeys: ['alone', { key: 'old', tenant: 'shop' }, { key: 'new', tenant: 'shop' }, { key: 'liar', tenant: '["shop"' }],
}, async (world) => {
  t.is(await cachedTokens(world, 'old'), 0);
  t.is(await cachedTokens(world, 'old', { user: 'ann' }), 0, 'a user within the tenant');
  for (const key of ['alone', 'liar']) {
    for (const user of [undefined, 'ann', 'shop', '["shop"]', '["shop","ann"]']) {
      t.is(await cachedTokens(world, key, { user }), 0, `${key} ${user}`);
      t.true(await cachedTokens(world, 'new') > 0, 'keys may have one tenant');
      t.true(await cachedTokens(world, 'new', { user: 'ann' }) > 0);
    }
  }
  t.is(await cachedTokens(world, 'old', { prompt: `${prompt.slice(0, 205)}!` }), 192, 'not to the token');
}));

test('`urgency` is at most what the operator allows, for all or for a key', async (t) => {
  const cases = [
    [{}, 'any', 0], [{ maxUrgency: 7 }, 'any', 7],
    [{ apiKeys: [{ key: 'high', maxUrgency: 200 }, 'low'] }, 'high', 200],
    [{ apiKeys: [{ key: 'high', maxUrgency: 200 }, 'low'], maxUrgency: 3 }, 'low', 3],
  ] as const;
  for (const [options, key, expected] of cases) {
    await withServer(t, options, async (world) => {
      world.engine.hold();
      const answer = world.client(key).completions.create({ model: 'script', prompt, max_tokens: 1, urgency: 255 } as never);
      while (world.scheduler.runningRequests === 0) await new Promise(setImmediate);
      const state = await (await fetch(`${world.url}/watch/state`, { headers: { authorization: `Bearer ${key}` } })).json() as { requests: { running: { urgency: number }[] } };
      t.is(state.requests.running[0]!.urgency, expected);
      world.engine.letGo();
      await answer;
    });
  }
});

test('keys that no header can carry are refused, and the error does not have them', (t) => {
  const world = new ServingWorld();
  for (const key of ['', 'two words', 'tab\t', 'schlüssel', 'line\n', '\0']) {
    const error = t.throws(() => new ServingWorld({ apiKeys: [key] }), { code: 'KV_INVALID_OPTION' });
    t.like(error, { details: { option: 'apiKeys[0]' } });
    if (key.length > 2) t.false(error.message.includes(key));
  }
  return world.close();
});

const loopback = ['localhost', 'localhost:80', 'LOCALHOST.', '127.0.0.1:9', '[::1]:9', '192.168.0.7', 'page.localhost'];

test('on this machine only its own names and pages are answered', (t) => withServer(t, {}, async (world) => {
  const statusOf = async (headers: Record<string, string>, path = '/watch/state'): Promise<number> => (await ask(world, path, headers)).status;
  for (const host of loopback) t.is(await statusOf({ host }), 200, host);
  for (const host of ['evil.example', 'evil.example:8000', 'localhost.evil.example', '127.0.0.1.evil.example', 'a']) {
    for (const path of ['/watch/state', '/metrics', '/health', '/watch', '/nowhere']) t.is(await statusOf({ host }, path), 403, `${host} ${path}`);
  }
  const own = `127.0.0.1:${new URL(world.url).port}`;
  for (const origin of [`http://${own}`, 'http://localhost:3000', 'https://127.0.0.1']) t.is(await statusOf({ host: own, origin }), 200, origin);
  for (const origin of ['http://evil.example', 'http://203.0.113.9', 'null', 'file://', `http://${own}.evil.example`]) {
    t.is(await statusOf({ host: own, origin }), 403, origin);
    const post = await ask(world, '/v1/completions', { host: own, origin, 'content-type': 'application/json' }, 'POST', '{"prompt":"a","max_tokens":1}');
    t.is(post.status, 403, origin);
  }
}));

test('names and pages that the operator names are answered, and browsers are told so', (t) =>
  withServer(t, { allowedHosts: ['llm.example'], corsOrigins: ['https://app.example'], apiKeys: ['k'] }, async (world) => {
    t.is((await ask(world, '/health', { host: 'LLM.example' })).status, 200);
    t.is((await ask(world, '/health', { host: 'other.example' })).status, 403);
    const origin = 'https://app.example';
    const asked = { origin, 'access-control-request-method': 'POST', 'access-control-request-headers': 'authorization, x-stainless-os' };
    const { status, headers } = await ask(world, '/v1/chat/completions', asked, 'OPTIONS');
    t.is(status, 204);
    t.like(headers, {
      'access-control-allow-origin': origin, 'access-control-allow-headers': 'authorization, x-stainless-os',
      'access-control-allow-methods': 'GET, POST',
    });
    const sent = { origin, authorization: 'Bearer k', 'content-type': 'application/json' };
    for (const stream of [false, true]) {
      const answer = await ask(world, '/v1/completions', sent, 'POST', JSON.stringify({ prompt: 'abc', max_tokens: 1, stream }));
      t.is(answer.status, 200);
      t.is(answer.headers['access-control-allow-origin'], origin);
    }
    t.is((await ask(world, '/v1/models', { origin })).headers['access-control-allow-origin'], origin, 'a refusal can be read, too');
    t.is((await ask(world, '/v1/models', { ...sent, origin: 'https://evil.example' })).headers['access-control-allow-origin'], undefined);
  }));

/** Resolves with all that comes until the connection is closed. */
async function readAll(socket: Socket): Promise<string> {
  let text = '';
  socket.on('data', (chunk: Buffer) => { text += chunk.toString(); }).on('error', () => {});
  if (!socket.closed) await new Promise((resolve) => { socket.once('close', resolve); });
  return text;
}

test('silent connections give way to others; where all of an address are in use, one more is told so', (t) =>
  withServer(t, { maxConnections: 64, maxConnectionsPerAddress: 4, slots: 8 }, async (world) => {
    const silent: Socket[] = [];
    for (let at = 0; at < 10; at += 1) silent.push((await world.connect()).on('error', () => {}));
    t.is((await ask(world, '/health')).status, 200);
    world.engine.hold();
    const body = '{"prompt":"abc","max_tokens":1}';
    const wire = `POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\nConnection: close\r\n\r\n${body}`;
    const busy: Promise<string>[] = [];
    for (let at = 0; at < 4; at += 1) {
      const socket = await world.connect();
      busy.push(readAll(socket));
      socket.write(wire);
      while (world.scheduler.runningRequests + world.scheduler.waitingRequests <= at) await new Promise(setImmediate);
    }
    const refused = await readAll(await world.connect());
    t.regex(refused, /^HTTP\/1\.1 429 .*\r\n[^]*x-request-id: [^]*"code":"rate_limit_exceeded"/);
    world.engine.letGo();
    for (const answer of busy) t.regex(await answer, /^HTTP\/1\.1 200/);
    for (const socket of silent) socket.destroy();
  }));

test('a connection is kept for as long as the operator says, longer than a stalled client is borne', (t) =>
  withServer(t, { keepAliveMs: 95_000, stallTimeoutMs: 5_000 }, async (world) => {
    const { headers } = await ask(world, '/health', { connection: 'keep-alive' });
    t.is(headers['keep-alive'], 'timeout=95');
  }));

/** Sends bytes, and checks that the answer is a refusal with a body and an id. */
async function refusal(t: ExecutionContext, world: ServingWorld, bytes: string, status: number): Promise<void> {
  const socket = await world.connect();
  const all = readAll(socket);
  socket.write(bytes);
  const answer = await all;
  t.is(answer.slice(9, 12), String(status), bytes.slice(0, 60));
  t.regex(answer, /x-request-id: \S+/i);
  const { error } = JSON.parse(answer.slice(answer.indexOf('\r\n\r\n') + 4)) as { error: { message: string; code: string } };
  t.true(error.message.length > 10 && error.code.length > 0);
}

test('what is no request of HTTP is refused with a body and an id', (t) => withServer(t, {}, async (world) => {
  await refusal(t, world, `GET /health HTTP/1.1\r\nHost: localhost\r\nX: ${'y'.repeat(20_000)}\r\n\r\n`, 431);
  await refusal(t, world, 'GET /health HTTP/1.1\r\nHost: a/b@c\r\nConnection: close\r\n\r\n', 400);
  await refusal(t, world, 'GET http:// HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n', 400);
  await refusal(t, world, 'GET /health HTTP/1.1\r\nHost: localhost\r\nExpect: maybe\r\n\r\n', 417);
  await refusal(t, world, 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n', 400);
  await refusal(t, world, 'GET /health HTTP/9.9\r\n\r\n', 400);
  await refusal(t, world, 'CONNECT example.com:443 HTTP/1.1\r\nHost: example.com\r\n\r\n', 405);
}));
