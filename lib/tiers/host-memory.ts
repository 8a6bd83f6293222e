// HostMemory: memory of the process for payloads of blocks. A whole block takes a piece made to its measure, the end of
// a text half of one, or half of that: pieces are split and joined in pairs (buddies; Knuth, The Art of Computer
// Programming 1, 2.5). Taken in large chunks when first needed, and touched by the system only where it is written.
//
// It lies in SharedArrayBuffers, which cannot be detached while another thread copies into them.

import { native } from '../device/native.js';

/** About the bytes of a chunk. */
const chunkBytes = 64 * 1024 * 1024;
/** Chunks that there is room for, whatever the bound, unless a block is larger. */
const leastChunks = 16;
/** Chunks begin at multiples of it, as O_DIRECT wants memory. */
const pageBytes = 4096;

/** How memory is divided. */
export interface PieceRules {
  /** About the bytes of the smallest piece. */
  readonly leastBytes: number;
  /** Pieces begin at multiples of it. */
  readonly alignment: number;
  /**
   * Whether it comes in huge pages where it can: a disk that reads into them around the page cache has fewer pieces to
   * find.
   */
  readonly isHuge: boolean;
}

/** Little waste, and pieces that begin with a line of the CPU's cache. */
const closePieces: PieceRules = { leastBytes: 4096, alignment: 64, isHuge: false };
/** Pieces that a file can be read into around the system's page cache. */
export const pagePieces: PieceRules = { leastBytes: 65_536, alignment: pageBytes, isHuge: true };

/** Of a buffer of its own, for a payload that is larger than a whole block. */
const ownOrder = -1;

interface Chunk {
  readonly buffer: SharedArrayBuffer;
  /** Where pieces begin. */
  readonly base: number;
  /** By order, the free pieces of `unit` << order bytes, by their starts. */
  readonly free: Set<number>[];
}

interface Piece {
  readonly chunk: Chunk;
  readonly start: number;
  readonly order: number;
}

export class HostMemory {
  readonly #limitBytes: number;
  readonly #chunks: Chunk[] = [];
  readonly #pieces = new WeakMap<Uint8Array, Piece>();
  /** Bytes of the smallest piece, and the order of those of a whole block. */
  readonly #unit: number;
  readonly #wholeOrder: number;
  readonly #isHuge: boolean;
  #chunkTotalBytes = 0;
  /** Bytes of the pieces that are taken. Read only. */
  usedBytes = 0;

  /** @param wholeBytes Bytes of a whole block's payload. */
  constructor(limitBytes: number, wholeBytes: number, { leastBytes, alignment, isHuge }: PieceRules = closePieces) {
    this.#limitBytes = limitBytes;
    this.#isHuge = isHuge;
    this.#wholeOrder = Math.max(0, Math.floor(Math.log2(wholeBytes / leastBytes)));
    this.#unit = Math.ceil(wholeBytes / 2 ** this.#wholeOrder / alignment) * alignment;
  }

  /** Bytes that a payload of `bytes` takes. */
  sizeOf(bytes: number): number {
    const order = this.#orderOf(bytes);
    return order === ownOrder ? bytes : this.#unit * 2 ** order;
  }

  /**
   * `bytes` bytes of anything; undefined: there is no piece of that size, and no room for another chunk, or the system
   * refuses it.
   */
  take(bytes: number): Uint8Array | undefined {
    const order = this.#orderOf(bytes);
    const piece = order === ownOrder ? this.#takeOwn(bytes) : this.#takePiece(order);
    if (piece === undefined) return undefined;
    const payload = new Uint8Array(piece.chunk.buffer, piece.chunk.base + piece.start, bytes);
    this.#pieces.set(payload, piece);
    this.usedBytes += this.sizeOf(bytes);
    return payload;
  }

  #takePiece(order: number): Piece | undefined {
    return this.#takeFrom(this.#chunks, order) ?? this.#takeFrom(this.#grow(), order);
  }

  #takeOwn(bytes: number): Piece | undefined {
    const memory = this.#chunkTotalBytes + bytes > this.#limitBytes ? undefined : bufferOf(bytes, this.#isHuge);
    if (memory === undefined) return undefined;
    this.#chunkTotalBytes += bytes;
    return { chunk: { ...memory, free: [] }, start: 0, order: ownOrder };
  }

  /** Gives back what `take` returned, the same array. */
  give(payload: Uint8Array): void {
    const piece = this.#pieces.get(payload);
    if (piece === undefined) return;
    this.#pieces.delete(payload);
    this.usedBytes -= this.sizeOf(payload.length);
    if (piece.order === ownOrder) {
      this.#chunkTotalBytes -= payload.length;
      return;
    }
    const { free } = piece.chunk;
    let { start, order } = piece;
    for (; order < this.#wholeOrder; order += 1) {
      const size = this.#unit * 2 ** order;
      const buddy = (start / size) % 2 === 0 ? start + size : start - size;
      if (!free[order]!.delete(buddy)) break;
      start = Math.min(start, buddy);
    }
    free[order]!.add(start);
  }

  #takeFrom(chunks: readonly Chunk[], order: number): Piece | undefined {
    for (const chunk of chunks) {
      for (let found = order; found < chunk.free.length; found += 1) {
        const [start] = chunk.free[found]!;
        if (start === undefined) continue;
        chunk.free[found]!.delete(start);
        for (let split = found - 1; split >= order; split -= 1) chunk.free[split]!.add(start + this.#unit * 2 ** split);
        return { chunk, start, order };
      }
    }
    return undefined;
  }

  #grow(): readonly Chunk[] {
    const wholeBytes = this.#unit * 2 ** this.#wholeOrder;
    const most = Math.floor((this.#limitBytes - this.#chunkTotalBytes) / wholeBytes);
    const pieces =
      Math.min(most, Math.max(1, Math.floor(Math.min(chunkBytes, this.#limitBytes / leastChunks) / wholeBytes)));
    const memory = pieces < 1 ? undefined : bufferOf(pieces * wholeBytes, this.#isHuge);
    if (memory === undefined) return [];
    const free = Array.from({ length: this.#wholeOrder + 1 }, () => new Set<number>());
    for (let piece = 0; piece < pieces; piece += 1) free[this.#wholeOrder]!.add(piece * wholeBytes);
    const chunk = { ...memory, free };
    this.#chunkTotalBytes += pieces * wholeBytes;
    this.#chunks.push(chunk);
    return [chunk];
  }

  #orderOf(bytes: number): number {
    const order = Math.max(0, Math.ceil(Math.log2(bytes / this.#unit)));
    return order > this.#wholeOrder ? ownOrder : order;
  }
}

/** Memory of so many bytes from `base` on, which is a page's start; undefined: the system refuses it. */
function bufferOf(bytes: number, isHuge: boolean): Omit<Chunk, 'free'> | undefined {
  let buffer: SharedArrayBuffer;
  try {
    buffer = new SharedArrayBuffer(bytes + pageBytes);
  } catch { // a RangeError, as all that can be wrong with it
    return undefined;
  }
  const memory = new Uint8Array(buffer);
  if (isHuge) native().preferHugePages(memory);
  const inPage = Number(native().addressOf(memory) % BigInt(pageBytes));
  return { buffer, base: (pageBytes - inPage) % pageBytes };
}
