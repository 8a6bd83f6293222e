// The options of a cache's side tensors: name, width, dtype and place of each, and how they are read.

import { createError } from '../base/errors.js';
import {
  integer, isOptionsObject, oneOf, optional, readOptions, withDefault, type Field,
} from '../base/options.js';
import { sideDtypes, type SideDtype } from '../base/dtypes.js';

/** What one side tensor keeps per token. */
export interface SideTensorShape {
  /** Elements of a token's row, 1 … 1,048,576. */
  readonly width: number;
  /** Type of the elements: as of K and V, or `int32` for codes and other whole numbers. */
  readonly dtype: SideDtype;
  /**
   * Where it is kept. `host`: in the CPU's memory, whatever the cache's driver, for a next stage that reads it there.
   * `device`: in the memory of the cache's driver, for one that runs on it. Default `host`.
   */
  readonly place?: 'host' | 'device' | undefined;
  /**
   * Bytes of a page, a multiple of the driver's granularity: what can be shared without a copy. Default: on host 256
   * KiB for rows of 1 KiB or more, 64 KiB for shorter ones; on another driver its own page size.
   */
  readonly pageBytes?: number | undefined;
}

/** Side tensors by name; at most 31. A name is any string that is not empty. */
export type SideTensorShapes = Readonly<Record<string, SideTensorShape>>;

export interface ReadSideTensor {
  readonly name: string;
  readonly width: number;
  readonly dtype: SideDtype;
  readonly place: 'host' | 'device';
  readonly pageBytes: number | undefined;
}

/** A set of them is a number's bits. */
const mostTensors = 31;

const shapeSpec = {
  width: integer({ min: 1, max: 2 ** 20 }), dtype: oneOf(sideDtypes),
  place: withDefault(oneOf(['host', 'device']), 'host'),
  pageBytes: optional(integer({ min: 1 })),
};

/** Throws KV_INVALID_OPTION and KV_UNKNOWN_OPTION. */
export const sideTensorsField: Field<readonly ReadSideTensor[]> = (value, place) => {
  if (value === undefined) return [];
  const refuse = (reason: 'type' | 'range', expected: string, received: unknown): Error =>
    createError('KV_INVALID_OPTION', { reason, ...place, expected, received });
  if (!isOptionsObject(value)) throw refuse('type', 'an object with one shape for each name', value);
  const names = Object.keys(value);
  if (names.length > mostTensors) {
    throw refuse('range', `an object of at most ${mostTensors} names`, `one of ${names.length}`);
  }
  return names.map((name) => {
    if (name === '') throw refuse('range', 'an object whose names are not empty', "''");
    const shape = (value as Readonly<Record<string, unknown>>)[name];
    return { name, ...readOptions(place.owner, shape, shapeSpec, `${place.option}.${name}`) };
  });
};
