// How the typed arrays of the prefix index grow: a longer copy, the old elements first, the rest zero or as asked.

export function enlarged<T extends Int32Array | Uint8Array | Float64Array>(array: T, length: number, fill = 0): T {
  const copy = new (array.constructor as new (elements: number) => T)(length);
  copy.set(array);
  if (fill !== 0) copy.fill(fill, array.length);
  return copy;
}
