// Sampling: how the next tokens are chosen from logits, on the CPU.
//
// The plain data of one choice, and the inner loops, compiled once for each instruction set. The loops work on blocks
// of kBlock logits, and give the same bits with every instruction set: sums have kLanes parts whatever a vector's
// width, and products that are added to are rounded once. So a choice depends on logits and options only. Nothing here
// allocates. Pure functions; any thread.
#ifndef VKV_KERNELS_SAMPLING_SAMPLING_H_
#define VKV_KERNELS_SAMPLING_SAMPLING_H_

#include <cstdint>
#include <span>

namespace vkv::kernels {

inline constexpr int kBlock = 1024;
inline constexpr int kGroup = 64;  // logits whose largest is kept, so that loops can pass over them
inline constexpr int kGroups = kBlock / kGroup;
inline constexpr int kLanes = 16;

// How one token is chosen. Steps in this order: bias, penalties, temperature, top-k, top-p, min-p, draw.
struct Choice {
  const float* logits = nullptr;  // [vocabulary]
  double temperature = 0;         // 0: the most likely token
  int64_t top_k = 0;              // 0: all
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;  // divides positive logits of tokens of the text, multiplies others
  double presence_penalty = 0;    // taken from logits of tokens of the answer
  double frequency_penalty = 0;   // the same, for each time that they are there
  double uniform = 0;             // 0 … 1, below 1: the random number
  std::span<const int32_t> text;  // prompt and answer; read where there is a penalty
  int64_t prompt_tokens = 0;
  std::span<const int32_t> bias_tokens;
  std::span<const float> bias;  // [bias token]: added; −∞: never chosen
};

// What was chosen. Log-probabilities are those of the logits as given.
struct Chosen {
  int32_t* token = nullptr;
  double* log_probability = nullptr;  // null: not asked for
  // [best]: the most likely tokens, of equals the first; −1 where the vocabulary has fewer.
  int32_t* best_tokens = nullptr;
  double* best_log_probabilities = nullptr;
  int64_t best = 0;
};

struct SamplingKernels {
  const char* name;
  // groups[group] = the largest of each. Returns whether a logit is NaN; groups mean nothing then.
  bool (*largest)(const float* block, float* groups);
  // weights[i] = 2^((logits[i] − largest) · factor), zero where logits[i] < least. `count` is a multiple of kLanes.
  // Returns their sum.
  double (*weigh)(const float* logits, int64_t count, float largest, float factor, float least, float* weights);
  // Writes the logits of a block that are low … high and their tokens, from `first` on. Returns how many. Up to
  // kLanes entries behind them are overwritten.
  int64_t (*gather)(const float* block, float low, float high, int32_t first, float* values, int32_t* tokens);
};

const SamplingKernels* Avx512Sampling();
const SamplingKernels* Avx2Sampling();
const SamplingKernels* PortableSampling();

// The fastest this machine has; `wanted` by name instead, when it is there.
const SamplingKernels* ChooseSampling(const char* wanted = nullptr);

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_SAMPLING_SAMPLING_H_
