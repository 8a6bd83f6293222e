// ComputedRows: what an encoder answered, checked, and copied into memory of the cache's own, which the caller cannot change any more.

import { markAsUntransferable } from 'node:worker_threads';

import { createError } from '../base/errors.js';
import { formatNumber } from '../base/format.js';
import type { SideView } from '../layout/dtype-arrays.js';
import { arrayNameOf, arrayOver, bytesIfOf, sideDtypeBytes } from '../layout/dtype-arrays.js';
import type { EncoderItem } from './encoder-item.js';

export interface ComputedRows {
  readonly rows: SideView;
  readonly tokens: number;
}

/** A copy of an encoder's answer. Throws KV_INVALID_OPTION where it is not rows of the item's kind, or not as many as were announced. */
export function copyComputedRows(answer: unknown, { kind: { width, dtype, rowBytes }, tokens }: EncoderItem): ComputedRows {
  const bytes = bytesIfOf(dtype, answer);
  if (bytes === undefined || bytes.length === 0 || bytes.length % rowBytes !== 0) throw wrong(bytes);
  const count = bytes.length / rowBytes;
  if (tokens !== undefined && count !== tokens) throw wrong(bytes);
  const buffer = new ArrayBuffer(bytes.length);
  new Uint8Array(buffer).set(bytes);
  markAsUntransferable(buffer); // no user of a view can take the rows away from the cache
  return { rows: arrayOver(dtype, buffer, 0, count * width), tokens: count };

  function wrong(given: Uint8Array | undefined): Error {
    const announced = tokens === undefined ? 'whole rows' : `${formatNumber(tokens)} rows (\`tokens\`)`;
    return createError('KV_INVALID_OPTION', {
      reason: given === undefined ? 'type' : 'range', owner: 'EncoderCache.acquire', option: 'compute', isReturned: true,
      expected: `a function that returns a ${arrayNameOf(dtype)} of ${announced} of ${formatNumber(width)} (${dtype})`,
      received: given === undefined ? answer : `${formatNumber(given.length / sideDtypeBytes(dtype))} elements`,
    });
  }
}
