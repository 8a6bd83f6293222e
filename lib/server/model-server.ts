// ModelServer: a model behind OpenAI's HTTP API: an online scheduler, a tokenizer, and Node's HTTP server with limits. It owns the
// server and closes the scheduler; cache, engine and model are the caller's. For the scheduler's thread.

import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo, Socket } from 'node:net';
import type { Duplex } from 'node:stream';

import { createError, type ErrorDetails } from '../base/errors.js';
import { callable, integer, readOptions, string, withDefault } from '../base/options.js';
import { Connections, endSlowly } from './connections.js';
import { bareAnswer, httpErrorOf, requestIdOf } from './http-error.js';
import { loadHono } from './load-hono.js';
import { routesOf } from './routes.js';
import { ServerMetrics } from './server-metrics.js';
import { readServerOptions, type ModelServerOptions, type ReadServerOptions } from './server-options.js';
import { Submission } from './submission.js';
import { WatchState } from './watch-state.js';

/** Where a server listens. */
export interface ListenOptions {
  /** The port, 0 … 65,535; 0: any that is free. Default 8000. */
  readonly port?: number | undefined;
  /** The address. Default 127.0.0.1: this machine only. */
  readonly host?: string | undefined;
}

/** Ms in which clients are told how their answers ended when the server's time is over. */
const lastWordMs = 1_000;

/** A model behind OpenAI's HTTP API. */
export class ModelServer {
  readonly #options: ReadServerOptions;
  readonly #server: Server;
  readonly #connections: Connections;
  readonly #closing = new AbortController();
  #closed: Promise<void> | undefined;

  /**
   * Throws KV_UNKNOWN_OPTION, KV_INVALID_OPTION, and KV_DEPENDENCY_MISSING where hono is not installed. `onError`: told of errors that are
   * no client's, and that a client learns nothing of. Default: nothing is done.
   * @param load Loads a package by its name; for tests.
   */
  constructor(options: ModelServerOptions, onError: (error: unknown) => void = () => {}, load?: (name: string) => unknown) {
    this.#options = readServerOptions(options);
    callable()(onError, { owner: 'ModelServer', option: 'onError' });
    const {
      scheduler, requestTimeoutMs, stallTimeoutMs, keepAliveMs, maxConnections, maxConnectionsPerAddress, modelName,
    } = this.#options;
    const framework = loadHono(load);
    const requestTimeout = Math.ceil(requestTimeoutMs); // Node refuses fractions
    const server = createServer({
      requestTimeout, headersTimeout: requestTimeout, connectionsCheckingInterval: Math.min(1_000, requestTimeout),
      keepAliveTimeout: keepAliveMs,
    });
    this.#server = server;
    const open = this.#connections = new Connections(server, {
      stallTimeoutMs, most: maxConnections, mostPerAddress: maxConnectionsPerAddress,
      onFull: (socket) => { refuse(socket, tooManyConnections()); },
    });
    /** Answers what no route sees. */
    const refuse = (socket: Duplex, error: unknown): void => {
      metrics?.countResponse(httpErrorOf(error).status);
      endSlowly(socket as Socket, bareAnswer(error));
    };
    server.on('clientError', (error: NodeJS.ErrnoException, socket: Duplex) => {
      if (open.isSilent(socket as Socket) && error.code !== 'ECONNRESET') refuse(socket, parserErrorOf(error));
      else if (socket.writable) socket.destroy(); // else it ends already
    });
    server.on('connect', (_, socket: Duplex) => { refuse(socket, parserErrorOf({ code: 'CONNECT' })); });
    server.on('checkExpectation', (_: IncomingMessage, response: ServerResponse) => {
      const { status, body } = httpErrorOf(parserErrorOf({ code: 'EXPECT' }));
      metrics?.countResponse(status);
      const text = JSON.stringify(body);
      response.writeHead(status, {
        'content-type': 'application/json', 'content-length': Buffer.byteLength(text),
        'x-request-id': requestIdOf(undefined), connection: 'close',
      });
      response.end(text);
    });
    const connections = (): number => open.count;
    const isClosing = (): boolean => this.#isClosing;
    const metrics = ServerMetrics.open({ cache: scheduler.cache, scheduler, connections }, load);
    const watched = new WatchState({ scheduler, modelName, connections, isClosing });
    server.once('listening', () => { watched.watch(); }).once('close', () => { watched.end(); });
    const app = routesOf({ // `created` is a date for the client, of the wall clock
      framework, options: this.#options, submission: new Submission(this.#options), connections: open, metrics,
      watched, isClosing, onError, created: Math.floor(Date.now() / 1e3),
    });
    const listener = framework.listenerOf(
      app.fetch, { overrideGlobalObjects: false, errorHandler: (cause) => answerOf(parserErrorOf({ cause })) },
    );
    server.on('request', (incoming, outgoing) => {
      listener(incoming, outgoing).catch(onError);
    });
  }

  /** The address that it listens at, `http://127.0.0.1:8000`; undefined before `listen` and after `close`. */
  get url(): string | undefined {
    const address = this.#server.address() as AddressInfo | null;
    if (address === null) return undefined;
    return `http://${address.family === 'IPv6' ? `[${address.address}]` : address.address}:${address.port}`;
  }

  /** Whether `close` was called. */
  get isClosed(): boolean {
    return this.#isClosing;
  }

  /** Listens; resolves with the address. Rejects with KV_CLOSED, also where it is closed meanwhile, and with what the system refuses (`EADDRINUSE`). */
  async listen(options: ListenOptions = {}): Promise<string> {
    const { port, host } = readOptions('ModelServer.listen', options, {
      port: withDefault(integer({ max: 65_535 }), 8_000), host: withDefault(string, '127.0.0.1'),
    });
    if (this.#isClosing) throw closed();
    this.#server.listen(port, host);
    const { signal } = this.#closing;
    await once(this.#server, 'listening', { signal }).catch((error: unknown) => { throw signal.aborted ? closed() : error; });
    return this.url!;
  }

  /**
   * Takes no more requests, lets answers go on for `graceMs`, ends those that are left with KV_CLOSED, and closes the scheduler: cache and
   * engine can be closed then. Idempotent; resolves when all is over.
   */
  close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  get #isClosing(): boolean {
    return this.#closing.signal.aborted;
  }

  async #close(): Promise<void> {
    const { scheduler, graceMs } = this.#options;
    this.#closing.abort();
    const over = this.#server.listening ? once(this.#server, 'close') : Promise.resolve();
    this.#server.close();
    this.#connections.end();
    await atMost(graceMs, over);
    await scheduler.close();
    await atMost(lastWordMs, over);
    this.#server.closeAllConnections();
    await over;
  }
}

