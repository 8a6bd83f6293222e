// Scratch: floats that a command's threads work in, made once and kept for the next command. They begin on a cache
// line: vectors that lie across two lines take twice as long to load, which is where the inner loops' time goes.
#ifndef VKV_KERNELS_CPU_SCRATCH_H_
#define VKV_KERNELS_CPU_SCRATCH_H_

#include <cstdint>
#include <memory>
#include <new>

namespace vkv::kernels {

// Floats of a cache line: what is cut into parts of so many leaves every part on lines of its own.
inline constexpr int64_t kLineFloats = 16;
constexpr int64_t WholeLines(int64_t floats) { return (floats + kLineFloats - 1) / kLineFloats * kLineFloats; }

class Scratch {
 public:
  // Makes room for that many floats; growing loses their content.
  void Reserve(int64_t floats) {
    if (floats <= floats_) return;
    const auto bytes = static_cast<size_t>(floats) * sizeof(float);
    data_.reset(static_cast<float*>(::operator new(bytes, kLine)));
    floats_ = floats;
  }

  float* data() const { return data_.get(); }

 private:
  static constexpr std::align_val_t kLine{kLineFloats * sizeof(float)};
  struct Free {
    void operator()(float* data) const { ::operator delete(data, kLine); }
  };

  std::unique_ptr<float, Free> data_;
  int64_t floats_ = 0;
};

}  // namespace vkv::kernels

#endif  // VKV_KERNELS_CPU_SCRATCH_H_
