// ApiKeys: whether a request has one of the keys. Keys are compared by their digests, in the same time whatever is wrong.

import { createHash, timingSafeEqual } from 'node:crypto';

import { createError } from '../base/errors.js';

export class ApiKeys {
  readonly #digests: readonly Buffer[];

  /** Without any key every request passes. */
  constructor(keys: readonly string[]) {
    this.#digests = keys.map(digestOf);
  }

  /** Throws KV_REQUEST_INVALID. */
  check(authorization: string | undefined): void {
    if (this.#digests.length === 0) return;
    const key = /^Bearer +(\S+)\s*$/i.exec(authorization ?? '')?.[1];
    const given = digestOf(key ?? '');
    let isKnown = false;
    for (const digest of this.#digests) isKnown = timingSafeEqual(digest, given) || isKnown;
    if (isKnown && key !== undefined) return;
    throw createError('KV_REQUEST_INVALID', {
      reason: 'unauthorized', problem: key === undefined ? 'it has no API key' : 'its API key is not known', hint: 'Send `Authorization: Bearer KEY`.',
    });
  }
}

function digestOf(key: string): Buffer {
  return createHash('sha256').update(key).digest();
}
