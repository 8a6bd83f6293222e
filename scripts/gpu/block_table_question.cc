// The cost of a block table: decode attention over contiguous slots, and over 16-token blocks scattered in a pool of
// the same size, by the same kernel. Both are compared with each other and with the CPU before they are timed.
//
// Launches rotate over all slots, so that the device's cache serves neither, and the two kinds alternate.
#include <algorithm>
#include <cmath>

#include "gpu.h"
#include "scripts/gpu/paged_world.h"

namespace vkv::probe {
namespace {

constexpr int64_t kMostTokens = int64_t{4} << 20;  // 16 GiB of K and V, twice
constexpr size_t kSmallBytes = size_t{8} << 30;    // below, the device is simulated, or too small to tell anything
constexpr double kRoundUs = 15'000;
constexpr int kRounds = 5;
constexpr double kGoal = 0.8;
constexpr double kLeastBytes = 256e6;  // of a step that has the goal: shorter ones are as fast as their launches
constexpr float kAllowed = 1e-4f;

struct Shape {
  int query_heads;
  int sequences;
  int tokens;
};
const std::vector<Shape> kShapes = {{32, 1, 2048},    {32, 16, 2048},   {32, 64, 2048},  {32, 1, 16'384},
                                    {32, 16, 16'384}, {32, 64, 16'384}, {32, 1, 65'536}, {32, 16, 65'536},
                                    {32, 64, 65'536}, {8, 16, 2048},    {8, 16, 16'384}, {8, 64, 16'384},
                                    {64, 16, 2048},   {64, 16, 16'384}, {64, 64, 16'384}};
const std::vector<Shape> kSmallShapes = {{32, 1, 16}, {32, 3, 320}, {32, 1, 1024}, {8, 2, 320}, {64, 2, 320}};
constexpr int64_t kSmallTokens = 2048;

// The sequences of launch `turn`, each with `tokens` tokens, less a few that differ where `is_uneven`.
std::vector<Span> SpansOf(const Shape& shape, int64_t turn, int64_t slots, bool is_uneven) {
  std::vector<Span> spans;
  const int64_t first = turn % (slots / shape.sequences) * shape.sequences;
  for (int n = 0; n < shape.sequences; ++n) {
    const int fewer = is_uneven ? (5 * n + 3) % 16 : 0;
    spans.push_back({static_cast<int32_t>(first + n), shape.tokens - 1 - fewer, 1, n});
  }
  return spans;
}

float LargestDifference(const float* a, const float* b, size_t count) {
  float largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    if (!(difference <= largest)) largest = difference;  // NaN too
    if (std::isnan(difference)) return INFINITY;
  }
  return largest;
}

struct Differences {
  float between = 0;   // with a block table and without
  float from_cpu = 0;  // of one row and KV head, both ways
};

Differences Compare(PagedWorld& world, const Shape& shape, int64_t slots) {
  const std::vector<Span> spans = SpansOf(shape, slots / shape.sequences - 1, slots, /*is_uneven=*/true);
  std::vector<float> outputs[2];
  for (const Placing placing : {Placing::kContiguous, Placing::kBlockTable}) {
    world.Attend(placing, shape.query_heads, shape.tokens, spans);
    world.Synchronize();
    outputs[placing == Placing::kBlockTable] = world.Output(shape.sequences, shape.query_heads);
  }
  Differences differences;
  differences.between = LargestDifference(outputs[0].data(), outputs[1].data(), outputs[0].size());
  const int row = shape.sequences - 1;
  const int kv_head = row % PagedWorld::kKvHeads;
  const int group = shape.query_heads / PagedWorld::kKvHeads;
  const std::vector<float> wanted = world.Reference(shape.query_heads, shape.tokens, spans[row], kv_head);
  const size_t at = (size_t{1} * row * shape.query_heads + kv_head * group) * PagedWorld::kDim;
  for (const std::vector<float>& output : outputs) {
    differences.from_cpu = std::max(differences.from_cpu, LargestDifference(wanted.data(), &output[at], wanted.size()));
  }
  return differences;
}

struct StepTimes {
  double us[2] = {};        // of one step, by Placing
  double launching_us = 0;  // what queueing a step takes this CPU; a step takes no less
};

// Medians of rounds in turns, each of enough steps to tell.
StepTimes TimeSteps(PagedWorld& world, const Shape& shape, int64_t slots, bool is_small) {
  std::vector<double> rounds[2];
  std::vector<double> launching;
  int64_t turn = 0;
  const auto run = [&](Placing placing, int64_t launches) {
    double launching_us = 0;
    const double us = TimeUs([&] {
      launching_us = TimeUs([&] {
        for (int64_t launch = 0; launch < launches; ++launch, ++turn) {
          world.Attend(placing, shape.query_heads, shape.tokens, SpansOf(shape, turn, slots, /*is_uneven=*/false));
        }
      });
      world.Synchronize();
    });
    launching.push_back(launching_us / static_cast<double>(launches));
    return us / static_cast<double>(launches);
  };
  run(Placing::kBlockTable, 1);
  run(Placing::kContiguous, 1);
  const auto enough = is_small ? 1 : static_cast<int64_t>(kRoundUs / run(Placing::kContiguous, 3));
  const auto launches = std::clamp<int64_t>(enough, 1, 1000);
  for (int round = 0; round < (is_small ? 1 : kRounds); ++round) {
    for (const Placing placing : {Placing::kContiguous, Placing::kBlockTable}) {
      rounds[placing == Placing::kBlockTable].push_back(run(placing, launches));
    }
  }
  const auto median = [](std::vector<double>& times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  };
  return {{median(rounds[0]), median(rounds[1])}, median(launching)};
}

void ContiguousAgainstABlockTable(Gpu& gpu, const char* name) {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  Must(gpu.api().cuMemGetInfo(&free_bytes, &total_bytes), "cuMemGetInfo");
  const bool is_small = total_bytes < kSmallBytes;
  PagedWorld world(gpu, is_small ? kSmallTokens : kMostTokens);
  const double copy = world.copy_bytes_per_second();
  Line(name).Text("what", "the device's own copy").Number("GB/s", copy / 1e9);
  for (const Shape& shape : is_small ? kSmallShapes : kShapes) {
    const std::string what = std::to_string(shape.query_heads) + " over " + std::to_string(PagedWorld::kKvHeads) +
                             " heads, " + std::to_string(shape.sequences) + " × " + std::to_string(shape.tokens) +
                             " tokens";
    const int64_t slots = world.tokens() / shape.tokens;
    Line line(name);
    line.Text("what", what);
    if (slots < shape.sequences) {
      line.Text("skipped", "memory for " + std::to_string(world.tokens()) + " tokens only");
      continue;
    }
    const Differences differences = Compare(world, shape, slots);
    line.Text("difference", std::to_string(differences.between))
        .Text("from the CPU's", std::to_string(differences.from_cpu));
    if (!(std::max(differences.between, differences.from_cpu) <= kAllowed)) {
      line.Bool("matches", false);
      continue;
    }
    const double bytes = 2.0 * shape.sequences * shape.tokens * PagedWorld::kTokenBytes;
    const StepTimes times = TimeSteps(world, shape, slots, is_small);
    const auto [contiguous_us, table_us] = times.us;
    line.Bool("matches", true)
        .Number("contiguous µs", contiguous_us)
        .Number("contiguous GB/s", bytes / contiguous_us / 1e3)
        .Number("% of the copy", 100 * bytes / contiguous_us * 1e6 / copy);
    if (bytes >= kLeastBytes || is_small) {
      line.Text("goal 80 %", bytes / contiguous_us * 1e6 >= kGoal * copy ? "reached" : "missed");
    }
    line.Number("launching µs", times.launching_us)
        .Number("block table µs", table_us)
        .Number("block table GB/s", bytes / table_us / 1e3)
        .Number("its % of the copy", 100 * bytes / table_us * 1e6 / copy)
        .Number("block table, % of contiguous µs", 100 * table_us / contiguous_us);
  }
}

}  // namespace

const std::vector<NamedQuestion> kBlockTableQuestions = {
    {"contiguous slots against a block table", true, ContiguousAgainstABlockTable},
};

}  // namespace vkv::probe
