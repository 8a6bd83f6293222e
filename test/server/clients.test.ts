// Clients as they are: many at once, that leave, read slowly or not at all, send slowly, send several requests at once or none. What they
// do must cost the others nothing, and leave nothing behind.

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import type { Server } from 'node:http';
import type { Socket } from 'node:net';

import test, { type ExecutionContext } from 'ava';

import { Random } from '#internal/base/random.js';
import { seedOf } from '../helpers/seed.js';
import { scriptFrom } from './script-engine.js';
import { withServer, type ServingWorld } from './serving-world.js';
import { slow } from '../runner/slow.js';

const chat = (content: string, more: object = {}): object => ({ messages: [{ role: 'user', content }], max_tokens: 30, ...more });
const tokensOf = (content: string): number => Buffer.byteLength(`user:${content}\n`);

/** A request as it goes over the wire. */
function wire(body: object | string, path = '/v1/chat/completions', more = ''): string {
  const text = typeof body === 'string' ? body : JSON.stringify(body);
  return `POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(text)}\r\n${more}\r\n${text}`;
}

/** Everything that comes until the connection is closed. */
async function readAll(socket: Socket): Promise<string> {
  const chunks: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => chunks.push(chunk));
  socket.on('error', () => {}); // as when the server closes while this client writes
  if (!socket.closed) await new Promise((resolve) => { socket.once('close', resolve); });
  return Buffer.concat(chunks).toString();
}

const turn = (): Promise<void> => new Promise((resolve) => { setImmediate(resolve); });

/** The server's end of a connection, whose timeouts a test brings about. */
type ServerEnd = Socket & { readonly server: Server };

/** The server's ends of connections that are opened from now on. */
class ServerEnds {
  readonly #ends: ServerEnd[] = [];

