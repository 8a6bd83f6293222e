// RowSampler: chooses one token at a time from a row of logits, in memory that it makes once and keeps.
//
// Of a vocabulary of V, choosing reads the logits two to six times, whatever they are: what is left to choose from is
// bounded by a logit (and, of equals, by a token), which is found by counting or weighing logits in buckets that get
// narrower, never by sorting more than a few. For one thread.
#ifndef VKV_KERNELS_SAMPLING_ROW_SAMPLER_H_
#define VKV_KERNELS_SAMPLING_ROW_SAMPLER_H_

#include <memory>
#include <vector>

#include "kernels/sampling/sampling.h"

namespace vkv::kernels {

class RowSampler {
 public:
  explicit RowSampler(const SamplingKernels* kernels) : kernels_(kernels) {}

  // Chooses the most likely token where its logit is infinite or NaN (then the first that is). Pre: `vocabulary` is 1
  // or more and the same as ever; tokens are below it; temperature is 0 or 1e-6 … 1e30.
  void Choose(const Choice& choice, int64_t vocabulary, const Chosen& chosen);

 private:
  // Tokens that are left: those whose logit is above `least`, and of those with this logit the ones up to `last`.
  struct Bound {
    float least;
    int64_t last;
  };
  struct Candidate {
    float logit;
    int32_t token;
    float weight;
  };

  static bool IsBefore(const Candidate& a, const Candidate& b);  // the more likely, of equals the first

  void Reserve(int64_t vocabulary);
  void SetRow(const float* logits);
  const float* Adjusted(const Choice& choice);
  const float* BlockAt(int64_t block) const { return block == tail_block_ ? tail_ : row_ + block * kBlock; }
  int64_t FindNan() const;
  int32_t MostLikely() const;
  int32_t Draw(const Choice& choice);
  double WeighAll(float factor, const Bound& bound);
  double WeighBlock(int64_t block, float factor, const Bound& bound);
  int64_t GatherBetween(float low, float high, const Bound& bound);
  // The smallest set of most likely tokens that has `count` tokens; of those within `bound` that has the share
  // `share` of their weight.
  Bound BoundOfCount(int64_t count);
  Bound BoundOfShare(double share, float factor, const Bound& bound);
  template <typename Add>
  Bound Narrow(float low, double wanted, float factor, const Bound& bound, bool weighs, Add add);
  void FindBest(int64_t count, double log_total, const Chosen& chosen);

  const SamplingKernels* const kernels_;
  int64_t vocabulary_ = 0;
  int64_t blocks_ = 0;
  int64_t tail_block_ = -1;  // the last block, if it is not whole: its logits are in tail_, then −∞

  const float* row_ = nullptr;
  float largest_ = 0;
  float tail_[kBlock];
  float weights_[kBlock];
  float copied_[kBlock];
  std::vector<float> groups_;  // [group]: the largest logit
  std::vector<float> sorted_groups_;
  std::vector<double> sums_;     // [block]: weights
  std::vector<float> adjusted_;  // [token]
  std::vector<int32_t> counts_;  // [token]: zero between calls
  // Of the tokens between two bounds, by token.
  std::vector<float> values_;
  std::vector<int32_t> tokens_;
  std::vector<float> value_weights_;
  std::vector<Candidate> few_;
  std::vector<double> buckets_;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_SAMPLING_ROW_SAMPLER_H_
