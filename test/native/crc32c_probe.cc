// Checksums by each way that this processor has, of random ranges at random places, against the table; and what was
// copied beside them; and sums of ranges of those of two parts. Prints `ways: NAMES` and `wrong: COUNT`. Usage:
// crc32c_probe SEED ROUNDS
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "crc32c.h"
#include "crc32c_fold.h"

namespace {

constexpr size_t kBytes = 1 << 20;
constexpr uint8_t kUntouched = 0xa5;

// Whether only [from, from + bytes) of `to` was written, with `wanted`.
bool IsCopy(const std::vector<uint8_t>& to, size_t from, const uint8_t* wanted, size_t bytes) {
  if (std::memcmp(to.data() + from, wanted, bytes) != 0) return false;
  for (size_t at = from < 64 ? 0 : from - 64; at < from; ++at)
    if (to[at] != kUntouched) return false;
  for (size_t at = from + bytes; at < to.size() && at < from + bytes + 64; ++at)
    if (to[at] != kUntouched) return false;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  std::mt19937_64 random(std::strtoull(argv[1], nullptr, 10));
  std::vector<uint8_t> from(kBytes), to(kBytes + 128);
  for (uint8_t& byte : from) byte = static_cast<uint8_t>(random());
  size_t wrong = 0;
  const auto check = [&](bool is_right) { wrong += is_right ? 0 : 1; };
  std::printf("ways: %s", vkv::Crc32cKind());
  for (size_t k = 0; k < vkv::kFoldings; ++k)
    if (vkv::AllFoldings()[k].is_supported) std::printf(" %s", vkv::AllFoldings()[k].name);
  const uint8_t* const nine = reinterpret_cast<const uint8_t*>("123456789");
  check(vkv::Crc32c(nine, 9) == 0xe3069283 && vkv::Crc32cByTable(nine, 9) == 0xe3069283);  // RFC 3720's check value
  for (int rounds = std::atoi(argv[2]); rounds > 0; --rounds) {
    const size_t scale = size_t{1} << (random() % 20);
    const size_t bytes = random() % scale, at = random() % (kBytes - bytes), target = random() % (kBytes - bytes);
    const uint32_t before = random() % 2 == 0 ? 0 : static_cast<uint32_t>(random());
    const uint8_t* const source = from.data() + at;
    const uint32_t sum = vkv::Crc32cByTable(source, bytes, before);
    check(vkv::Crc32c(source, bytes, before) == sum);
    std::memset(to.data(), kUntouched, to.size());
    check(vkv::CopyWithCrc32c(to.data() + target, source, bytes, before) == sum);
    check(IsCopy(to, target, source, bytes));
    const size_t parted = random() % (bytes + 1);
    const uint32_t first = vkv::Crc32c(source, parted, before), second = vkv::Crc32c(source + parted, bytes - parted);
    check(vkv::Crc32cJoint(bytes - parted).Join(first, second) == sum);
    const size_t folded = bytes / vkv::kFoldBytes * vkv::kFoldBytes;
    const uint32_t folded_sum = vkv::Crc32cByTable(source, folded, before);
    for (size_t k = 0; folded > 0 && k < vkv::kFoldings; ++k) {
      const vkv::Folding& way = vkv::AllFoldings()[k];
      if (!way.is_supported) continue;
      check(~way.fold(source, folded, ~before) == folded_sum);
      const size_t aligned = 64 - reinterpret_cast<uintptr_t>(to.data()) % 64;
      std::memset(to.data(), kUntouched, to.size());
      check(~way.fold_and_copy(to.data() + aligned, source, folded, ~before) == folded_sum);
      check(IsCopy(to, aligned, source, folded));
    }
  }
  std::printf("\nwrong: %zu\n", wrong);
  return 0;
}
