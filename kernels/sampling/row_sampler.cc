#include "kernels/sampling/row_sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

namespace vkv::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLog2E = 1.4426950408889634;
constexpr int kBucketBits = 8;
constexpr int64_t kBuckets = 1 << kBucketBits;
constexpr int kParts = 8;      // of a bucket: neighbours that fall into one do not wait for each other
constexpr int64_t kFew = 256;  // tokens that are sorted
constexpr int64_t kNone = -1;

// Orders floats, equal ones being equal: −0 is 0. Not for NaN.
uint32_t KeyOf(float value) {
  const auto bits = std::bit_cast<int32_t>(value + 0.0f);
  return static_cast<uint32_t>(bits ^ (bits >> 31 | std::numeric_limits<int32_t>::min()));  // no branch: by vectors
}

float ValueOf(uint32_t key) { return std::bit_cast<float>((key >> 31) != 0 ? key & 0x7fffffffu : ~key); }

float NextAbove(float value) { return value == kInfinity ? value : ValueOf(KeyOf(value) + 1); }

}  // namespace

bool RowSampler::IsBefore(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

void RowSampler::Reserve(int64_t vocabulary) {
  if (vocabulary == vocabulary_) return;
  vocabulary_ = vocabulary;
  blocks_ = (vocabulary + kBlock - 1) / kBlock;
  tail_block_ = vocabulary % kBlock == 0 ? -1 : blocks_ - 1;
  const auto room = static_cast<size_t>((blocks_ + 1) * kBlock);  // Gather writes behind the end
  groups_.resize(static_cast<size_t>(blocks_ * kGroups));
  sorted_groups_.resize(groups_.size());
  sums_.resize(static_cast<size_t>(blocks_));
  adjusted_.clear();
  counts_.clear();
  values_.resize(room);
  tokens_.resize(room);
  value_weights_.resize(room);
  few_.resize(kFew);
  buckets_.resize(kBuckets * kParts);
}

void RowSampler::SetRow(const float* logits) {
  row_ = logits;
  if (tail_block_ < 0) return;
  const int64_t from = tail_block_ * kBlock;
  std::fill(std::copy(logits + from, logits + vocabulary_, tail_), tail_ + kBlock, -kInfinity);
}

void RowSampler::Choose(const Choice& choice, int64_t vocabulary, const Chosen& chosen) {
  Reserve(vocabulary);
  SetRow(choice.logits);
  int64_t nan = FindNan();
  const bool is_adjusted = !choice.bias_tokens.empty() || choice.repetition_penalty != 1 ||
                           choice.presence_penalty != 0 || choice.frequency_penalty != 0;
  const bool wants_probabilities = chosen.log_probability != nullptr;
  double log_total = std::numeric_limits<double>::quiet_NaN();
  if (wants_probabilities && nan < 0) {
    log_total = std::isfinite(largest_) ? static_cast<double>(largest_) +
                                              std::log(WeighAll(static_cast<float>(kLog2E), {-kInfinity, vocabulary}))
                                        : static_cast<double>(largest_);
  }
  if (chosen.best > 0) FindBest(nan < 0 ? chosen.best : 0, log_total, chosen);
  if (is_adjusted && nan < 0) {
    SetRow(Adjusted(choice));
    nan = FindNan();
  }
  *chosen.token = nan >= 0 ? static_cast<int32_t>(nan) : Draw(choice);
  if (!wants_probabilities) return;
  const double logit = static_cast<double>(choice.logits[*chosen.token]);
  // Of infinite logits each is certain, all others impossible.
  *chosen.log_probability = std::isfinite(log_total) ? logit - log_total : logit == log_total ? 0 : logit - log_total;
}

// The row with bias and penalties.
const float* RowSampler::Adjusted(const Choice& choice) {
  adjusted_.resize(static_cast<size_t>(vocabulary_));
  float* const logits = adjusted_.data();
  std::copy_n(choice.logits, vocabulary_, logits);
  for (size_t i = 0; i < choice.bias_tokens.size(); ++i) {
    float& logit = logits[choice.bias_tokens[i]];
    logit = choice.bias[i] == -kInfinity ? -kInfinity : logit + choice.bias[i];
  }
  if (choice.repetition_penalty == 1 && choice.presence_penalty == 0 && choice.frequency_penalty == 0) return logits;
  counts_.resize(static_cast<size_t>(vocabulary_));
  const auto answer = choice.text.subspan(static_cast<size_t>(choice.prompt_tokens));
  const auto prompt = choice.text.first(static_cast<size_t>(choice.prompt_tokens));
  // Items of a prompt may stand there as numbers that are no tokens.
  const auto each = [&](std::span<const int32_t> tokens, auto&& visit) {
    for (const int32_t token : tokens) {
      if (token >= 0 && token < vocabulary_) visit(token, counts_[static_cast<size_t>(token)]);
    }
  };
  const auto repeated = static_cast<float>(choice.repetition_penalty);
  const auto penalize = [&](int32_t token, int32_t& count) {  // once: the count is −1 after that
    if (count < 0) return;
    float& logit = logits[token];
    logit = logit > 0 ? logit / repeated : logit * repeated;
    if (count > 0) logit -= static_cast<float>(choice.presence_penalty + choice.frequency_penalty * count);
    count = -1;
  };
  each(answer, [](int32_t, int32_t& count) { ++count; });
  each(answer, penalize);
  if (choice.repetition_penalty != 1) each(prompt, penalize);
  for (const auto& tokens : {prompt, answer}) each(tokens, [](int32_t, int32_t& count) { count = 0; });
  return logits;
}

// Finds the largest of each group and of all; returns the first logit that is NaN, or −1.
int64_t RowSampler::FindNan() const {
  auto* const self = const_cast<RowSampler*>(this);
  float largest = -kInfinity;
  for (int64_t block = 0; block < blocks_; ++block) {
    float* const groups = self->groups_.data() + block * kGroups;
    if (kernels_->largest(BlockAt(block), groups)) {
      const float* const logits = BlockAt(block);
      return block * kBlock + (std::find_if(logits, logits + kBlock, [](float x) { return x != x; }) - logits);
    }
    largest = std::max(largest, *std::max_element(groups, groups + kGroups));
  }
  self->largest_ = largest + 0.0f;
  return -1;
}

int32_t RowSampler::MostLikely() const {
  for (int64_t group = 0; group < blocks_ * kGroups; ++group) {
    if (groups_[static_cast<size_t>(group)] != largest_) continue;
    const float* const logits = BlockAt(group / kGroups) + group % kGroups * kGroup;
    return static_cast<int32_t>(group * kGroup + (std::find(logits, logits + kGroup, largest_) - logits));
  }
  return 0;
}

int32_t RowSampler::Draw(const Choice& choice) {
  if (choice.temperature == 0 || choice.top_k == 1 || !std::isfinite(largest_)) return MostLikely();
  const auto factor = static_cast<float>(kLog2E / choice.temperature);
  Bound bound = {-kInfinity, vocabulary_ - 1};
  if (choice.top_k > 0 && choice.top_k < vocabulary_) bound = BoundOfCount(choice.top_k);
  if (choice.top_p < 1) bound = BoundOfShare(choice.top_p, factor, bound);
  if (choice.min_p > 0) {
    const auto least = static_cast<float>(static_cast<double>(largest_) + choice.temperature * std::log(choice.min_p));
    if (least > bound.least) bound = {std::min(least, largest_), vocabulary_ - 1};
  }
  double left = choice.uniform * WeighAll(factor, bound);
  int64_t block = 0;
  int64_t last = kNone;  // with tokens that may be drawn
  for (; block < blocks_; ++block) {
    const double sum = sums_[static_cast<size_t>(block)];
    if (sum == 0) continue;
    last = block;
    if (left < sum) break;
    left -= sum;
  }
  if (block == blocks_) left = std::numeric_limits<double>::infinity();  // rounding only: the last token
  const double sum = WeighBlock(last, factor, bound);
  double exact = 0;
  for (const float weight : weights_) exact += static_cast<double>(weight);
  left *= exact / sum;
  int64_t token = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    if (weights_[i] == 0) continue;
    token = i;
    left -= static_cast<double>(weights_[i]);
    if (left < 0) break;
  }
  return static_cast<int32_t>(last * kBlock + token);
}

