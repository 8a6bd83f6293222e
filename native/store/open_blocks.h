// OpenBlocks: files of blocks whose tokens were read lately, kept open with their headers, so that the next few tokens
// of a block cost neither an opening nor a read of its header. Bounded; closes what was used longest ago. A file that
// was replaced or deleted must be dropped: what is being read of it goes on. Threads: any.
#ifndef VKV_STORE_OPEN_BLOCKS_H_
#define VKV_STORE_OPEN_BLOCKS_H_

#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "store/block_header.h"

namespace vkv::store {

struct OpenBlock {
  std::unique_ptr<BlockFile> file;
  BlockHeader header;
};

class OpenBlocks {
 public:
  // Null where it is not kept. `drops` is to be handed to Keep.
  std::shared_ptr<const OpenBlock> Find(const std::string& name, uint64_t& drops);
  // Keeps a file that was opened after the Find that gave `drops`, unless any file was dropped since: it may be the
  // one.
  void Keep(const std::string& name, std::shared_ptr<const OpenBlock> block, uint64_t drops);
  void Drop(const std::string& name);
  void Clear();
  // Closes all where a call was refused for want of descriptors. True: a second try may succeed.
  bool Relieve(int error);
  size_t count();

 private:
  struct Kept {
    std::string name;
    std::shared_ptr<const OpenBlock> block;
  };

  void DropLast();

  std::mutex mutex_;      // guards all below
  std::list<Kept> kept_;  // the last one used first
  std::unordered_map<std::string, std::list<Kept>::iterator> by_name_;
  uint64_t header_bytes_ = 0, drops_ = 0;
};

}  // namespace vkv::store

#endif  // VKV_STORE_OPEN_BLOCKS_H_
