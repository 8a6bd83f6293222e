// SideRequest: which side tensors a request carries, and which it hands over with its result: how the options are read,
// and whether so many tokens fit the cache's budget for side tensors.

import { createError } from '../base/errors.js';
import { formatList } from '../base/format.js';
import { arrayOf, string, type Field } from '../base/options.js';
import type { KvCache } from '../kv-cache/kv-cache.js';
import type { SideTensorInfo } from '../side/side-tensors.js';

/** What a request says of side tensors. */
export interface SideRequest {
  /** Tensors that it carries; undefined: all of the cache. */
  readonly needs: readonly string[] | undefined;
  /** Tensors that it hands over; true: all that it carries; false: none. */
  readonly handOver: boolean | readonly string[];
}

const names = arrayOf(string);

export const handOverField: Field<boolean | readonly string[]> = (value, place) => {
  if (value === undefined) return false;
  return typeof value === 'boolean' ? value : names(value, place);
};

/** Throws KV_INVALID_OPTION unless the cache has what is carried, and the request carries what is handed over. */
export function checkSideNames(
  owner: string, { needs, handOver }: SideRequest, tensors: readonly SideTensorInfo[], prefix: string,
): void {
  const known = tensors.map(({ name }) => name);
  needs?.forEach((name, index) => {
    if (!known.includes(name)) throw noSuchTensor(owner, `${prefix}needs[${index}]`, known, name, 'of the cache');
  });
  const carried = needs ?? known;
  const handed = handOver === true ? carried : handOver === false ? [] : handOver;
  handed.forEach((name, index) => {
    if (!carried.includes(name)) {
      throw noSuchTensor(owner, `${prefix}handOver[${index}]`, carried, name, 'that it carries (`needs`)');
    }
  });
  if (handOver === false || handed.length > 0) return;
  throw createError('KV_INVALID_OPTION', {
    reason: 'range', owner, option: `${prefix}handOver`, received: handOver,
    expected: carried.length === 0 ? 'left out: the request carries no side tensors' : 'at least one name, or left out',
  });
}

/**
 * Throws KV_OUT_OF_PAGES when the side tensors that it carries would not fit a budget of `budgetBytes` with so many
 * tokens.
 */
export function checkSideFits({ needs }: SideRequest, tokens: number, cache: KvCache, budgetBytes: number): void {
  const { sideTensors } = cache;
  if (sideTensors.length === 0) return;
  const carried = sideTensors.filter(({ name }) => needs === undefined || needs.includes(name));
  const pagesOf = ({ tokenBytes, pageBytes }: SideTensorInfo): number => Math.ceil(tokens * tokenBytes / pageBytes);
  const bytes = carried.reduce((sum, tensor) => sum + pagesOf(tensor) * tensor.pageBytes, 0);
  if (bytes <= budgetBytes) return;
  const widest = carried.reduce((most, tensor) => (tensor.tokenBytes > most.tokenBytes ? tensor : most));
  const { name: sideTensor, pageBytes } = widest;
  const needPages = pagesOf(widest);
  throw createError('KV_OUT_OF_PAGES', {
    needRows: needPages, haveRows: 0, needPages,
    havePages: Math.max(0, needPages - Math.ceil((bytes - budgetBytes) / pageBytes)),
    budgetBytes, pageBytes, slots: [], pagesPerRow: 1, sideTensor,
  });
}

function noSuchTensor(owner: string, option: string, known: readonly string[], received: string, what: string): Error {
  const expected = known.length === 0 ? 'left out: there is no such side tensor'
    : `the name of a side tensor ${what}: ${formatList(known.map((name) => `'${name}'`))}`;
  return createError('KV_INVALID_OPTION', { reason: 'range', owner, option, expected, received });
}
