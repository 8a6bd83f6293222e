// What a simulated device records, as plain data: calls, misuses and leaks; and the text of a leak report. Pure.

import { formatAddress, formatBytes, formatCount } from '../base/format.js';

/** The kinds of calls: the entry points of the CUDA driver that this package uses. */
export const mockCalls = [
  'cuInit', 'cuDriverGetVersion', 'cuGetErrorName', 'cuDeviceGetCount', 'cuDeviceGet', 'cuDeviceGetName',
  'cuDeviceGetAttribute', 'cuDeviceTotalMem', 'cuDevicePrimaryCtxRetain', 'cuDevicePrimaryCtxRelease',
  'cuCtxPushCurrent',
  'cuCtxPopCurrent', 'cuCtxGetCurrent', 'cuCtxSynchronize', 'cuThreadExchangeStreamCaptureMode', 'cuMemGetInfo',
  'cuMemGetAllocationGranularity', 'cuMemAddressReserve', 'cuMemAddressFree', 'cuMemCreate', 'cuMemRelease',
  'cuMemRetainAllocationHandle', 'cuMemMap', 'cuMemUnmap', 'cuMemSetAccess', 'cuMemGetAccess', 'cuMemcpyHtoD',
  'cuMemcpyHtoDAsync', 'cuMemcpyDtoH', 'cuMemcpyDtoHAsync', 'cuMemcpyDtoDAsync', 'cuMemsetD8Async', 'cuMemHostRegister',
  'cuMemHostUnregister', 'cuMemHostGetDevicePointer', 'cuStreamCreate', 'cuStreamDestroy',
  'cuStreamSynchronize', 'cuStreamQuery', 'cuStreamWaitEvent', 'cuEventCreate', 'cuEventRecord', 'cuEventQuery',
  'cuEventSynchronize', 'cuEventDestroy',
  'cuStreamBeginCapture', 'cuStreamEndCapture', 'cuGraphInstantiateWithFlags', 'cuGraphLaunch', 'cuGraphExecDestroy',
  'cuGraphDestroy',
  'cuModuleLoadDataEx', 'cuModuleUnload', 'cuModuleGetFunction', 'cuFuncSetAttribute', 'cuLaunchKernel',
] as const;

/** Name of a call of the CUDA driver. */
export type MockCall = (typeof mockCalls)[number];

/** The arguments of a call; those that do not apply to it are 0. */
export interface MockArguments {
  /** The range's start; for a copy, its destination. */
  readonly address: bigint;
  /** For a copy, its source. */
  readonly from: bigint;
  /** Bytes of the range. */
  readonly bytes: number;
  /** Page, stream, event or context. */
  readonly handle: bigint;
  /** The stream where the call queued work. */
  readonly stream: bigint;
}

/** One call to the device. */
export interface MockJournalEntry extends MockArguments {
  /** 1 for the device's first call. */
  readonly step: number;
  /** Its name. */
  readonly call: MockCall;
  /** A CUresult: 0 is success. */
  readonly result: number;
  /** `CUDA_ERROR_…`; empty for a result CUDA does not know. */
  readonly resultName: string;
}

/** A call that broke a rule of the CUDA driver. */
export interface MockMisuse extends MockArguments {
  /** Number of the call in the journal. */
  readonly step: number;
  /** Its name. */
  readonly call: MockCall;
  /** The rule that the call broke. */
  readonly rule: string;
  /** Number of the call that last unmapped, freed or released the same object; 0 when the journal has none. */
  readonly earlierStep: number;
}

/** What is left on a device, by kind. */
export interface MockLeftovers {
  /** Address ranges. */
  readonly reservations: number;
  /** Mapped pages. */
  readonly mappings: number;
  /** Physical pages. */
  readonly pages: number;
  /** Streams that were not destroyed; every open driver has one. */
  readonly streams: number;
  /** Events that were not destroyed. */
  readonly events: number;
  /** Ranges of the CPU's memory that are registered. */
  readonly registrations: number;
}

/** What has not been given back. All 0 when there are no leaks. */
export interface MockLeaks extends MockLeftovers {
  /** Bytes of pages that are live, or dead but still mapped. */
  readonly pageBytes: number;
  /** Modules of kernels: one for each open driver over which kernels were opened. */
  readonly modules: number;
  /** Graphs, captured or made ready to launch, that were not destroyed. */
  readonly graphs: number;
  /** References to the primary context: one for each open driver. */
  readonly retainedContexts: number;
  /** Contexts made current on a thread and not popped. */
  readonly pushedContexts: number;
  /** What drivers still had when they were closed, and gave back then. */
  readonly leftByDrivers: MockLeftovers;
  /** The device was lost: nothing can be given back, and the counts above mean nothing. */
  readonly isLost: boolean;
}

/** Describes each leak and each broken rule in a line. Empty when there are none. */
export function describeLeaks(leaks: MockLeaks, misuses: readonly MockMisuse[]): readonly string[] {
  const lines = misuses.map(describeMisuse);
  if (leaks.isLost) return lines;
  const left = [
    ...describeLeftovers(leaks),
    ...(leaks.pageBytes > 0 ? [`${formatBytes(leaks.pageBytes)} of memory`] : []),
    ...count('module', leaks.modules),
    ...count('graph', leaks.graphs),
    ...count('retained context', leaks.retainedContexts),
    ...count('pushed context', leaks.pushedContexts),
  ];
  if (left.length > 0) lines.push(`not given back: ${left.join(', ')}`);
  const late = describeLeftovers(leaks.leftByDrivers);
  if (late.length > 0) lines.push(`given back only when the driver was closed: ${late.join(', ')}`);
  return lines;
}

function describeMisuse({ step, call, rule, address, bytes, handle, earlierStep }: MockMisuse): string {
  const about = [
    ...(address > 0n ? [`${formatBytes(bytes)} at ${formatAddress(address)}`] : []),
    ...(handle > 0n ? [`handle ${formatAddress(handle)}`] : []),
    ...(earlierStep > 0 ? [`it ended at step ${earlierStep}`] : []),
  ];
  return `step ${step}, ${call}: ${rule}${about.length > 0 ? ` (${about.join(', ')})` : ''}`;
}

function describeLeftovers(left: MockLeftovers): string[] {
  return [
    ...count('reservation', left.reservations), ...count('mapping', left.mappings), ...count('page', left.pages),
    ...count('stream', left.streams), ...count('event', left.events), ...count('registration', left.registrations),
  ];
}

function count(noun: string, value: number): string[] {
  return value === 0 ? [] : [formatCount(noun, value)];
}
