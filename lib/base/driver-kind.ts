// The kinds of drivers: where memory lies and kernels run.

/**
 * What a driver is. `cuda`: a GPU. `host`: the CPU's own memory. `mock`: a simulated CUDA device, for tests, which only
 * MockDevice makes.
 */
export type DriverKind = 'cuda' | 'host' | 'mock';

/** All kinds. */
export const driverKinds: readonly DriverKind[] = ['cuda', 'host', 'mock'];
