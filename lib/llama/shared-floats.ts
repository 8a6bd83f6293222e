/** New floats, all 0, which commands may use that run later: shared memory can be neither detached nor shrunk under them. */
export function sharedFloats(length: number): Float32Array {
  return new Float32Array(new SharedArrayBuffer(Float32Array.BYTES_PER_ELEMENT * length));
}
