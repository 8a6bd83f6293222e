// Names content by its SHA-256, for `hash` of an encoder's item and of an item in a prompt. Equal bytes, equal hash, in every
// process. It hides nothing that can be guessed: tenants and salts keep items apart, not their hashes.

import { createHash } from 'node:crypto';
import { isAnyArrayBuffer } from 'node:util/types';

import { createError } from '../base/errors.js';
import { bytesOf } from '../base/typed-arrays.js';

/** SHA-256 of `content` as 64 hexadecimal digits: a `hash` for `EncoderCache` and for items of prompts. Throws KV_INVALID_OPTION. */
export function contentHash(content: ArrayBufferView | ArrayBuffer): string {
  const bytes = readBytes(content);
  if (bytes !== undefined) return createHash('sha256').update(bytes).digest('hex');
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', owner: 'contentHash', option: 'content', expected: 'a typed array, a DataView or an ArrayBuffer that is not detached',
    received: content,
  });
}

/** The bytes of a view or a buffer; undefined for anything else, and once it is detached. */
function readBytes(content: unknown): Uint8Array | undefined {
  if (!isAnyArrayBuffer(content)) return bytesOf(content);
  try {
    return new Uint8Array(content);
  } catch {
    return undefined;
  }
}