const closed = (): Error => createError('KV_CLOSED', { operation: 'listen', owner: 'ModelServer' });

const tooManyConnections = (): Error => createError('KV_REQUEST_INVALID', {
  reason: 'too-many', problem: 'its address has as many connections open as are allowed, or the server has',
  hint: 'Use them again, or close some.',
});

/** Why Node's parser, or the adapter's, does not take a request. */
function parserErrorOf({ code, cause }: { readonly code?: string | undefined; readonly cause?: unknown }): Error {
  const invalid = (reason: ErrorDetails['KV_REQUEST_INVALID']['reason'], problem: string, hint: string): Error =>
    createError('KV_REQUEST_INVALID', { reason, problem, hint }, { cause });
  if (code === 'HPE_HEADER_OVERFLOW') return invalid(
    'headers-too-large', 'its headers have more than 16 KiB', 'Send fewer.',
  );
  if (code === 'ERR_HTTP_REQUEST_TIMEOUT') return invalid('too-slow', 'it took too long to arrive', 'Send it at once.');
  if (code === 'EXPECT') return invalid(
    'expectation', 'it expects what the server does not do', 'Leave `Expect` out, or send 100-continue.',
  );
  if (code === 'CONNECT') return invalid('method', 'CONNECT is not answered', 'Use GET or POST.');
  return invalid(
    'malformed', `it is not HTTP/1.1${code === undefined ? '' : ` (${code})`}`,
    'Send one `Host`, one length, and an address that begins with /.',
  );
}

/** Of what the adapter refuses before a route sees it. */
function answerOf(error: unknown): Response {
  const { status, body } = httpErrorOf(error);
  return Response.json(body, { status, headers: { 'x-request-id': requestIdOf(undefined) } });
}

/** Resolves with `done`, or after so many ms. */
async function atMost(ms: number, done: Promise<unknown>): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  await Promise.race([done, new Promise((resolve) => { timer = setTimeout(resolve, ms); })]);
  clearTimeout(timer);
}
