#include "kept_rows.h"

namespace vkv {

void KeptRows::Keep(RowId id, std::span<const PageId> pages) {
  if (id >= by_id_.size()) by_id_.resize(id + 1);
  pool_.Share(pages);
  Drop(id);
  by_id_[id].assign(pages.begin(), pages.end());
  ++count_;
}

void KeptRows::Drop(RowId id) {
  if (id >= by_id_.size() || by_id_[id].empty()) return;
  pool_.Give(by_id_[id]);
  by_id_[id].clear();
  --count_;
}

std::span<const PageId> KeptRows::pages(RowId id) const {
  if (id >= by_id_.size()) return {};
  return by_id_[id];
}

void KeptRows::Collect(std::vector<PageId>& pages) const {
  for (const std::vector<PageId>& kept : by_id_) pages.insert(pages.end(), kept.begin(), kept.end());
}

void KeptRows::DropAll() {
  for (size_t id = 0; id < by_id_.size(); ++id) Drop(static_cast<RowId>(id));
}

}  // namespace vkv
