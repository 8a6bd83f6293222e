/** The numbers in shared memory, which commands that run later may use. */
export function sharedFloats(numbers: number | ArrayLike<number>): Float32Array {
  const length = typeof numbers === 'number' ? numbers : numbers.length;
  const floats = new Float32Array(new SharedArrayBuffer(4 * length));
  if (typeof numbers !== 'number') floats.set(numbers);
  return floats;
}
