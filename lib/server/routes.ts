// The addresses of the server: OpenAI's API, and what those who operate it ask. Each request gets an id, which its answer carries; errors
// become JSON in one place.

import { randomUUID } from 'node:crypto';

import type { Context } from 'hono';

import { createError } from '../base/errors.js';
import type { ApiKeys } from './api-keys.js';
import { readChatRequest, readCompletionRequest, type ApiRequest, type CompletionKind } from './api-request.js';
import type { Connections } from './connections.js';
import { writeEvents } from './event-stream.js';
import { httpErrorOf } from './http-error.js';
import type { App, HttpFramework, NodeBindings } from './load-hono.js';
import { readJsonBody } from './request-body.js';
import type { ServerMetrics } from './server-metrics.js';
import type { ReadServerOptions } from './server-options.js';
import type { Submission } from './submission.js';
import { WatchPage } from './watch-page.js';
import type { WatchState } from './watch-state.js';

export interface RoutesOptions {
  readonly framework: HttpFramework;
  readonly options: ReadServerOptions;
  readonly keys: ApiKeys;
  readonly submission: Submission;
  readonly connections: Connections;
  readonly metrics: ServerMetrics | undefined;
  /** What the live page shows. */
  readonly watched: WatchState;
  /** Whether the server takes no more requests. */
  readonly isClosing: () => boolean;
  /** Told of errors that are no client's. */
  readonly onError: (error: unknown) => void;
  /** In seconds since 1970. */
  readonly created: number;
}

type RequestContext = Context<{ readonly Bindings: NodeBindings }>;

const kinds: Readonly<Record<string, { readonly kind: CompletionKind; readonly read: (body: Readonly<Record<string, unknown>>) => ApiRequest }>> = {
  '/v1/chat/completions': { kind: 'chat', read: readChatRequest },
  '/v1/completions': { kind: 'text', read: readCompletionRequest },
};

/** Addresses that answer without a key: the files of the live page, which hold no data, among them. */
const isOpen = (path: string): boolean => path === '/' || path === '/health' || path === '/ready' || pageFileOf(path) !== undefined;

/** The name of the live page's file at a path. */
function pageFileOf(path: string): string | undefined {
  const name = /^\/watch(?:\/([\w.-]+))?$/.exec(path);
  return name !== null && WatchPage.has(name[1] ?? '') ? name[1] ?? '' : undefined;
}

export function routesOf({ framework, options, keys, submission, connections, metrics, watched, isClosing, onError, created }: RoutesOptions): App {
  const app = new framework.Hono();
  const { scheduler, modelName, maxBodyBytes } = options;
  const model = { id: modelName, object: 'model', created, owned_by: 'virtual-kv' };

  /** The body of an error, with its headers. */
  const refuse = (context: RequestContext, error: unknown): Response => {
    const { status, body } = httpErrorOf(error);
    if (status === 500) onError(error);
    if (status === 429 || status === 503) context.header('retry-after', String(submission.retryAfterSeconds));
    if (!context.env.incoming.complete) {
      context.header('connection', 'close');
      connections.discardRest(context.env.incoming);
    }
    return context.json(body, status as 400);
  };

  app.use(async (context, next) => {
    const given = context.req.header('x-request-id');
    context.header('x-request-id', given !== undefined && /^[\x21-\x7e]{1,128}$/.test(given) ? given : `req-${randomUUID()}`);
    if (isClosing()) context.header('connection', 'close');
    try {
      if (!isOpen(context.req.path)) keys.check(context.req.header('authorization'));
      await next();
    } catch (error) {
      context.res = refuse(context, error);
    }
    metrics?.countResponse(context.res.headers.has('x-hono-already-sent') ? 200 : context.res.status);
  });
  app.onError((error, context) => refuse(context, error));
  app.notFound((context) => {
    const { method, path } = context.req;
    const isKnown = path in kinds || app.routes.some((route) => route.path === path);
    return refuse(context, isKnown
      ? createError('KV_REQUEST_INVALID', { reason: 'method', problem: `${method} is not answered at ${path}`, hint: `Use ${path in kinds ? 'POST' : 'GET'}.` })
      : createError('KV_REQUEST_INVALID', { reason: 'not-found', problem: `there is nothing at ${path.slice(0, 200)}`, hint: 'See docs/serve.md for the addresses.' }));
  });

  app.get('/health', (context) => context.json({ status: 'ok' }));
  app.get('/ready', (context) => {
    const isReady = !isClosing() && !scheduler.isClosed && !scheduler.cache.isClosed && scheduler.waitingRequests < scheduler.maxWaiting;
    return context.json({ status: isReady ? 'ready' : 'not ready' }, isReady ? 200 : 503);
  });
  app.get('/metrics', async (context) => {
    if (metrics === undefined) throw createError('KV_DEPENDENCY_MISSING', { dependency: 'prom-client', purpose: 'showing metrics' });
    const { text, type } = await metrics.scrape();
    return context.body(text, 200, { 'content-type': type });
  });
  app.get('/', (context) => context.redirect('watch'));
  app.get('/watch/state', (context) => context.body(watched.json(), 200, { 'content-type': 'application/json', 'cache-control': 'no-store' }));
  const page = new WatchPage();
  for (const path of ['/watch', '/watch/:file']) {
    app.get(path, (context) => {
      const name = pageFileOf(context.req.path);
      if (name === undefined) return context.notFound();
      const { body, headers } = page.file(name);
      return context.body(body, 200, headers);
    });
  }
  app.get('/v1/models', (context) => context.json({ object: 'list', data: [model] }));
  app.get('/v1/models/:id{.+}', (context) => {
    if (context.req.param('id') === modelName) return context.json(model);
    throw createError('KV_REQUEST_INVALID', {
      reason: 'not-found', problem: `there is no model ${JSON.stringify(context.req.param('id').slice(0, 100))}`, hint: `There is ${JSON.stringify(modelName)}.`,
    });
  });

  for (const [path, { kind, read }] of Object.entries(kinds)) {
    app.post(path, async (context) => {
      const { incoming, outgoing } = context.env;
      if (isClosing()) throw createError('KV_CLOSED', { operation: 'answer a request', owner: 'ModelServer' });
      const request = read(await readJsonBody(incoming, maxBodyBytes));
      const completion = await submission.submit(kind, request, connections.signalOf(incoming.socket));
      const { stream, stream_options: streamOptions } = request.parameters;
      if (!stream) return context.json(await completion.whole());
      const headers = { 'x-request-id': context.res.headers.get('x-request-id')!, ...(isClosing() ? { connection: 'close' } : {}) };
      await writeEvents(outgoing, headers, completion.chunks(streamOptions?.include_usage ?? false), (error) => {
        if (httpErrorOf(error).status === 500) onError(error);
      });
      return framework.alreadySent;
    });
  }
  return app;
}