double RowSampler::WeighAll(float factor, const Bound& bound) {
  double total = 0;
  for (int64_t block = 0; block < blocks_; ++block) {
    const float* const groups = groups_.data() + block * kGroups;
    const bool is_below = std::all_of(groups, groups + kGroups, [&](float group) { return group < bound.least; });
    const double sum = is_below ? 0 : WeighBlock(block, factor, bound);
    sums_[static_cast<size_t>(block)] = sum;
    total += sum;
  }
  return total;
}

// Fills weights_ of a block.
double RowSampler::WeighBlock(int64_t block, float factor, const Bound& bound) {
  const float* logits = BlockAt(block);
  float least = bound.least;
  const int64_t last = bound.last - block * kBlock;  // in this block
  if (last < 0) {
    least = NextAbove(least);
  } else if (last < kBlock - 1) {
    std::copy_n(logits, kBlock, copied_);
    for (int64_t i = last + 1; i < kBlock; ++i) {
      if (copied_[i] == least) copied_[i] = -kInfinity;
    }
    logits = copied_;
  }
  return kernels_->weigh(logits, kBlock, largest_, factor, least, weights_);
}

// Fills values_ and tokens_ with what is left between two logits.
int64_t RowSampler::GatherBetween(float low, float high, const Bound& bound) {
  int64_t count = 0;
  for (int64_t block = 0; block < blocks_; ++block) {
    const int64_t first = block * kBlock;
    const float* const groups = groups_.data() + block * kGroups;
    const float least = low == bound.least && first > bound.last ? NextAbove(low) : low;
    if (std::all_of(groups, groups + kGroups, [&](float group) { return group < least; })) continue;
    float* const values = values_.data() + count;
    int32_t* const tokens = tokens_.data() + count;
    const int64_t found = kernels_->gather(BlockAt(block), least, high, static_cast<int32_t>(first), values, tokens);
    if (least != bound.least || bound.last >= first + kBlock - 1) {
      count += found;
      continue;
    }
    for (int64_t i = 0; i < found; ++i) {
      if (values[i] == bound.least && tokens[i] > bound.last) continue;
      values_[static_cast<size_t>(count)] = values[i];
      tokens_[static_cast<size_t>(count++)] = tokens[i];
    }
  }
  return count;
}

