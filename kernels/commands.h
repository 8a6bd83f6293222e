// Commands: the arguments of the kernels, as plain data with no pointers but those to the tensors themselves.
//
// One list of types for the CPU kernels, the CUDA kernels (which get a command by value, as a launch parameter) and the
// simulated device. Rows of new tokens ("row") are numbered through the sequences of a step, in their order. Shapes:
// keys [slot, token, head, dim] and values [slot, token, head, value dim] by the tensor's strides; new keys, new
// values, queries and outputs contiguous, [row, head, dim]. This header includes no other of the package, and compiles
// as CUDA C++ too.
#ifndef VKV_KERNELS_COMMANDS_H_
#define VKV_KERNELS_COMMANDS_H_

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#define VKV_BOTH __host__ __device__
#else
#define VKV_BOTH
#endif

namespace vkv::kernels {

// The numbers are lib/kernels/kernels.ts's too.
enum class Dtype : int32_t { kFloat32 = 0, kFloat16 = 1, kBfloat16 = 2 };

constexpr int64_t ElementBytes(Dtype dtype) { return dtype == Dtype::kFloat32 ? 4 : 2; }

// A tensor of the cache: element [slot, token, head, i] is at address + slot · slot_bytes + token · token_bytes +
// head · head_bytes + i · (bytes of an element). Everything is a multiple of the element's bytes.
struct Tensor {
  uint64_t address = 0;
  int64_t slot_bytes = 0;
  int64_t token_bytes = 0;
  int64_t head_bytes = 0;
  int32_t heads = 0;
  int32_t dim = 0;
};

// One sequence of a step: its slot holds `length` tokens, and the step adds `tokens` more, whose rows start at
// first_row. The binding passes an Int32Array of these four.
struct Span {
  int32_t slot = 0;
  int32_t length = 0;
  int32_t tokens = 0;
  int32_t first_row = 0;
};

// Writes the new tokens' K and V past each sequence's length.
struct AppendCommand {
  Tensor keys;
  Tensor values;
  uint64_t new_keys = 0;    // [row, key heads, dim]
  uint64_t new_values = 0;  // [row, value heads, value dim]
  Dtype cache_dtype = Dtype::kFloat32;
  Dtype row_dtype = Dtype::kFloat32;
};

// softmax(scale · q · Kᵀ) · V. The token at position p of a sequence sees the tokens FirstSeen(p) … p; new token j has
// position length + j. Query heads h · group … (h + 1) · group − 1 read KV head h, group = query_heads / keys.heads.
//
// Nothing before token FirstSeen(length) of a sequence is loaded, nor behind its last new token: there need be no
// memory. What a row does not see takes no part in its result, whatever it holds.
struct AttentionCommand {
  Tensor keys;
  Tensor values;
  uint64_t queries = 0;  // [row, query head, dim]
  uint64_t output = 0;   // [row, query head, value dim]
  uint64_t sinks = 0;    // float[query head]: a score that takes weight and gives no value; 0: none
  Dtype cache_dtype = Dtype::kFloat32;
  Dtype row_dtype = Dtype::kFloat32;
  int32_t query_heads = 0;
  float scale = 1;
  int32_t window = 0;  // a token sees itself and the window − 1 before it; 0: all
  int32_t chunk = 0;   // a token sees its own of the text's chunks of so many; 0: all. Not with a window.
  float softcap = 0;   // scores become softcap · tanh(score / softcap); 0: they stay
};

// The first token that the token at `position` sees.
VKV_BOTH inline int32_t FirstSeen(const AttentionCommand& command, int32_t position) {
  if (command.window > 0) return position < command.window ? 0 : position - command.window + 1;
  return command.chunk > 0 ? position - position % command.chunk : 0;
}

// One reservation as a copy sees it: [slot, token] of token_bytes each, every tensor in it together.
struct Region {
  uint64_t address = 0;
  int64_t slot_bytes = 0;
  int64_t token_bytes = 0;
};

// Copies tokens of one slot to another (or the same) slot, in every region. The two ranges do not overlap.
struct TokenCopy {
  int32_t from_slot = 0;
  int32_t from_token = 0;
  int32_t to_slot = 0;
  int32_t to_token = 0;
  int32_t tokens = 0;
};

// Bytes of a packed source, from byte `from` on, that go side by side to `to`, which may be in the CPU's memory.
struct ScatterRun {
  uint64_t to = 0;
  uint32_t from = 0;
  uint32_t bytes = 0;
};

static_assert(sizeof(Tensor) == 40 && sizeof(Span) == 16 && sizeof(TokenCopy) == 20 && sizeof(Region) == 24 &&
              sizeof(ScatterRun) == 16);
static_assert(sizeof(AppendCommand) == 104 && sizeof(AttentionCommand) == 136);

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_COMMANDS_H_
