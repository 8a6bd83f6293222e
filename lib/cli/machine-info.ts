// Collects what this machine and this build can do: versions, drivers and why one is missing, memory, mapping limit, pages and
// addresses. Opens each driver and closes it again; a failure is part of the answer, not an error.

import { readFileSync } from 'node:fs';
import os = require('node:os');

import { isKvError, type ErrorCode } from '../base/errors.js';
import { packageVersion } from '../base/package.js';
import { addonFile, native } from '../device/native.js';
import { Driver, type DriverInfo, type DriverMemory } from '../index.js';

/** Why the addon or a driver is missing: an error's code and message. */
export interface Absence {
  readonly isAvailable: false;
  readonly code: ErrorCode;
  readonly reason: string;
}

export type AddonInfo = Absence | { readonly isAvailable: true; readonly version: string; readonly buildTool: string; readonly file: string };

export type DriverReport = { readonly kind: 'cuda' | 'host'; readonly device: number } & (
  | Absence
  | (DriverInfo & {
    readonly isAvailable: true;
    readonly memory: DriverMemory;
    /** Bytes of the largest reservation possible just now, in whole TiB; 0 when below one. */
    readonly reservableBytes: number;
  })
);

export interface MachineInfo {
  readonly package: string;
  readonly node: string;
  readonly platform: string;
  readonly addon: AddonInfo;
  /** Every CUDA device, or one entry that says why there is none; then the host. */
  readonly drivers: readonly DriverReport[];
  readonly host: {
    readonly memoryBytes: number;
    readonly freeBytes: number;
    /** `vm.max_map_count`: kernel mappings of one process. Undefined where the system does not say. */
    readonly maxMapCount?: number | undefined;
  };
}

/** More devices than a machine has; ends the search if a driver never returns "no such device". */
const maxDevices = 64;

const TiB = 2 ** 40;

export function inspectMachine(): MachineInfo {
  const addon = inspectAddon();
  return {
    package: packageVersion,
    node: process.version,
    platform: `${process.platform}-${process.arch}`,
    addon,
    drivers: addon.isAvailable ? [...inspectCuda(), inspectDriver('host')] : [],
    host: { memoryBytes: os.totalmem(), freeBytes: os.freemem(), maxMapCount: readMaxMapCount() },
  };
}

function inspectAddon(): AddonInfo {
  try {
    const { version, buildTool } = native();
    return { isAvailable: true, version, buildTool, file: addonFile() };
  } catch (error) {
    return absence(error);
  }
}

function inspectCuda(): DriverReport[] {
  const reports: DriverReport[] = [];
  for (let device = 0; device < maxDevices; device += 1) {
    const report = inspectDriver('cuda', device);
    // Past the last device the driver is unavailable; at device 0 that is the report.
    const isPastTheLast = !report.isAvailable && report.code === 'KV_DRIVER_UNAVAILABLE';
    if (device === 0 || !isPastTheLast) reports.push(report);
    if (isPastTheLast) break;
  }
  return reports;
}

function inspectDriver(kind: 'cuda' | 'host', device = 0): DriverReport {
  try {
    using driver = Driver.open(kind, { device });
    return {
      ...driver.info, kind, device, isAvailable: true, memory: driver.memory(), reservableBytes: reservableBytes(driver),
    };
  } catch (error) {
    return { kind, device, ...absence(error) };
  }
}

/** Bisects up to the 128 TiB of a 47-bit address space, freeing each reservation at once; takes no memory. */
function reservableBytes(driver: Driver): number {
  let possible = 0;
  let refused = 129;
  while (refused - possible > 1) {
    const middle = Math.floor((possible + refused) / 2);
    if (canReserve(driver, middle * TiB)) possible = middle;
    else refused = middle;
  }
  return possible * TiB;
}

function canReserve(driver: Driver, bytes: number): boolean {
  try {
    driver.native.freeReservation(driver.native.reserve(bytes, driver.info.defaultPageBytes), bytes);
    return true;
  } catch (error) {
    if (!isKvError(error)) throw error;
    return false;
  }
}

function absence(error: unknown): Absence {
  if (!isKvError(error)) throw error;
  return { isAvailable: false, code: error.code, reason: error.message };
}

function readMaxMapCount(): number | undefined {
  try {
    return Number(readFileSync('/proc/sys/vm/max_map_count', 'utf8'));
  } catch {
    return undefined;
  }
}