// Narrows low … largest until the token at which the sum of add(weight) of all more likely ones reaches `wanted`.
template <typename Add>
RowSampler::Bound RowSampler::Narrow(float low, double wanted, float factor, const Bound& bound, bool weighs, Add add) {
  float high = largest_;
  double above = 0;
  for (;;) {
    const int64_t count = GatherBetween(low, high, bound);
    const auto whole = (count + kLanes - 1) / kLanes * kLanes;
    if (weighs) {
      std::fill_n(values_.begin() + count, whole - count, -kInfinity);
      kernels_->weigh(values_.data(), whole, largest_, factor, -kInfinity, value_weights_.data());
    }
    const uint32_t highest = KeyOf(high);
    const uint32_t range = highest - KeyOf(low);
    const float* const values = values_.data();
    if (count > 0 && std::all_of(values, values + count, [&](float value) { return value == values[0]; })) {
      // In order already, and each has the same part in the sum.
      const double each = add(weighs ? value_weights_[0] : 0);
      const double steps = each > 0 ? std::ceil((wanted - above) / each) : 1;
      const auto at = std::clamp<int64_t>(static_cast<int64_t>(std::min(steps, 1e9)), 1, count) - 1;
      return {values[0], tokens_[static_cast<size_t>(at)]};
    }
    if (count <= kFew) {
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        few_[at] = {values_[at], tokens_[at], weighs ? value_weights_[at] : 0};
      }
      std::sort(few_.begin(), few_.begin() + count, IsBefore);
      Bound found = {high, vocabulary_ - 1};
      for (int64_t i = 0; i < count; ++i) {
        const Candidate& next = few_[static_cast<size_t>(i)];
        found = {next.logit, next.token};
        above += add(next.weight);
        if (above >= wanted) break;
      }
      return found;
    }
    const int shift = std::max(0, static_cast<int>(std::bit_width(range)) - kBucketBits);
    std::fill(buckets_.begin(), buckets_.end(), 0.0);
    double* const buckets = buckets_.data();
    for (int64_t i = 0; i < count; i += kParts) {
      uint32_t at[kParts];  // behind the last value there is room, and anything
      for (int part = 0; part < kParts; ++part) at[part] = (highest - KeyOf(values[i + part])) >> shift;
      const float* const weights = value_weights_.data() + i;
      const auto put = [&](int part) { buckets[at[part] * kParts + part] += add(weighs ? weights[part] : 0); };
      if (count - i >= kParts) {  // by itself, so that it is unrolled
        for (int part = 0; part < kParts; ++part) put(part);
      } else {
        for (int part = 0; part < count - i; ++part) put(part);
      }
    }
    uint32_t bucket = 0;
    const uint32_t last = range >> shift;
    for (;; ++bucket) {
      const double* const parts = buckets + bucket * kParts;
      const double sum = std::accumulate(parts, parts + kParts, 0.0);
      if (above + sum >= wanted || bucket == last) break;
      above += sum;
    }
    const uint32_t top = highest - (bucket << shift);
    const uint32_t bottom = (range >> shift) == bucket ? KeyOf(low) : top - ((uint32_t{1} << shift) - 1);
    high = ValueOf(top);
    low = ValueOf(bottom);
  }
}

