// NativeSampling: choosing tokens from logits, seen from JavaScript. Converts and forwards; lib/serving checks options.
// Arrays are used during the call only.
#ifndef VKV_ADDON_SAMPLING_BINDING_H_
#define VKV_ADDON_SAMPLING_BINDING_H_

#include <napi.h>

#include <memory>
#include <vector>

#include "addon/arguments.h"
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

}  // namespace vkv::addon

#endif  // VKV_ADDON_SAMPLING_BINDING_H_
