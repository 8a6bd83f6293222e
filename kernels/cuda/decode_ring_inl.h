// DecodeRing: a block's keys and values on their way from memory, in shared memory.
//
// Three parts, each for the keys or the values of one tile of tokens: while one is used, the next two are copied. A
// thread copies the elements that it uses itself, to slots that no other thread uses, so it waits for its own copies
// only. Two parts of a block for 4 or 8 heads of 128 16-bit floats are 32 KiB, and three such blocks run on a
// multiprocessor: 96 KiB are in flight, where an H200 needs about 35 (4.8 TB/s for 900 ns, over 132 of them); 48 KiB
// are the fewest of all kernels. Loads into registers, the obvious way, were placed by the compiler right before each
// use: five waits for memory in a tile.
#ifndef VKV_KERNELS_CUDA_DECODE_RING_INL_H_
#define VKV_KERNELS_CUDA_DECODE_RING_INL_H_

#include "kernels/cuda/device.h"

namespace vkv::kernels::cuda {

// Tokens [from, to) of one KV head of a slot.
struct Stretch {
  int slot;
  int kv_head;
  int from;
  int to;
};

// `Slots` of them a thread has in each part.
template <typename Slot, int Slots>
struct DecodeRing {
  using Of = Slot;
  Slot slots[3][Slots][kDecodeThreads];

  // This thread's slots of a part, kDecodeThreads apart.
  __device__ Slot* Part(int part) { return &slots[part][0][threadIdx.x]; }
};

// Reads `tiles` tiles: `block` has CopyKeys, UseKeys, CopyValues and UseValues of (tile, slots). The first copies are
// in flight while `start` runs. All lanes of a warp have the same number of tiles.
template <typename Block, typename Ring, typename Start>
__device__ inline void ReadTiles(Block& block, Ring& ring, int tiles, const Start& start) {
  typename Ring::Of* keys = ring.Part(0);
  typename Ring::Of* values = ring.Part(1);
  typename Ring::Of* next = ring.Part(2);
  block.CopyKeys(0, keys);
  CommitCopies();
  block.CopyValues(0, values);
  CommitCopies();
  start();
  VKV_KEEP_LOOP
  for (int tile = 0; tile < tiles; ++tile) {
    block.CopyKeys(tile + 1, next);
    CommitCopies();
    AwaitCopies<2>();
    block.UseKeys(tile, keys);
    block.CopyValues(tile + 1, keys);
    CommitCopies();
    AwaitCopies<2>();
    block.UseValues(values);
    typename Ring::Of* const used = values;
    values = keys;
    keys = next;
    next = used;
  }
  AwaitCopies<0>();
}

}  // namespace vkv::kernels::cuda

#endif  // VKV_KERNELS_CUDA_DECODE_RING_INL_H_
