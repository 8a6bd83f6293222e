// DeviceRows: rows that lie in the memory of the cache's driver, as callers name them, and how that is read.

import { createError } from '../base/errors.js';
import {
  checkInteger, isAddress, isOptionsObject, readOptions, streamField, withDefault, type Field,
} from '../base/options.js';
import { DeviceMemory } from '../device/device-memory.js';
import type { Driver } from '../device/driver.js';

/** Rows of a side tensor in the memory of the cache's driver, packed as an array of them would be. */
export interface DeviceRows {
  /**
   * Where the first row begins: memory of the cache's driver, or an address of it, which must stay valid until the copy
   * is over (on host an address in memory that this package has mapped).
   */
  readonly memory: DeviceMemory | bigint;
  /** Byte of `memory` where the first row begins, at least 0. Default 0. */
  readonly atByte?: number | undefined;
  /**
   * The stream (a CUstream) that computes the rows. They are copied behind all that was queued on it, and what is
   * queued on it later runs behind the copy. Default: the default stream. On host all is done when a call returns.
   */
  readonly stream?: bigint | undefined;
}

/** A packed stretch of a driver's memory. */
export interface DeviceBytes {
  readonly driver: Driver;
  readonly address: bigint;
  readonly bytes: number;
}

export interface ReadDeviceRows {
  readonly memory: DeviceMemory | undefined;
  /** Of the first row. */
  readonly address: bigint;
  readonly atByte: number;
  readonly stream: bigint;
}

const memoryField: Field<DeviceMemory | bigint> = (value, place) => {
  if (DeviceMemory.isInstance(value) || (isAddress(value) && value > 0n)) return value;
  throw createError('KV_INVALID_OPTION', {
    reason: 'type', ...place, expected: 'a DeviceMemory or an address (a bigint above 0)', received: value,
  });
};

const atByteField: Field<number> = (value, { owner, option }) => {
  checkInteger(owner, option, value as number);
  return value as number;
};

const spec = { memory: memoryField, atByte: withDefault(atByteField, 0), stream: withDefault(streamField, 0n) };

/**
 * What a caller gave for rows, if it names memory of a device: a DeviceMemory, an address, or DeviceRows; undefined for
 * anything else. Throws KV_INVALID_OPTION, KV_UNKNOWN_OPTION.
 */
export function readDeviceRows(owner: string, option: string, value: unknown): ReadDeviceRows | undefined {
  const isMemory = typeof value === 'bigint' || DeviceMemory.isInstance(value);
  if (!isMemory && !(isOptionsObject(value) && !ArrayBuffer.isView(value) && 'memory' in value)) return undefined;
  const { memory, atByte, stream } = isMemory ? { memory: memoryField(value, { owner, option }), atByte: 0, stream: 0n }
    : readOptions(owner, value, spec, option);
  const isAddressOnly = typeof memory === 'bigint';
  return {
    memory: isAddressOnly ? undefined : memory, address: (isAddressOnly ? memory : memory.address) + BigInt(atByte),
    atByte, stream,
  };
}

/**
 * So many bytes of them. Throws KV_INVALID_OPTION where there are not so many, or it is another driver's memory, and
 * KV_CLOSED.
 */
export function deviceBytes(
  owner: string, option: string, { memory, address, atByte }: ReadDeviceRows, driver: Driver, bytes: number,
): DeviceBytes {
  if (memory !== undefined) {
    if (memory.driver !== driver) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option, expected: 'memory of the driver of the cache', received: memory,
      });
    }
    if (memory.isClosed) throw createError('KV_CLOSED', { operation: 'read', owner: 'DeviceMemory' });
    if (atByte + bytes > memory.bytes) {
      throw createError('KV_INVALID_OPTION', {
        reason: 'range', owner, option, expected: `memory of at least ${atByte + bytes} bytes`, received: memory.bytes,
        hint: 'It holds the rows of all tokens of the batch, packed.',
      });
    }
  }
  return { driver, address, bytes };
}
