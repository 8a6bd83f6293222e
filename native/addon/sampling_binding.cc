// NativeSampling: choosing tokens from logits, seen from JavaScript. Converts and forwards; lib/serving checks options.
// Arrays are used during the call only.
#include <napi.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "addon/arguments.h"
#include "addon/bindings.h"
#include "addon/context.h"
#include "kernels/sampling/batch_sampler.h"

namespace vkv::addon {

class NativeSampling : public Napi::ObjectWrap<NativeSampling> {
 public:
  static void Define(Napi::Env env, Napi::Object exports);

  // ({threads, instructions})
  explicit NativeSampling(const Napi::CallbackInfo& info);

 private:
  Napi::Value Target(const Napi::CallbackInfo& info);
  // (logits, vocabulary, count, numbers, best, tokens, log-probabilities, best tokens, their log-probabilities, then
  // for each choice, unless there is none for any: text or undefined, bias tokens or undefined, bias)
  Napi::Value Choose(const Napi::CallbackInfo& info);

  std::unique_ptr<kernels::BatchSampler> sampler_;
  std::vector<kernels::Choice> choices_;
  std::vector<kernels::Chosen> chosen_;
};

namespace {

constexpr size_t kCommonArguments = 9;
constexpr size_t kChoiceArguments = 3;

// [choice, number]; lib/serving/batch-sampler.ts writes them.
enum Number : size_t {
  kRow,
  kTemperature,
  kTopK,
  kTopP,
  kMinP,
  kRepetitionPenalty,
  kPresencePenalty,
  kFrequencyPenalty,
  kUniform,
  kTextTokens,
  kPromptTokens,
  kWantsLogProbability,
  kNumbers,
};

constexpr double kMost = std::numeric_limits<float>::max();

// A number in least … most; NaN is refused.
double InRange(Arguments& given, double number, double least, double most) {
  if (number >= least && number <= most) return number;
  given.Refuse();
  return least;
}

int64_t Whole(Arguments& given, double number, int64_t most) {
  return static_cast<int64_t>(InRange(given, number, 0, static_cast<double>(most)));
}

template <typename T>
T* Array(Arguments& given, size_t at, napi_typedarray_type type, int64_t count) {
  if (given.IsAddress(at)) given.Refuse();
  return given.Buffer<T>(at, type, static_cast<uint64_t>(count) * sizeof(T));
}

kernels::Choice ReadChoice(Arguments& given, const double* numbers) {
  const double temperature = numbers[kTemperature];
  kernels::Choice choice;
  choice.temperature = temperature == 0 ? 0 : std::clamp(InRange(given, temperature, 0, kMost), 1e-6, 1e30);
  choice.top_k = Whole(given, numbers[kTopK], std::numeric_limits<int32_t>::max());
  choice.top_p = InRange(given, numbers[kTopP], 0, 1);
  choice.min_p = InRange(given, numbers[kMinP], 0, 1);
  choice.repetition_penalty = InRange(given, numbers[kRepetitionPenalty], std::numeric_limits<float>::min(), kMost);
  choice.presence_penalty = InRange(given, numbers[kPresencePenalty], -kMost, kMost);
  choice.frequency_penalty = InRange(given, numbers[kFrequencyPenalty], -kMost, kMost);
  choice.uniform = InRange(given, numbers[kUniform], 0, 1);
  return choice;
}

}  // namespace

void NativeSampling::Define(Napi::Env env, Napi::Object exports) {
  exports.Set("NativeSampling", DefineClass(env, "NativeSampling",
                                            {InstanceMethod<&NativeSampling::Target>("target"),
                                             InstanceMethod<&NativeSampling::Choose>("choose")}));
}

NativeSampling::NativeSampling(const Napi::CallbackInfo& info) : Napi::ObjectWrap<NativeSampling>(info) {
  Arguments options(info, size_t{0}, "NativeSampling");
  const std::string instructions = options.String("instructions");
  const auto threads = static_cast<int>(options.Integer("threads", 1, 1024));
  if (ThrowIfFailed(info.Env(), options.status())) return;
  sampler_ = std::make_unique<kernels::BatchSampler>(ContextOf(info.Env()).workers, threads,
                                                     kernels::ChooseSampling(instructions.c_str()));
}

Napi::Value NativeSampling::Target(const Napi::CallbackInfo& info) {
  return Napi::String::New(info.Env(), sampler_ ? sampler_->name() : "");
}

Napi::Value NativeSampling::Choose(const Napi::CallbackInfo& info) {
  constexpr int64_t kMostTokens = std::numeric_limits<int32_t>::max();
  Arguments given(info, "choose");
  const int64_t vocabulary = given.Integer(1, 1, kMostTokens - kernels::kBlock);
  const int64_t count = given.Integer(2, 0, kMostTokens);
  const int64_t best = given.Integer(4, 0, kMostTokens);
  const auto* const numbers = Array<const double>(given, 3, napi_float64_array, count * int64_t{kNumbers});
  auto* const tokens = Array<int32_t>(given, 5, napi_int32_array, count);
  auto* const log_probabilities = Array<double>(given, 6, napi_float64_array, count);
  auto* const best_tokens = Array<int32_t>(given, 7, napi_int32_array, count * best);
  auto* const best_log_probabilities = Array<double>(given, 8, napi_float64_array, count * best);
  choices_.clear();
  chosen_.clear();
  int64_t rows = 0;
  for (int64_t i = 0; i < count && given.ok(); ++i) {
    const double* const own = numbers + i * int64_t{kNumbers};
    kernels::Choice choice = ReadChoice(given, own);
    rows = std::max(rows, Whole(given, own[kRow], kMostTokens) + 1);
    const size_t at = kCommonArguments + static_cast<size_t>(i) * kChoiceArguments;
    if (at + kChoiceArguments <= info.Length()) {
      if (!given.IsUndefined(at)) {
        const std::span<const int32_t> text = given.Int32s(at);
        const int64_t text_tokens = Whole(given, own[kTextTokens], static_cast<int64_t>(text.size()));
        choice.prompt_tokens = Whole(given, own[kPromptTokens], text_tokens);
        if (given.ok()) choice.text = text.first(static_cast<size_t>(text_tokens));
      }
      if (!given.IsUndefined(at + 1)) {
        choice.bias_tokens = given.Int32s(at + 1);
        choice.bias = {
            Array<const float>(given, at + 2, napi_float32_array, static_cast<int64_t>(choice.bias_tokens.size())),
            choice.bias_tokens.size()};
        for (const int32_t token : choice.bias_tokens) {
          if (token < 0 || token >= vocabulary) given.Refuse(token);
        }
      }
    }
    choices_.push_back(choice);
    const bool wants = own[kWantsLogProbability] != 0;
    chosen_.push_back({tokens + i, wants ? log_probabilities + i : nullptr, best_tokens + i * best,
                       best_log_probabilities + i * best, wants ? best : 0});
  }
  const auto* const logits = Array<const float>(given, 0, napi_float32_array, given.ok() ? rows * vocabulary : 0);
  if (!sampler_ || ThrowIfFailed(info.Env(), given.status())) return info.Env().Undefined();
  for (int64_t i = 0; i < count; ++i) {
    choices_[static_cast<size_t>(i)].logits =
        logits + static_cast<int64_t>(numbers[i * int64_t{kNumbers} + kRow]) * vocabulary;
  }
  sampler_->Choose(choices_, vocabulary, chosen_);
  return info.Env().Undefined();
}

void DefineSampling(Napi::Env env, Napi::Object exports) { NativeSampling::Define(env, exports); }

}  // namespace vkv::addon
