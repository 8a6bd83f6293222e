#include "kept_rows.h"

namespace vkv {

void KeptRows::Keep(RowId id, std::span<const PageId> pages) {
  if (id >= by_id_.size()) by_id_.resize(id + 1);
  std::vector<PageId>& kept = by_id_[id];
  if (kept.empty() && !pages.empty()) ++count_;
  if (pages.size() < kept.size()) {
    pool_.Give(std::span(kept).subspan(pages.size()));
    kept.resize(pages.size());
  }
  const std::span<const PageId> more = pages.subspan(kept.size());
  pool_.Share(more);
  kept.insert(kept.end(), more.begin(), more.end());
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
  for (const std::vector<PageId>& kept : by_id_)
    for (const PageId page : kept)
      if (page != kNoPage) pages.push_back(page);
}

void KeptRows::DropAll() {
  for (size_t id = 0; id < by_id_.size(); ++id) Drop(static_cast<RowId>(id));
}

}  // namespace vkv
