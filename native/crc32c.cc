#include "crc32c.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "crc32c_fold.h"
#include "crc32c_polynomial.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#define VKV_CRC_TARGET __attribute__((target("sse4.2")))
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#include <sys/auxv.h>
#define VKV_CRC_TARGET __attribute__((target("+crc")))
#endif

namespace vkv {
namespace {

// Stays in the processor's first-level cache between the sum and the copy: three long runs.
constexpr size_t kPieceBytes = 12 << 10;
constexpr size_t kLineBytes = 64;

constexpr std::array<uint32_t, 256> MakeByteTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    table[byte] = byte;
    for (int bit = 0; bit < 8; ++bit) table[byte] = TimesX(table[byte]);
  }
  return table;
}
constexpr std::array<uint32_t, 256> kByteTable = MakeByteTable();

#ifdef VKV_CRC_TARGET

// Moves a sum over zeros: Shift(sum) is the sum after as many zero bytes more, by tables for its four bytes.
using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

constexpr ShiftTable MakeShiftTable(uint64_t bytes) {
  const uint32_t power = PowerOfX(8 * bytes);
  ShiftTable table{};
  for (size_t at = 0; at < 4; ++at)
    for (uint32_t byte = 0; byte < 256; ++byte) table[at][byte] = Product(power, byte << (8 * at));
  return table;
}

constexpr size_t kLongRun = 4096, kShortRun = 256;
constexpr ShiftTable kLongShift = MakeShiftTable(kLongRun);
constexpr ShiftTable kShortShift = MakeShiftTable(kShortRun);

uint32_t Shift(const ShiftTable& table, uint32_t sum) {
  return table[0][sum & 255] ^ table[1][(sum >> 8) & 255] ^ table[2][(sum >> 16) & 255] ^ table[3][sum >> 24];
}

uint64_t Load(const uint8_t* from) {
  uint64_t word;
  std::memcpy(&word, from, sizeof word);
  return word;
}

#if defined(__x86_64__)
VKV_CRC_TARGET inline uint64_t Step8(uint64_t sum, uint64_t word) { return _mm_crc32_u64(sum, word); }
VKV_CRC_TARGET inline uint32_t Step1(uint32_t sum, uint8_t byte) { return _mm_crc32_u8(sum, byte); }
bool HasInstruction() { return __builtin_cpu_supports("sse4.2"); }
constexpr const char* kInstruction = "sse4.2";
#else
VKV_CRC_TARGET inline uint64_t Step8(uint64_t sum, uint64_t word) {
  return __crc32cd(static_cast<uint32_t>(sum), word);
}
VKV_CRC_TARGET inline uint32_t Step1(uint32_t sum, uint8_t byte) { return __crc32cb(sum, byte); }
bool HasInstruction() { return (getauxval(AT_HWCAP) & (1ul << 7)) != 0; }  // HWCAP_CRC32
constexpr const char* kInstruction = "armv8";
#endif

// The instruction takes three cycles and one can start in each: three runs side by side, joined afterwards.
template <size_t kRun>
VKV_CRC_TARGET uint32_t ThreeRuns(const ShiftTable& shift, const uint8_t*& from, size_t& bytes, uint32_t sum) {
  while (bytes >= 3 * kRun) {
    uint64_t first = sum, second = 0, third = 0;
    for (size_t at = 0; at < kRun; at += 8) {
      first = Step8(first, Load(from + at));
      second = Step8(second, Load(from + kRun + at));
      third = Step8(third, Load(from + 2 * kRun + at));
    }
    sum = Shift(shift, Shift(shift, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second)) ^
          static_cast<uint32_t>(third);
    from += 3 * kRun;
    bytes -= 3 * kRun;
  }
  return sum;
}

// The register of the sum, which is the sum inverted, behind `bytes` bytes more.
VKV_CRC_TARGET uint32_t ByInstruction(const uint8_t* from, size_t bytes, uint32_t state) {
  uint32_t sum = ThreeRuns<kLongRun>(kLongShift, from, bytes, state);
  sum = ThreeRuns<kShortRun>(kShortShift, from, bytes, sum);
  for (; bytes >= 8; from += 8, bytes -= 8) sum = static_cast<uint32_t>(Step8(sum, Load(from)));
  for (; bytes > 0; ++from, --bytes) sum = Step1(sum, *from);
  return sum;
}

#endif  // VKV_CRC_TARGET

}  // namespace

uint32_t Crc32cByTable(const void* data, size_t bytes, uint32_t before) {
  const auto* from = static_cast<const uint8_t*>(data);
  uint32_t sum = ~before;
  for (size_t at = 0; at < bytes; ++at) sum = kByteTable[(sum ^ from[at]) & 255] ^ (sum >> 8);
  return ~sum;
}

uint32_t Crc32c(const void* data, size_t bytes, uint32_t before) {
  const auto* from = static_cast<const uint8_t*>(data);
  uint32_t state = ~before;
  if (const Folding* const folding = BestFolding(); folding != nullptr && bytes >= kFoldBytes) {
    const size_t folded = bytes / kFoldBytes * kFoldBytes;
    state = folding->fold(from, folded, state);
    from += folded;
    bytes -= folded;
  }
#ifdef VKV_CRC_TARGET
  static const bool has_instruction = HasInstruction();
  if (has_instruction) return ~ByInstruction(from, bytes, state);
#endif
  return Crc32cByTable(from, bytes, ~state);
}

uint32_t CopyWithCrc32c(void* target, const void* source, size_t bytes, uint32_t before) {
  auto* to = static_cast<uint8_t*>(target);
  const auto* from = static_cast<const uint8_t*>(source);
  uint32_t sum = before;
  const auto copy = [&](size_t count) {
    sum = Crc32c(from, count, sum);
    std::memcpy(to, from, count);
    to += count;
    from += count;
    bytes -= count;
  };
  if (const Folding* const folding = BestFolding(); folding != nullptr && bytes >= 2 * kFoldBytes) {
    copy(-reinterpret_cast<uintptr_t>(to) % kLineBytes);
    const size_t folded = bytes / kFoldBytes * kFoldBytes;
    sum = ~folding->fold_and_copy(to, from, folded, ~sum);
    to += folded;
    from += folded;
    bytes -= folded;
  }
  while (bytes > 0) copy(std::min(bytes, kPieceBytes));
  return sum;
}

Crc32cJoint::Crc32cJoint(uint64_t bytes) : power_(PowerOfX(8 * bytes)) {}

uint32_t Crc32cJoint::Join(uint32_t first, uint32_t second) const { return Product(power_, first) ^ second; }

const char* Crc32cKind() {
  if (BestFolding() != nullptr) return BestFolding()->name;
#ifdef VKV_CRC_TARGET
  if (HasInstruction()) return kInstruction;
#endif
  return "table";
}

}  // namespace vkv
