// GraphStore: the graphs of the simulated device: lists of work, captured and ready to launch. Handles are never used
// again. Threads: guarded by its owner's lock.
#ifndef VKV_MOCK_GRAPH_STORE_H_
#define VKV_MOCK_GRAPH_STORE_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "mock/stream_model.h"

namespace vkv::mock {

class GraphStore {
 public:
  uint64_t Add(std::vector<Work> works) {
    graphs_.emplace(++last_handle_, std::move(works));
    return last_handle_;
  }
  // Null when it is not live.
  const std::vector<Work>* Find(uint64_t graph) const {
    const auto found = graphs_.find(graph);
    return found == graphs_.end() ? nullptr : &found->second;
  }
  bool Remove(uint64_t graph) { return graphs_.erase(graph) != 0; }
  uint64_t count() const { return graphs_.size(); }

 private:
  std::map<uint64_t, std::vector<Work>> graphs_;
  uint64_t last_handle_ = uint64_t{0x67} << 32;
};

}  // namespace vkv::mock

#endif  // VKV_MOCK_GRAPH_STORE_H_