RowSampler::Bound RowSampler::BoundOfCount(int64_t count) {
  float low = -kInfinity;
  if (count <= static_cast<int64_t>(groups_.size())) {  // as many groups have a logit of at least this
    std::copy(groups_.begin(), groups_.end(), sorted_groups_.begin());
    const auto at = sorted_groups_.begin() + (count - 1);
    std::nth_element(sorted_groups_.begin(), at, sorted_groups_.end(), std::greater<>());
    low = *at;
  }
  const Bound all = {-kInfinity, vocabulary_ - 1};
  return Narrow(low, static_cast<double>(count), 0, all, false, [](float) { return 1.0; });
}

RowSampler::Bound RowSampler::BoundOfShare(double share, float factor, const Bound& bound) {
  const double total = WeighAll(factor, bound);
  // All logits below this have less than 1 − share together; half of that, for rounding.
  const double weight = (1 - share) * total / (2 * static_cast<double>(vocabulary_));
  const auto cut = static_cast<float>(static_cast<double>(largest_) + std::log2(weight) / static_cast<double>(factor));
  const float low = std::min(std::max(cut, bound.least), largest_);
  const double wanted = std::max(share * total, std::numeric_limits<double>::min());  // one token at least
  return Narrow(low, wanted, factor, bound, true, [](float weight) { return static_cast<double>(weight); });
}

void RowSampler::FindBest(int64_t count, double log_total, const Chosen& chosen) {
  const int64_t found = std::min(count, vocabulary_);
  int64_t gathered = 0;
  if (found > 0) {
    const Bound bound = BoundOfCount(found);
    gathered = GatherBetween(bound.least, largest_, bound);
  }
  few_.resize(static_cast<size_t>(std::max(kFew, gathered)));
  for (int64_t i = 0; i < gathered; ++i) {
    const auto at = static_cast<size_t>(i);
    few_[at] = {values_[at], tokens_[at], 0};
  }
  std::sort(few_.begin(), few_.begin() + gathered, IsBefore);
  for (int64_t i = 0; i < chosen.best; ++i) {
    const bool is_there = i < gathered;
    const auto logit = is_there ? static_cast<double>(few_[static_cast<size_t>(i)].logit) : 0;
    chosen.best_tokens[i] = is_there ? few_[static_cast<size_t>(i)].token : -1;
    chosen.best_log_probabilities[i] = !is_there
                                           ? std::numeric_limits<double>::quiet_NaN()
                                           : (logit == log_total && !std::isfinite(logit) ? 0 : logit - log_total);
  }
}

}  // namespace vkv::kernels
