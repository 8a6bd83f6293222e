// Runs the CUDA kernels of the dense arithmetic on emulated threads and compares each with its reference: random
// shapes, types and alignments; products also with the same rows by themselves, bit by bit. Usage: dense_probe SEED
// ROUNDS. One line per kernel that ran: its name, runs, and "ok" or what was wrong.
#include "cuda_emulation.h"
//
#include "kernel_probe.h"
//
#include <algorithm>
#include <cstring>

#include "kernels/cuda/kernels.cu"
#include "kernels/dense/cuda/dense_launches.h"
#include "kernels/dense/dense_reference.h"

namespace {

using namespace vkv;
using namespace vkv::kernels;
using namespace vkv::probe;

Status Run(const cuda::Launch& launch) {
  using namespace cuda;
  const std::string name = launch.name;
  last_kernel = name;
  ++outcomes[name].runs;
#define VKV_TRY(kernel) \
  if (name == #kernel) return Emulate(kernel, launch), Ok()
#define VKV_TRY_MULTIPLY(type)       \
  VKV_TRY(vkv_multiply_##type##_r1); \
  VKV_TRY(vkv_multiply_##type##_r2); \
  VKV_TRY(vkv_multiply_##type##_r4); \
  VKV_TRY(vkv_multiply_##type##_r8)
  VKV_TRY_MULTIPLY(f32);
  VKV_TRY_MULTIPLY(f16);
  VKV_TRY_MULTIPLY(bf16);
  VKV_TRY(vkv_normalize);
  VKV_TRY(vkv_rotate);
  VKV_TRY(vkv_gate);
  VKV_TRY(vkv_cap);
  VKV_TRY(vkv_gather);
  VKV_TRY(vkv_bias);
  VKV_TRY(vkv_narrow);
  Note("no such kernel");
  return Ok();
}

// Random elements, which start `shift` elements behind a line of memory, with room behind them that nobody may write
// to.
class Buffer {
 public:
  Buffer(size_t count, Dtype dtype, size_t shift = 0)
      : bytes_(Line(count * ElementBytes(dtype)) + 2 * kLine), offset_(shift * ElementBytes(dtype)) {
    for (size_t i = 0; i < count; ++i) {
      if (dtype == Dtype::kFloat32) floats()[i] = NextFloat();
      if (dtype == Dtype::kFloat16) static_cast<Half*>(data())[i] = ToHalf(NextFloat());
      if (dtype == Dtype::kBfloat16) static_cast<Bfloat*>(data())[i] = ToBfloat(NextFloat());
    }
  }
  void* data() { return bytes_.data() + (kLine - reinterpret_cast<uint64_t>(bytes_.data()) % kLine) + offset_; }
  float* floats() { return static_cast<float*>(data()); }

 private:
  static constexpr size_t kLine = 64;
  static size_t Line(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine + kLine; }
  std::vector<uint8_t> bytes_;
  size_t offset_;
};

void Compare(float* actual, float* expected, size_t count, float allowed, const std::string& about) {
  for (size_t i = 0; i < count; ++i) {
    const float difference = std::fabs(actual[i] - expected[i]);
    if (!(difference <= allowed))
      return Note(about + ", element " + std::to_string(i) + " is off by " + std::to_string(difference));
  }
}

void MultiplyOnce() {
  const auto dtype = static_cast<Dtype>(Next() % 3);
  const int64_t rows = Pick({1, 1, 2, 3, 5, 8, 9, 20});
  const int64_t inputs = Pick({1, 7, 8, 100, 255, 256, 264, 700});
  const int64_t outputs = Pick({1, 3, 8, 16, 17, 40});
  const size_t shift = Pick({0, 0, 1});
  Buffer input(rows * inputs, Dtype::kFloat32, shift);
  Buffer weight(outputs * inputs, dtype, Pick({0, 0, 1}));
  Buffer bias(outputs, Dtype::kFloat32);
  Buffer before(rows * outputs, Dtype::kFloat32);
  Product product = {weight.data(),  Next() % 2 == 0 ? bias.floats() : nullptr, nullptr, outputs, dtype,
                     Next() % 2 == 0};
  std::vector<float> ours(before.floats(), before.floats() + rows * outputs);
  std::vector<float> theirs = ours;
  product.output = theirs.data();
  reference::Multiply({input.floats(), rows, inputs}, product);
  product.output = ours.data();
  (void)cuda::LaunchMultiply({input.floats(), rows, inputs}, product, Run);
  const std::string about = std::to_string(rows) + " x " + std::to_string(inputs) + " -> " + std::to_string(outputs);
  Compare(ours.data(), theirs.data(), ours.size(), 1e-6f * (4 + std::sqrt(static_cast<float>(inputs))), about);
  // One of the rows by itself, somewhere else: the same bits.
  const int64_t row = Next() % rows;
  Buffer alone(inputs, Dtype::kFloat32, 1 - shift);
  std::copy_n(input.floats() + row * inputs, inputs, alone.floats());
  std::vector<float> own(before.floats() + row * outputs, before.floats() + (row + 1) * outputs);
  product.output = own.data();
  (void)cuda::LaunchMultiply({alone.floats(), 1, inputs}, product, Run);
  if (std::memcmp(own.data(), ours.data() + row * outputs, outputs * sizeof(float)) != 0)
    Note(about + ": a row alone differs");
}

void NormalizeOnce() {
  const int64_t rows = Pick({1, 3, 6});
  const int64_t width = Pick({1, 5, 64, 255, 256, 700});
  Buffer input(rows * width, Dtype::kFloat32);
  Buffer weight(width, Dtype::kFloat32);
  const bool adds = Next() % 2 == 0;
  const bool is_in_place = Next() % 2 == 0;
  Buffer before(rows * width, Dtype::kFloat32);
  float* const output = is_in_place ? input.floats() : before.floats();
  std::vector<float> theirs(output, output + rows * width);
  reference::Normalize({input.floats(), weight.floats(), theirs.data(), width, 1e-5f, adds}, rows);
  (void)cuda::LaunchNormalize({input.floats(), weight.floats(), output, width, 1e-5f, adds}, rows, Run);
  Compare(output, theirs.data(), theirs.size(), 4e-6f, "width " + std::to_string(width));
}

void RotateOnce() {
  const int64_t rows = Pick({1, 4, 1000});  // more than one launch has positions for
  const int64_t heads = Pick({1, 3});
  const int64_t dim = rows == 1000 ? 2 : Pick({2, 6, 64, 200});
  Buffer table(9 * dim, Dtype::kFloat32);
  std::vector<int32_t> positions(rows);
  for (int32_t& position : positions) position = static_cast<int32_t>(Next() % 9);
  Buffer input(rows * heads * dim, Dtype::kFloat32);
  std::vector<float> theirs(input.floats(), input.floats() + rows * heads * dim);
  reference::Rotate({theirs.data(), positions.data(), table.floats(), heads, dim}, rows);
  (void)cuda::LaunchRotate({input.floats(), positions.data(), table.floats(), heads, dim, Next() % 2 == 0}, rows, Run);
  Compare(input.floats(), theirs.data(), theirs.size(), 1e-6f, "dim " + std::to_string(dim));
}

void GateOnce() {
  const int64_t count = Pick({1, 255, 1024, 1025, 5000});
  Buffer gate(count, Dtype::kFloat32);
  Buffer up(count, Dtype::kFloat32);
  for (int64_t i = 0; i < count; i += 3) gate.floats()[i] *= 200;  // where the exponential overflows
  const auto activation = static_cast<Activation>(Next() % 2);
  std::vector<float> theirs(count);
  reference::Gate({gate.floats(), up.floats(), theirs.data(), count, activation});
  (void)cuda::LaunchGate({gate.floats(), up.floats(), gate.floats(), count, activation}, Run);
  Compare(gate.floats(), theirs.data(), theirs.size(), 2e-5f, std::to_string(count) + " elements");
}

void CapOnce() {
  const int64_t count = Pick({1, 255, 1024, 1025, 5000});
  const float cap = static_cast<float>(Pick({1, 30}));
  Buffer values(count, Dtype::kFloat32);
  for (int64_t i = 0; i < count; i += 3) values.floats()[i] *= 200;
  std::vector<float> theirs(values.floats(), values.floats() + count);
  reference::Cap({theirs.data(), count, cap});
  (void)cuda::LaunchCap({values.floats(), count, cap}, Run);
  Compare(values.floats(), theirs.data(), theirs.size(), 1e-5f, std::to_string(count) + " elements capped");
}

void GatherOnce() {
  const auto dtype = static_cast<Dtype>(Next() % 3);
  const int64_t width = Pick({1, 40, 300});
  std::vector<int32_t> tokens(Pick({1, 5, 970}));
  for (int32_t& token : tokens) token = static_cast<int32_t>(Next() % 7);
  Buffer table(7 * width, dtype);
  std::vector<float> ours(tokens.size() * width, NAN);
  std::vector<float> theirs = ours;
  const float factor = Next() % 2 == 0 ? 1 : 5.66f;
  (void)cuda::LaunchGather({table.data(), ours.data(), width, dtype, Next() % 2 == 0, factor}, tokens, Run);
  reference::Gather({table.data(), theirs.data(), width, dtype, false, factor}, tokens);
  Compare(ours.data(), theirs.data(), theirs.size(), 0, "width " + std::to_string(width));
}

void PrepareOnce() {
  const int64_t rows = Pick({1, 4});
  const int64_t outputs = Pick({1, 300, 1100});
  const bool adds = Next() % 2 == 0;
  Buffer bias(outputs, Dtype::kFloat32);
  Buffer output(rows * outputs, Dtype::kFloat32);
  std::vector<float> theirs(output.floats(), output.floats() + rows * outputs);
  reference::SpreadBias(bias.floats(), theirs.data(), rows, outputs, adds);
  (void)cuda::LaunchBias({bias.floats(), output.floats(), rows, outputs, adds}, Run);
  Compare(output.floats(), theirs.data(), theirs.size(), 0, std::to_string(outputs) + " outputs");
  const Dtype dtype = Next() % 2 == 0 ? Dtype::kFloat16 : Dtype::kBfloat16;
  std::vector<uint16_t> narrow(outputs, 7);
  std::vector<uint16_t> expected(outputs, 7);
  (void)cuda::LaunchNarrow({bias.floats(), narrow.data(), outputs, dtype}, Run);
  reference::Narrow(bias.floats(), expected.data(), dtype, outputs);
  if (narrow != expected) Note("other bits than the reference");
}

}  // namespace

int main(int argc, char** argv) {
  return RunRounds(argc, argv, [] {
    MultiplyOnce();
    MultiplyOnce();
    NormalizeOnce();
    RotateOnce();
    GateOnce();
    CapOnce();
    GatherOnce();
    PrepareOnce();
  });
}
