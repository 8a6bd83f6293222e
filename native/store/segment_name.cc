#include "store/segment_name.h"

namespace vkv::store {

std::string SegmentName(const Epoch& epoch, uint64_t number) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = "seg-";
  for (const uint8_t byte : epoch.bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  const std::string text = std::to_string(number);
  return name + "-" + std::string(text.size() < 8 ? 8 - text.size() : 0, '0') + text + ".kvs";
}

bool ReadSegmentName(const std::string& name, Epoch& epoch, uint64_t& number) {
  constexpr size_t kDigitsAt = 4, kNumberAt = 37;
  if (name.size() < kNumberAt + 8 || name.size() > kNumberAt + 24 || !name.starts_with("seg-")) return false;
  const auto value = [](char digit) {
    return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
  };
  for (size_t k = 0; k < epoch.bytes.size(); ++k) {
    const int high = value(name[kDigitsAt + 2 * k]), low = value(name[kDigitsAt + 2 * k + 1]);
    if (high < 0 || low < 0) return false;
    epoch.bytes[k] = static_cast<uint8_t>(high << 4 | low);
  }
  number = 0;
  for (size_t at = kNumberAt; at < name.size() && name[at] >= '0' && name[at] <= '9' && at < kNumberAt + 18; ++at)
    number = number * 10 + static_cast<uint64_t>(name[at] - '0');
  return name == SegmentName(epoch, number);
}

}  // namespace vkv::store
