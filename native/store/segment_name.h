// Names of a store's segments: "seg-<epoch>-<number>.kvs", the epoch in 32 hexadecimal digits, the number in 8 or more.
#ifndef VKV_STORE_SEGMENT_NAME_H_
#define VKV_STORE_SEGMENT_NAME_H_

#include <cstdint>
#include <string>

#include "store/store_format.h"

namespace vkv::store {

std::string SegmentName(const Epoch& epoch, uint64_t number);
// False where it is no such name.
bool ReadSegmentName(const std::string& name, Epoch& epoch, uint64_t& number);

}  // namespace vkv::store

#endif  // VKV_STORE_SEGMENT_NAME_H_
