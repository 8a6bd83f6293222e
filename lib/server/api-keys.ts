// ApiKeys: maps the API key of a request to its tenant and to the highest urgency of its requests. Keys are compared by
// their digests, in the same time whatever is wrong. Without any key every request passes, and clients name their
// tenants themselves.

import { createHash, timingSafeEqual } from 'node:crypto';

import { createError } from '../base/errors.js';
import { integer, optional, readOptions, string, type Field } from '../base/options.js';

/** A key, and who has it. */
export interface ApiKey {
  /** Of visible ASCII characters: others fit no header. */
  readonly key: string;
  /**
   * Whose requests share cached text, beside the `user` that they name. Keys may have one tenant. Default: one for each
   * key.
   */
  readonly tenant?: string | undefined;
  /** The most urgent that its requests can be, 0 … 255. Default: the server's `maxUrgency`. */
  readonly maxUrgency?: number | undefined;
}

/** Who a request comes from. */
export interface ApiClient {
  /** Undefined: the server asks for no key. */
  readonly tenant: string | undefined;
  /** Undefined: as the server says. */
  readonly maxUrgency: number | undefined;
}

const anyone: ApiClient = { tenant: undefined, maxUrgency: undefined };

const keySpec = { key: string, tenant: optional(string), maxUrgency: optional(integer({ max: 255 })) };

/** A key, or an object with it. The error does not have it. */
export const apiKeyField: Field<ApiKey> = (value, place) => {
  const read = typeof value === 'string' ? { key: value } : readOptions(place.owner, value, keySpec, place.option);
  if (/^[\x21-\x7e]+$/.test(read.key)) return read;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', ...place, expected: 'a key of visible ASCII characters without spaces, which a header can carry',
    received: `one of ${read.key.length} characters`,
  });
};

export class ApiKeys {
  readonly #clients: readonly { readonly digest: Buffer; readonly client: ApiClient }[];

  constructor(keys: readonly ApiKey[]) {
    this.#clients = keys.map(({ key, tenant, maxUrgency }) => {
      const digest = digestOf(key);
      return {
        digest, client: { tenant: tenant ?? `key-${digestOf(`tenant of ${key}`).toString('hex', 0, 16)}`, maxUrgency }
      };
    });
  }

  /** Throws KV_REQUEST_INVALID where there are keys, and the request has none of them. */
  clientOf(authorization: string | undefined): ApiClient {
    if (this.#clients.length === 0) return anyone;
    const key = /^Bearer +(\S+)\s*$/i.exec(authorization ?? '')?.[1];
    const given = digestOf(key ?? '');
    let found: ApiClient | undefined;
    for (const { digest, client } of this.#clients) if (timingSafeEqual(digest, given)) found ??= client;
    if (found !== undefined && key !== undefined) return found;
    throw createError('KV_REQUEST_INVALID', {
      reason: 'unauthorized', problem: key === undefined ? 'it has no API key' : 'its API key is not known', hint: 'Send `Authorization: Bearer KEY`.',
    });
  }
}

/**
 * The cache's name for the tenant of a client and the user that a request names: no user of one client is one of
 * another.
 */
export function tenantOf({ tenant }: ApiClient, user: string | undefined): string | undefined {
  if (tenant === undefined) return user;
  return JSON.stringify(user === undefined ? [tenant] : [tenant, user]);
}

function digestOf(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}
