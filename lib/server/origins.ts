// Origins: which names the server answers to on this machine's own addresses, and which pages may use it. A page of
// another site whose name leads to 127.0.0.1 (DNS rebinding) is refused by its Host, a page that only sends by its
// Origin. CORS headers are for pages that the operator names.

import type { IncomingMessage } from 'node:http';
import { isIP } from 'node:net';
import { hostname } from 'node:os';

import { createError } from '../base/errors.js';

export interface OriginsOptions {
  /** Names besides those of this machine; '*': any. */
  readonly allowedHosts: readonly string[];
  /** Pages that may read answers, `https://app.example`; '*': any. */
  readonly corsOrigins: readonly string[];
}

export class Origins {
  readonly #hosts: ReadonlySet<string>;
  readonly #origins: ReadonlySet<string>;

  constructor({ allowedHosts, corsOrigins }: OriginsOptions) {
    this.#hosts = new Set([hostname(), ...allowedHosts].map((host) => host.toLowerCase()));
    this.#origins = new Set(corsOrigins.map((origin) => origin.replace(/\/$/, '').toLowerCase()));
  }

  /**
   * Throws KV_REQUEST_INVALID where a request came to a loopback address, and by its Host or Origin for another site.
   */
  check({ socket, headers: { host, origin } }: IncomingMessage): void {
    if (!isLoopback(socket.localAddress ?? '')) return;
    const name = nameOf(host ?? '');
    if (host !== undefined && isIP(name) === 0 && !this.#isOwn(name)) {
      throw createError('KV_REQUEST_INVALID', {
        reason: 'forbidden', problem: `${JSON.stringify(name.slice(0, 100))} is no name of this machine`,
        hint: 'Ask for localhost, or start the server with `--allowed-host NAME` where a proxy passes its own name on.',
      });
    }
    if (origin === undefined || this.#allows(origin) || this.#isOwnPage(origin, host)) return;
    throw createError('KV_REQUEST_INVALID', {
      reason: 'forbidden', problem: `pages of ${JSON.stringify(origin.slice(0, 100))} may not use it`,
      hint: 'Start the server with `--cors ORIGIN` to let them.',
    });
  }

  /** Headers of answers to a page; none where it may not read them. */
  headersFor(origin: string | undefined): Readonly<Record<string, string>> {
    if (origin === undefined || !this.#allows(origin)) return {};
    return {
      'access-control-allow-origin': this.#origins.has('*') ? '*' : origin, vary: 'origin',
      'access-control-expose-headers': 'x-request-id, x-ignored-parameters, retry-after',
    };
  }

  #allows(origin: string): boolean {
    return this.#origins.has('*') || this.#origins.has(origin.toLowerCase());
  }

  #isOwn(name: string): boolean {
    return name === 'localhost' || name.endsWith('.localhost') || this.#hosts.has('*') || this.#hosts.has(name);
  }

  /** Whether a page came from this server, or from another on this machine. */
  #isOwnPage(origin: string, host: string | undefined): boolean {
    const authority = /^https?:\/\/([^/]+)$/i.exec(origin)?.[1]?.toLowerCase();
    if (authority === undefined) return false;
    const name = nameOf(authority);
    return authority === host?.toLowerCase() || this.#isOwn(name) || isLoopback(name);
  }
}

/** The name of `name:port`, without brackets. */
function nameOf(authority: string): string {
  return authority.toLowerCase().replace(/:\d*$/, '').replace(/^\[(.*)\]$/, '$1').replace(/\.$/, '');
}

function isLoopback(address: string): boolean {
  return address === '::1' || (isIP(address.replace(/^::ffff:/, '')) === 4 && /^(::ffff:)?127\./.test(address));
}
