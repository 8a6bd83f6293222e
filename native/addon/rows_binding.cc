// Checksums of chunks of memory, rows out of it, and rows of weights as int8, as functions of the addon. For the
// environment's own thread.
#include <napi.h>

#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/context.h"
#include "checked_rows.h"
#include "kernels/dense/cpu/int8.h"

namespace vkv::addon {

namespace {

// Reads and checks what both calls are given.
struct ChunkedMemory {
  std::span<uint8_t> memory;
  uint64_t chunk_bytes = 1;
  std::span<uint32_t> sums;

  ChunkedMemory(Arguments& given, int memory_at) {
    memory = given.Uint8s(memory_at);
    chunk_bytes = static_cast<uint64_t>(given.Integer(memory_at + 1, 1, kLargestInteger));
    sums = given.Uint32s(memory_at + 2);
    if (!given.ok()) chunk_bytes = 1;
    const uint64_t chunks = memory.size() / chunk_bytes + (memory.size() % chunk_bytes != 0 ? 1 : 0);
    if (sums.size() != chunks) given.Refuse(static_cast<int64_t>(sums.size()));
  }
};

// (memory, chunkBytes, sums) → CRC-32C of all
Napi::Value SumChunksOf(const Napi::CallbackInfo& info) {
  Arguments given(info, "sumChunks");
  const ChunkedMemory chunked(given, 0);
  if (ThrowIfFailed(info.Env(), given.status())) return info.Env().Undefined();
  return Napi::Number::New(info.Env(), SumChunks(chunked.memory, chunked.chunk_bytes, chunked.sums));
}

// (memory, chunkBytes, sums, rowBytes, rows, target) → chunks that were checked, or −1 where one is not as it was
Napi::Value CopyRows(const Napi::CallbackInfo& info) {
  Arguments given(info, "copyRows");
  const ChunkedMemory chunked(given, 0);
  const auto row_bytes = static_cast<uint64_t>(given.Integer(3, 0, kLargestInteger));
  const std::span<int32_t> rows = given.Int32s(4);
  const std::span<uint8_t> target = given.Uint8s(5);
  const uint64_t most = row_bytes == 0 ? UINT64_MAX : chunked.memory.size() / row_bytes;
  if (row_bytes != 0 && rows.size() > target.size() / row_bytes) given.Refuse(static_cast<int64_t>(rows.size()));
  for (const int32_t row : rows)
    if (row < 0 || static_cast<uint64_t>(row) >= most) given.Refuse(row);
  if (ThrowIfFailed(info.Env(), given.status())) return info.Env().Undefined();
  const CopiedRows copied =
      CopyCheckedRows(chunked.memory, row_bytes, rows, chunked.chunk_bytes, chunked.sums, target.data());
  return Napi::Number::New(info.Env(), copied.is_good ? static_cast<double>(copied.chunks) : -1);
}

// (floats, into) → false where a block is not finite
Napi::Value QuantizeRows(const Napi::CallbackInfo& info) {
  Arguments given(info, "quantizeRows");
  const std::span<uint8_t> into = given.Uint8s(1);
  const uint64_t blocks = into.size() / sizeof(kernels::Int8Block);
  const auto* const floats =
      given.Buffer<const float>(0, napi_float32_array, blocks * kernels::kBlockElements * sizeof(float));
  if (into.size() % sizeof(kernels::Int8Block) != 0) given.Refuse(static_cast<int64_t>(into.size()));
  if (ThrowIfFailed(info.Env(), given.status())) return info.Env().Undefined();
  return Napi::Boolean::New(info.Env(),
                            kernels::QuantizeBlocks(floats, static_cast<int64_t>(blocks) * kernels::kBlockElements,
                                                    reinterpret_cast<kernels::Int8Block*>(into.data())));
}

}  // namespace

void DefineRows(Napi::Env env, Napi::Object exports) {
  exports.Set("sumChunks", Napi::Function::New<SumChunksOf>(env, "sumChunks"));
  exports.Set("quantizeRows", Napi::Function::New<QuantizeRows>(env, "quantizeRows"));
  exports.Set("copyRows", Napi::Function::New<CopyRows>(env, "copyRows"));
}

}  // namespace vkv::addon
