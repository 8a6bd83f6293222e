// The addresses of the server: OpenAI's API, and what those who operate it ask. Each request gets an id, which its answer carries; errors
// become JSON in one place.

import type { Context } from 'hono';

import { createError } from '../base/errors.js';
import { ApiKeys } from './api-keys.js';
import { readChatRequest, readCompletionRequest, type CompletionKind } from './api-request.js';
import type { Connections } from './connections.js';
import { writeEvents } from './event-stream.js';
import { httpErrorOf, requestIdOf } from './http-error.js';
import type { App, HttpFramework, NodeBindings } from './load-hono.js';
import { Origins } from './origins.js';
import { Readiness } from './readiness.js';
import { readJsonBody } from './request-body.js';
import type { ServerMetrics } from './server-metrics.js';
import type { ReadServerOptions } from './server-options.js';
import type { Submission } from './submission.js';
import { UnknownParameters } from './unknown-parameters.js';
import { WatchPage } from './watch-page.js';
import type { WatchState } from './watch-state.js';

export interface RoutesOptions {
  readonly framework: HttpFramework;
  readonly options: ReadServerOptions;
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

const kinds: Readonly<Record<string, { readonly kind: CompletionKind; readonly read: typeof readChatRequest }>> = {
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

export function routesOf({ framework, options, submission, connections, metrics, watched, isClosing, onError, created }: RoutesOptions): App {
  const app = new framework.Hono();
  const { modelName, maxBodyBytes } = options;
  const keys = new ApiKeys(options.apiKeys);
  const origins = new Origins(options);
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

  /** Says to a browser what a page may send. */
  const preflight = (context: RequestContext): Response => {
    context.header('access-control-allow-methods', 'GET, POST');
    context.header(
      'access-control-allow-headers',
      context.req.header('access-control-request-headers') ?? 'authorization, content-type',
    );
    context.header('access-control-max-age', '600');
    return context.body(null, 204);
  };

  app.use(async (context, next) => {
    const { incoming } = context.env;
    const { origin, authorization } = incoming.headers;
    const cors = origins.headersFor(origin);
    for (const [name, value] of Object.entries({
      'x-request-id': requestIdOf(incoming.headers['x-request-id']), ...cors
    })) context.header(name, value);
    if (isClosing()) context.header('connection', 'close');
    try {
      origins.check(incoming);
      if (context.req.method === 'OPTIONS' && 'access-control-allow-origin' in cors) context.res = preflight(context);
      else {
        if (!isOpen(context.req.path)) keys.clientOf(authorization);
        await next();
      }
    } catch (error) {
      context.res = refuse(context, error);
    }
    metrics?.countResponse(context.res.headers.has('x-hono-already-sent') ? 200 : context.res.status);
  });
  app.onError((error, context) => refuse(context, error));
  app.notFound((context) => {
    const { method, path } = context.req;
    const answered = path in kinds ? 'POST' : 'GET';
    const isKnown = method !== answered && app.routes.some((route) => route.path === path && route.method === answered);
    return refuse(context, isKnown
      ? createError('KV_REQUEST_INVALID', { reason: 'method', problem: `${method} is not answered at ${path}`, hint: `Use ${answered}.` })
      : createError('KV_REQUEST_INVALID', { reason: 'not-found', problem: `there is nothing at ${path.slice(0, 200)}`, hint: 'See docs/serve.md for the addresses.' }));
  });

  const readiness = new Readiness(options, isClosing);
  app.get('/health', async (context) => {
    const problem = await readiness.engineProblem();
    return problem === undefined ? context.json({ status: 'ok' }) : context.json({ status: 'failing', problem }, 503);
  });
  app.get('/ready', async (context) => {
    const problem = await readiness.problem();
    return problem === undefined ? context.json({ status: 'ready' }) : context.json(
      { status: 'not ready', problem }, 503,
    );
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
      const unknown = options.parameters === 'strict' ? undefined : new UnknownParameters();
      const request = read(await readJsonBody(incoming, maxBodyBytes), unknown);
      if (unknown?.header !== undefined) context.header('x-ignored-parameters', unknown.header);
      const client = keys.clientOf(incoming.headers.authorization);
      const signal = connections.signalOf(incoming.socket);
      const completion = await submission.submit(kind, request, { client, signal });
      const { stream, stream_options: streamOptions } = request.parameters;
      if (!stream) return context.json(await completion.whole());
      const headers = Object.fromEntries(context.res.headers);
      const onStreamError = (error: unknown): void => { if (httpErrorOf(error).status === 500) onError(error); };
      await writeEvents(
        outgoing, completion.chunks(streamOptions?.include_usage ?? false),
        { headers, commentMs: options.commentMs, onError: onStreamError, signal },
      );
      return framework.alreadySent;
    });
  }
  return app;
}
