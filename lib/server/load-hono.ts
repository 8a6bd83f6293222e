// Loads the HTTP framework, which is optional: hono routes requests, @hono/node-server makes them of Node's. Neither has a dependency.

import { createRequire } from 'node:module';
import type { IncomingMessage, ServerResponse } from 'node:http';

import type { Hono as HonoClass } from 'hono';

import { createError } from '../base/errors.js';

/** What a handler finds in `context.env`. */
export interface NodeBindings {
  readonly incoming: IncomingMessage;
  readonly outgoing: ServerResponse;
}

/** An application of hono. */
export type App = HonoClass<{ readonly Bindings: NodeBindings }>;

/** What is used of the two packages; the second's types need those of a browser. */
export interface HttpFramework {
  readonly Hono: new () => App;
  /** Makes a listener for `http.createServer`. */
  readonly listenerOf: (
    fetch: App['fetch'],
    options: { readonly overrideGlobalObjects: boolean; readonly errorHandler: (error: unknown) => Response },
  ) => (incoming: IncomingMessage, outgoing: ServerResponse) => Promise<void>;
  /** A handler's answer where it has written one to `outgoing` itself. */
  readonly alreadySent: Response;
}

const packages = ['hono', '@hono/node-server'] as const;

/** Throws KV_DEPENDENCY_MISSING, which names both. */
export function loadHono(load: (name: string) => unknown = createRequire(__filename)): HttpFramework {
  try {
    const { Hono } = load(packages[0]) as Pick<HttpFramework, 'Hono'>;
    const { getRequestListener: listenerOf } = load(packages[1]) as { readonly getRequestListener: HttpFramework['listenerOf'] };
    const { RESPONSE_ALREADY_SENT: alreadySent } = load(`${packages[1]}/utils/response`) as { readonly RESPONSE_ALREADY_SENT: Response };
    return { Hono, listenerOf, alreadySent };
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException | undefined)?.code !== 'MODULE_NOT_FOUND') throw cause;
    throw createError('KV_DEPENDENCY_MISSING', { dependency: packages.join(' '), purpose: 'serving over HTTP' }, { cause });
  }
}
