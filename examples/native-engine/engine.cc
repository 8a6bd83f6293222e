// A native engine, as small as one can be: writes the K and V of a pass into a virtual-kv cache and attends over them.
// It knows the cache by include/virtual_kv.h alone: no block table, no gather, one contiguous range a sequence. A C++
// compiler makes it compute on CPU threads, nvcc on a stream of a GPU; addon.ts compiles and loads it.
//
// One function: attend(tensors, layer, sequences, count, queryHeads, keys, values, queries, output, stream). Rows are
// packed one sequence after the other, [row, head, dim] of float32. It trusts its caller; an engine checks.
#define NAPI_VERSION 8
#include <node_api.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>
#include <vector>

#include "virtual_kv.h"

namespace {

struct Pass {
  vkv_tensor key;
  vkv_tensor value;
  const vkv_sequence* sequences;
  int count;
  int rows;
  int query_heads;
  const float* keys;
  const float* values;
  const float* queries;
  float* output;
};

VKV_FUNCTION float* At(const vkv_tensor& tensor, int slot, int token, int head) {
  return reinterpret_cast<float*>(vkv_address(&tensor, slot, token, head));
}

VKV_FUNCTION const vkv_sequence& SequenceOf(const Pass& pass, int row) {
  int index = pass.count - 1;
  while (pass.sequences[index].start > row) index -= 1;
  return pass.sequences[index];
}

// Puts one row's head of K and V where it belongs.
VKV_FUNCTION void Append(const Pass& pass, int row, int head) {
  const vkv_sequence& sequence = SequenceOf(pass, row);
  const int token = sequence.position + row - sequence.start;
  float* const key = At(pass.key, sequence.slot, token, head);
  float* const value = At(pass.value, sequence.slot, token, head);
  for (int i = 0; i < pass.key.dim; i += 1) key[i] = pass.keys[(row * pass.key.heads + head) * pass.key.dim + i];
  for (int i = 0; i < pass.value.dim; i += 1)
    value[i] = pass.values[(row * pass.value.heads + head) * pass.value.dim + i];
}

// softmax(q · Kᵀ / √dim) · V of one row's query head over all tokens up to its own, in one walk.
VKV_FUNCTION void Attend(const Pass& pass, int row, int query_head) {
  const vkv_sequence& sequence = SequenceOf(pass, row);
  const int head = query_head / (pass.query_heads / pass.key.heads);
  const float* const query = pass.queries + (row * pass.query_heads + query_head) * pass.key.dim;
  float* const output = pass.output + (row * pass.query_heads + query_head) * pass.value.dim;
  const float scale = 1 / sqrtf(static_cast<float>(pass.key.dim));
  float most = -3e38F;
  float total = 0;
  for (int i = 0; i < pass.value.dim; i += 1) output[i] = 0;
  for (int token = 0; token <= sequence.position + row - sequence.start; token += 1) {
    const float* const key = At(pass.key, sequence.slot, token, head);
    const float* const value = At(pass.value, sequence.slot, token, head);
    float score = 0;
    for (int i = 0; i < pass.key.dim; i += 1) score += query[i] * key[i];
    score *= scale;
    const float larger = score > most ? score : most;
    const float before = expf(most - larger);
    const float weight = expf(score - larger);
    for (int i = 0; i < pass.value.dim; i += 1) output[i] = output[i] * before + weight * value[i];
    total = total * before + weight;
    most = larger;
  }
  for (int i = 0; i < pass.value.dim; i += 1) output[i] /= total;
}

#ifdef __CUDACC__

__global__ void AppendAll(Pass pass) {
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item < pass.rows * pass.key.heads) Append(pass, item / pass.key.heads, item % pass.key.heads);
}

__global__ void AttendAll(Pass pass) {
  const int item = blockIdx.x * blockDim.x + threadIdx.x;
  if (item < pass.rows * pass.query_heads) Attend(pass, item / pass.query_heads, item % pass.query_heads);
}

constexpr int kThreads = 64;

// A copy on the device, queued on the stream.
template <typename T>
T* OnDevice(const T* from, size_t elements, cudaStream_t stream) {
  T* copy = nullptr;
  (void)cudaMallocAsync(reinterpret_cast<void**>(&copy), elements * sizeof(T), stream);
  (void)cudaMemcpyAsync(copy, from, elements * sizeof(T), cudaMemcpyDefault, stream);
  return copy;
}

