// The raw calls of a public Driver, for tests of what is below it.

import type { Driver } from 'virtual-kv';

import type { NativeDriver } from '#internal/device/native.js';

export function nativeOf(driver: Driver): NativeDriver {
  return (driver as unknown as { readonly native: NativeDriver }).native;
}
