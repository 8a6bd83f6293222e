/* The tensors of a virtual-kv cache and the sequences of a pass, as a native engine reads them.
 *
 * JavaScript fills both into arrays of the caller's: `cache.writeTensors(into)` once, since tensors do not move until
 * the cache is closed, and `cache.writeSequences(pass, into)` in each pass, between `prepare` and `commit`. Plain data,
 * C99 and C++; on a GPU the addresses are the device's. */
#ifndef VIRTUAL_KV_H_
#define VIRTUAL_KV_H_

#include <stdint.h>

enum vkv_role { VKV_KEY = 0, VKV_VALUE = 1, VKV_LATENT = 2 };

enum vkv_dtype { VKV_FLOAT32 = 0, VKV_FLOAT16 = 1, VKV_BFLOAT16 = 2, VKV_FLOAT8 = 3, VKV_INT8 = 4 };

/* One tensor of one layer, [slot, token, head, dim]; the elements of a head lie side by side. 64 bytes: 8 elements of a
 * BigInt64Array. In the order of `cache.tensors`: by layer, keys before values. */
typedef struct vkv_tensor {
  uint64_t base;        /* address of element [0, 0, 0, 0] */
  int64_t slot_stride;  /* elements from a slot to the next */
  int64_t token_stride; /* elements from a token to the next */
  int64_t head_stride;  /* elements from a head to the next */
  int32_t layer;        /* in the whole model */
  int32_t role;         /* vkv_role */
  int32_t heads;        /* on this worker */
  int32_t dim;          /* elements of a head */
  int32_t dtype;        /* vkv_dtype */
  int32_t element_bytes;
  int32_t slots;      /* length of the slot axis */
  int32_t max_tokens; /* length of the token axis; memory is mapped up to the end of each prepared sequence */
} vkv_tensor;

/* One sequence of a pass. 16 bytes: 4 elements of an Int32Array. The pass writes tokens [position, position + count) of
 * the slot, and reads all before them. */
typedef struct vkv_sequence {
  int32_t slot;     /* index on the slot axis of every tensor */
  int32_t position; /* valid tokens: where the new ones go */
  int32_t count;    /* new tokens */
  int32_t start;    /* where its new tokens begin in rows that are packed one sequence after the other */
} vkv_sequence;

typedef char vkv_tensor_has_64_bytes[sizeof(vkv_tensor) == 64 ? 1 : -1];
typedef char vkv_sequence_has_16_bytes[sizeof(vkv_sequence) == 16 ? 1 : -1];

#ifdef __CUDACC__
#define VKV_FUNCTION static inline __host__ __device__
#else
#define VKV_FUNCTION static inline
#endif

/* Address of the first element of a token's head. */
VKV_FUNCTION uint64_t vkv_address(const vkv_tensor* tensor, int32_t slot, int32_t token, int32_t head) {
  return tensor->base +
         (uint64_t)tensor->element_bytes *
             (uint64_t)(slot * tensor->slot_stride + token * tensor->token_stride + head * tensor->head_stride);
}

#endif /* VIRTUAL_KV_H_ */