  constructor(t: ExecutionContext) {
    const hear = (message: unknown): void => { this.#ends.push((message as { socket: ServerEnd }).socket); };
    subscribe('net.server.socket', hear);
    t.teardown(() => { unsubscribe('net.server.socket', hear); });
  }

  async of({ localPort }: Socket): Promise<ServerEnd> {
    for (;;) {
      const end = this.#ends.find(({ remotePort }) => remotePort === localPort);
      if (end !== undefined) return end;
      await turn();
    }
  }
}

/** The text of a stream's events. */
function textOf(events: string): string {
  return [...events.matchAll(/^data: (\{.*)$/gm)].map(([, json]) =>
    (JSON.parse(json!) as { choices: { delta: { content?: string } }[] }).choices[0]?.delta.content ?? '').join('');
}

const seed = seedOf('many clients');

slow('hundreds of requests')(`256 streams at once, a third of which are left: every other one has its whole answer (seed ${seed})`, (t) =>
  withServer(t, { slots: 16, scheduler: { maxWaiting: 512 } }, async (world) => {
    const random = new Random(seed);
    let [whole, left] = [0, 0];
    await Promise.all(Array.from({ length: 256 }, async (_, index) => {
      const content = `client ${index % 20}`;
      const leaves = random.chance(1 / 3) ? 1 + random.integer(10) : Infinity;
      const leaver = new AbortController();
      const response = await world.post('/v1/chat/completions', chat(content, { stream: true }), { signal: leaver.signal });
      t.is(response.status, 200);
      let [text, chunks] = ['', 0];
      const decoder = new TextDecoder();
      try {
        for await (const chunk of response.body!) {
          text += decoder.decode(chunk as Uint8Array, { stream: true });
          chunks += 1;
          if (chunks >= leaves) leaver.abort();
        }
        t.is(textOf(text), scriptFrom(tokensOf(content), 30));
        whole += 1;
      } catch (error) {
        t.is((error as Error).name, 'AbortError');
        left += 1;
      }
    }));
    t.is(whole + left, 256);
    t.true(whole >= 128);
  }));

test('a client that does not read, or asks nothing more, is disconnected; one that waits is not', (t) =>
  withServer(t, { slots: 4, stallTimeoutMs: 54_321, modelName: 'm'.repeat(20_000) }, async (world) => {
    // Each event has the model's name: 20 MB in all, more than the system takes.
    const ends = new ServerEnds(t);
    const stalled = await Promise.all([world.connect(), world.connect()]);
    for (const socket of stalled) {
      socket.pause();
      socket.on('error', () => {});
      socket.write(['a', 'b'].map((content) => wire(chat(content, { stream: true, max_tokens: 480 }))).join(''));
    }
    const idle = await world.connect();
    const nothing = readAll(idle);
    t.is((await world.post('/v1/chat/completions', chat('another'))).status, 200);
    for (const socket of [...stalled, idle]) {
      const end = await ends.of(socket);
      t.is(end.timeout, 54_321);
      while (socket !== idle && end.writableLength === 0) await turn();
      end.emit('timeout');
      t.true(end.destroyed);
    }
    t.is(await nothing, '');
    await world.scheduler.idle();
    world.engine.hold();
    const patient = await world.connect();
    const answer = readAll(patient);
    patient.write(wire(chat('patient', { max_tokens: 1 }), undefined, 'Connection: close\r\n'));
    while (world.scheduler.runningRequests === 0) await turn();
    (await ends.of(patient)).emit('timeout');
    world.engine.letGo();
    t.regex(await answer, /^HTTP\/1\.1 200/);
    for (const socket of stalled) {
      const events = readAll(socket);
      socket.resume();
      t.false((await events).includes('[DONE]', 11_000_000));
    }
  }));

test('a client that sends slowly is told so and disconnected, and others are served meanwhile', (t) =>
  withServer(t, { requestTimeoutMs: 50 }, async (world) => {
    const ends = new ServerEnds(t);
    const first = await world.connect();
    const { server } = await ends.of(first);
    first.on('error', () => {}).destroy();
    const limits = { requestTimeout: 50, headersTimeout: 50 };
    t.like(server, limits);
    Object.assign(server, { requestTimeout: 0, headersTimeout: 0 }); // no request is late as yet
    const body = wire(chat('a'));
    const slow = await Promise.all([body.slice(0, 20), body.slice(0, -5), ''].map(async (part) => {
      const socket = await world.connect();
      socket.write(part);
      return { part, all: readAll(socket) };
    }));
    t.is((await world.post('/v1/chat/completions', chat('b', { max_tokens: 3 }))).status, 200);
    Object.assign(server, limits);
    for (const { part, all } of slow) t.regex(await all, part === '' ? /^(HTTP\/1\.1 408|$)/ : /^HTTP\/1\.1 408/);
  }));

test('requests that are sent behind each other are answered in order, and end when their client leaves', (t) =>
  withServer(t, { slots: 2 }, async (world) => {
    const socket = await world.connect();
    const bodies = ['one', 'two', 'three'].map((content, index) => wire(chat(content, { max_tokens: 20, stream: index === 1 }), undefined, index === 2 ? 'Connection: close\r\n' : ''));
    const all = readAll(socket);
    socket.write(bodies.join(''));
    const answers = (await all).split('HTTP/1.1 ').slice(1);
    t.deepEqual(answers.map((answer) => answer.slice(0, 3)), ['200', '200', '200']);
    t.true(answers[0]!.includes(JSON.stringify(scriptFrom(tokensOf('one'), 20)).slice(1, -1)));
    t.is(textOf(answers[1]!), scriptFrom(tokensOf('two'), 20));
    t.true(answers[2]!.includes(JSON.stringify(scriptFrom(tokensOf('three'), 20)).slice(1, -1)));

    world.engine.hold();
    const leaver = await world.connect();
    leaver.write(bodies.slice(0, 2).join('').repeat(3));
    while (world.scheduler.waitingRequests + world.scheduler.runningRequests < 6) await turn();
    leaver.destroy();
    while (world.scheduler.totals.failedRequests < 6) await turn();
    t.is(world.scheduler.waitingRequests, 0);
  }));

test('what is no request for the server is refused, and the connection stays usable where it can', (t) => withServer(t, { maxBodyBytes: 4_096 }, async (world) => {
  const statusOf = async (path: string, init: RequestInit): Promise<number> => {
    const response = await fetch(world.url + path, init);
    const { error } = await response.json() as { error: { message: string; code: string } };
    t.true(error.message.length > 10 && error.code.length > 0);
    t.truthy(response.headers.get('x-request-id'));
    return response.status;
  };
  const json = { 'content-type': 'application/json' };
  const path = '/v1/chat/completions';
  t.is(await statusOf(path, { method: 'POST', body: '{}' }), 415);
  t.is(await statusOf(path, { method: 'POST', headers: { ...json, 'content-encoding': 'gzip' }, body: '{}' }), 415);
  for (const body of ['', '{', '[]', 'null', '"a"', '{"messages":1}', Buffer.from([0x22, 0xff, 0x22])]) t.is(await statusOf(path, { method: 'POST', headers: json, body }), 400);
  t.is(await statusOf(path, { method: 'POST', headers: json, body: JSON.stringify(chat('a'.repeat(9_000))) }), 413);
  t.is(await statusOf(path, {}), 405);
  t.is(await statusOf('/v1/embeddings', { method: 'POST', headers: json, body: '{}' }), 404);
  t.is(await statusOf('/health', { method: 'POST', headers: json, body: '{}' }), 405);
  for (const nowhere of ['/constructor', '/*', '/watch/:file']) t.is(await statusOf(nowhere, {}), 404, nowhere);

  const endless = await world.connect();
  const answer = readAll(endless);
  endless.write(`POST ${path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n`);
  const chunk = `1000\r\n${'a'.repeat(4_096)}\r\n`;
  while (!endless.destroyed && !endless.closed && endless.write(chunk, () => {})) await turn();
  t.regex(await answer, /^HTTP\/1\.1 413/);
  const garbage = await world.connect();
  const refused = readAll(garbage);
  garbage.write('\x16\x03\x01 this is not HTTP\r\n\r\n');
  t.regex(await refused, /^HTTP\/1\.1 400/);
}));

/** Bytes in use after a collection; the tests run without --expose-gc. */
async function heapBytes(world: ServingWorld, requests: number): Promise<number> {
  for (let at = 0; at < requests; at += 16) {
    await Promise.all(Array.from({ length: 16 }, async (_, index) => {
      const stream = index % 2 === 0;
      const leaver = new AbortController();
      const response = await world.post('/v1/chat/completions', chat(`client ${at + index}`, { stream, max_tokens: 20 }), { signal: leaver.signal });
      if (index % 8 === 1) leaver.abort();
      else await response.text();
    }).map((each) => each.catch(() => {})));
  }
  const { setFlagsFromString } = await import('node:v8');
  const { runInNewContext } = await import('node:vm');
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
  return process.memoryUsage().heapUsed;
}

slow('hundreds of requests')('memory does not grow with the requests that were served', (t) => withServer(t, { slots: 8 }, async (world) => {
  await heapBytes(world, 160);
  let before = await heapBytes(world, 80);
  let least = Infinity; // a leak grows in each round; what one collection happens to leave does not
  for (let round = 0; round < 4 && least >= 1e6; round += 1) {
    const after = await heapBytes(world, 320);
    least = Math.min(least, after - before);
    before = after;
  }
  t.true(least < 1e6, `${least} bytes more after 320 requests, and in no round fewer`);
}));