bool Run(Pass pass, uint64_t stream_handle) {
  const auto stream = reinterpret_cast<cudaStream_t>(stream_handle);
  float* const answer = pass.output;
  const size_t outputs = static_cast<size_t>(pass.rows) * pass.query_heads * pass.value.dim;
  pass.sequences = OnDevice(pass.sequences, pass.count, stream);
  pass.keys = OnDevice(pass.keys, static_cast<size_t>(pass.rows) * pass.key.heads * pass.key.dim, stream);
  pass.values = OnDevice(pass.values, static_cast<size_t>(pass.rows) * pass.value.heads * pass.value.dim, stream);
  pass.queries = OnDevice(pass.queries, static_cast<size_t>(pass.rows) * pass.query_heads * pass.key.dim, stream);
  pass.output = OnDevice(pass.output, outputs, stream);
  AppendAll<<<(pass.rows * pass.key.heads + kThreads - 1) / kThreads, kThreads, 0, stream>>>(pass);
  AttendAll<<<(pass.rows * pass.query_heads + kThreads - 1) / kThreads, kThreads, 0, stream>>>(pass);
  (void)cudaMemcpyAsync(answer, pass.output, outputs * sizeof(float), cudaMemcpyDefault, stream);
  for (const void* copy : {static_cast<const void*>(pass.sequences), static_cast<const void*>(pass.keys),
                           static_cast<const void*>(pass.values), static_cast<const void*>(pass.queries),
                           static_cast<const void*>(pass.output)})
    (void)cudaFreeAsync(const_cast<void*>(copy), stream);
  return cudaStreamSynchronize(stream) == cudaSuccess && cudaGetLastError() == cudaSuccess;
}

#else

// Calls work(0) … work(items - 1) on all processors.
template <typename Work>
void OnThreads(int items, Work work) {
  std::atomic<int> next{0};
  const auto loop = [&] {
    for (int item = next++; item < items; item = next++) work(item);
  };
  std::vector<std::thread> threads(std::max(1U, std::thread::hardware_concurrency()) - 1);
  for (std::thread& thread : threads) thread = std::thread(loop);
  loop();
  for (std::thread& thread : threads) thread.join();
}

bool Run(const Pass& pass, uint64_t) {
  const int heads = pass.key.heads;
  OnThreads(pass.rows * heads, [&](int item) { Append(pass, item / heads, item % heads); });
  OnThreads(pass.rows * pass.query_heads,
            [&](int item) { Attend(pass, item / pass.query_heads, item % pass.query_heads); });
  return true;
}

#endif

template <typename T>
T* DataOf(napi_env env, napi_value array, size_t* length = nullptr) {
  void* data = nullptr;
  size_t elements = 0;
  napi_get_typedarray_info(env, array, nullptr, &elements, &data, nullptr, nullptr);
  if (length != nullptr) *length = elements;
  return static_cast<T*>(data);
}

int NumberOf(napi_env env, napi_value value) {
  int32_t number = 0;
  napi_get_value_int32(env, value, &number);
  return number;
}

napi_value CallAttend(napi_env env, napi_callback_info info) {
  napi_value given[10];
  size_t arguments = 10;
  napi_get_cb_info(env, info, &arguments, given, nullptr, nullptr);
  size_t words = 0;
  const vkv_tensor* const tensors = DataOf<vkv_tensor>(env, given[0], &words);
  const int layer = NumberOf(env, given[1]);
  Pass pass{};
  for (size_t index = 0; index < words * 8 / sizeof(vkv_tensor); index += 1) {
    const vkv_tensor& tensor = tensors[index];
    if (tensor.layer == layer && tensor.dtype == VKV_FLOAT32) (tensor.role == VKV_KEY ? pass.key : pass.value) = tensor;
  }
  pass.sequences = DataOf<vkv_sequence>(env, given[2]);
  pass.count = NumberOf(env, given[3]);
  for (int index = 0; index < pass.count; index += 1) pass.rows += pass.sequences[index].count;
  pass.query_heads = NumberOf(env, given[4]);
  pass.keys = DataOf<float>(env, given[5]);
  pass.values = DataOf<float>(env, given[6]);
  pass.queries = DataOf<float>(env, given[7]);
  pass.output = DataOf<float>(env, given[8]);
  uint64_t stream = 0;
  bool is_lossless = false;
  napi_get_value_bigint_uint64(env, given[9], &stream, &is_lossless);
  if (pass.key.heads == 0 || !Run(pass, stream)) napi_throw_error(env, nullptr, "the pass failed");
  return nullptr;
}

}  // namespace

NAPI_MODULE_INIT() {
  napi_value function = nullptr;
  napi_create_function(env, "attend", NAPI_AUTO_LENGTH, CallAttend, nullptr, &function);
  napi_set_named_property(env, exports, "attend", function);
  return exports;
}
