// HeaderCache: headers of records whose tokens were read lately, so that the next few tokens of a record cost no read
// of its header. Their sums held when they were read, and a record never changes: where its file has gone, its place
// is not looked up any more. Bounded; drops what was used longest ago. Threads: any.
#ifndef VKV_STORE_HEADER_CACHE_H_
#define VKV_STORE_HEADER_CACHE_H_

#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "store/segment.h"

namespace vkv::store {

class HeaderCache {
 public:
  // Null where it is not kept.
  std::shared_ptr<const RecordHeader> Find(const RecordPlace& place);
  void Keep(const RecordPlace& place, std::shared_ptr<const RecordHeader> header);

 private:
  using Name = std::pair<uint64_t, uint64_t>;  // of its segment, which is never used again; offset there
  struct Kept {
    Name name;
    uint64_t bytes;
    std::shared_ptr<const RecordHeader> header;
  };

  std::mutex mutex_;
  std::list<Kept> kept_;  // the last one used first
  std::map<Name, std::list<Kept>::iterator> by_name_;
  uint64_t bytes_ = 0;
};

}  // namespace vkv::store

#endif  // VKV_STORE_HEADER_CACHE_H_
