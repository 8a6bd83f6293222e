// Head pairs: the two elements of a head that are rotated together lie next to each other in a Llama's GGUF file, and in the two halves of the head
// everywhere else. What comes from such rows is put in halves where it is rotated; rows themselves only where that cannot be.

/** The same rows of whole heads, or elements of a vector, with the first elements of each head's pairs before the second ones. */
export function inHalves(rows: Uint8Array, rowCount: number, headDim: number): SharedArrayBuffer {
  const rowBytes = rows.length / rowCount;
  const memory = new SharedArrayBuffer(rows.length); // commands read it that run later: it must not be detached
  const ordered = new Uint8Array(memory);
  for (let row = 0; row < rowCount; row += 1) {
    const within = row % headDim;
    const from = row - within + (within < headDim / 2 ? 2 * within : 2 * within - headDim + 1);
    ordered.set(rows.subarray(from * rowBytes, (from + 1) * rowBytes), row * rowBytes);
  }
  return memory;
}
