// GrowingTable: entries by number that never move, so that a thread can read an entry while another thread adds one.
//
// It grows in chunks, each twice as long as the one before. Threads: one at a time adds; a thread reads an entry
// whose number it got after the entry was added.
#ifndef VKV_GROWING_TABLE_H_
#define VKV_GROWING_TABLE_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace vkv {

template <typename Entry>
class GrowingTable {
 public:
  uint32_t size() const { return size_; }
  // Returns the number of a new entry, the next one.
  uint32_t Add() {
    const Place place = PlaceOf(size_);
    if (!chunks_[place.chunk]) chunks_[place.chunk] = std::make_unique<Entry[]>(kFirstEntries << place.chunk);
    return size_++;
  }
  Entry& operator[](uint32_t number) { return At(PlaceOf(number)); }
  const Entry& operator[](uint32_t number) const { return At(PlaceOf(number)); }

 private:
  static constexpr uint64_t kFirstEntries = 1 << 8;
  static constexpr int kFirstBits = std::bit_width(kFirstEntries) - 1;
  struct Place {
    size_t chunk;
    uint64_t at;
  };
  // Chunk k begins at entry kFirstEntries * (2^k - 1).
  static Place PlaceOf(uint32_t number) {
    const uint64_t moved = number + kFirstEntries;
    const int bits = std::bit_width(moved) - 1;
    return {static_cast<size_t>(bits - kFirstBits), moved - (uint64_t{1} << bits)};
  }
  Entry& At(const Place& place) const { return chunks_[place.chunk][place.at]; }

  std::array<std::unique_ptr<Entry[]>, 33 - kFirstBits> chunks_;
  uint32_t size_ = 0;
};

}  // namespace vkv

#endif  // VKV_GROWING_TABLE_H_
