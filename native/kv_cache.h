// KvCache: slots and their rows. Grows, shrinks and shares them as transactions; knows nothing of sequences, lengths or
// policy.
//
// Invariants: a slot maps the rows [first, rows), and has exactly the pages Layout says for them, mapped and accessible
// in every reservation; an empty one has first = rows. `first` is 0 until the slot slides. Each page is referred to
// once per slot that maps it, and once more while its row is kept. A slot that someone works on is busy; only its
// holder touches its pages. A slot in which the driver refused an undo is quarantined: what it left mapped is kept
// aside, and it is not used again. Threads: any. The mutex guards the slots' records; it is not held across driver
// calls (Close alone excepted: no other thread is left). Waiting happens only in Hold, for a slot the other thread
// works on: at most one row's mapping.
#ifndef VKV_KV_CACHE_H_
#define VKV_KV_CACHE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "kept_rows.h"
#include "layout.h"
#include "page_pool.h"
#include "row_ranges.h"
#include "status.h"

namespace vkv {

class PinnedArena;

struct GrowCommand {
  int32_t slot;
  int32_t rows;  // the rows it shall have; no effect if it has as many
};

// Rows that a slot no longer needs in front, and those that it needs next.
struct SlideCommand {
  int32_t slot;
  int32_t first;  // where it begins then; no effect where it begins there or later
  int32_t rows;   // what it lacks of the rows before this gets the pages that go, as far as they reach
};

// A row of a slot, kept as `id`.
struct KeepCommand {
  int32_t slot;
  int32_t row;
  RowId id;
};

struct CopyCommand {
  int32_t slot;
  int32_t row;
  int32_t from_slot;  // one that maps the row at the same place, or -1: it is kept as `id`
  RowId id;
  uint64_t tokens;  // of the slot, from its start: those of them that are in the row are copied
  // With `from_slot`: queued there, behind what that slot's rows wait for. Without: done when the call returns.
  std::optional<Stream> stream;
};

// Kept rows that come behind a slot's rows, which end at row `from`.
struct KeptRun {
  int32_t from;
  std::span<const int32_t> ids;
};

// What a slot gets for a new sequence.
struct AdmitCommand {
  int32_t slot;
  std::optional<Tenant> tenant;     // as Assign; none: whose it was
  KeptRun kept;                     // mapped behind its rows
  int32_t rows;                     // the rows it shall have then: what it lacks gets pages of its own
  int32_t earmarked_rows;           // as Earmark
  std::optional<CopyCommand> copy;  // into rows of its own
};

// A slot that gets pages of its own for a row.
struct DetachCommand {
  int32_t slot;
  int32_t row;
  uint64_t tokens;    // of the slot, from its start: those of them that are in the row are copied
  int32_t from_slot;  // another one that maps the row: the copy is queued on `stream`; -1: done when the call returns
  Stream stream;
};

// Tokens that are written to a slot, from one place in a packed source.
struct PutCommand {
  int32_t slot;
  int32_t from;    // token of the slot
  int32_t tokens;  // how many
  int32_t at;      // token of the source
};

// Packed tokens in memory of a driver: the cache's own, or one whose bytes come through `arena`; null: it copies to the
// slots' addresses.
struct FetchSource {
  Driver* driver;
  uint64_t address;
  uint64_t bytes;
  Stream stream;
  PinnedArena* arena;
};

struct CacheCounters {
  uint64_t foreground_rows = 0, foreground_maps = 0;  // maps and unmaps count pages
  uint64_t background_rows = 0, background_maps = 0;
  uint64_t aliased_rows = 0, alias_maps = 0;
  uint64_t detached_rows = 0;
  uint64_t copied_bytes = 0;
  uint64_t unmapped_rows = 0, unmaps = 0;  // slid rows among them
  uint64_t slid_rows = 0;                  // unmapped in front
  uint64_t handed_rows = 0;                // mapped with pages of rows that slid, in no other counter of mapped rows
  uint64_t scrubbed_pages = 0;
  uint64_t mapped_rows = 0;        // now
  uint64_t mapped_pages = 0;       // now, each mapping counted
  uint64_t quarantined_slots = 0;  // now
  uint64_t kept_rows = 0;          // now
};

class KvCache {
 public:
  // Reserves all address ranges; on failure none stay. `scrub`: zero a page before another tenant gets it.
  static Status Open(std::shared_ptr<PagePool> pool, Layout layout, bool scrub, std::unique_ptr<KvCache>& cache);
  ~KvCache();  // closes; what the driver refuses to take back is left to the process's end
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  const Layout& layout() const { return ranges_.layout(); }
  PagePool& pool() { return *pool_; }
  Driver& driver() const { return pool_->driver(); }
  uint64_t address(size_t reservation) const { return ranges_.address(reservation); }
  CacheCounters counters() const;

  // Maps what every named slot lacks, all or nothing for the whole list. On failure rows, pages and earmarks are as
  // before. kInvalidArgument where a slot is named twice.
  Status Grow(std::span<const GrowCommand> commands);
  // The mapper's way: one more row for `slot` unless it has `rows` already. `is_done` says nothing is left to do.
  Status GrowAhead(int32_t slot, int32_t rows, bool& is_done);
  // Unmaps from the end until the slot ends at row `rows`, gives the pages back and drops the earmark. Where that is
  // before its first row it is empty and begins there. On failure all is as before.
  Status Shrink(int32_t slot, int32_t rows);
  // Unmaps the rows before `first`, slot by slot in order. Their pages become the rows that the slot lacks, content and
  // all (it is the same tenant's); what is left, and pages that others refer to too, goes to the pool. Where no row is
  // left the slot is empty and begins at `first`; an empty one moves there, also backwards. The earmark moves along:
  // pages that go are set aside again before another thread can take them. Where too few come free, since others refer
  // to them, and the pool has none either, it loses its last rows.
  //
  // A failure ends the call: slots before that one have slid, those behind are as before. Unmapping was refused: the
  // slot is as before; where the undo was too, the rows before `first` are gone and it is in quarantine. Mapping was
  // refused: it has slid, and the pages went to the pool; where the undo was too, it is in quarantine, with the rows
  // that are left.
  Status Slide(std::span<const SlideCommand> commands);
  // Sets pages aside until the slot has `rows` rows, counted from its first one (fewer than now: drops the earmark,
  // which always succeeds). kOutOfPages changes nothing.
  Status Earmark(int32_t slot, int32_t rows);
  // The slot's next content belongs to `tenant`; scrubs mapped rows of another one if the cache scrubs.
  Status Assign(int32_t slot, Tenant tenant);

  // Sharing: all from the owner's thread.

  // Keeps mapped rows under their numbers, whatever the slots do later. All of them, or none: kInternal when one is not
  // mapped, or its number is kMostRowIds or more.
  Status Keep(std::span<const KeepCommand> commands);
  // Ends it: pages that no slot maps are free.
  void Drop(std::span<const int32_t> ids);
  // Maps kept rows behind the slot's rows. Earmarked pages that this saves are free again.
  // On failure nothing has changed.
  Status Alias(int32_t slot, const KeptRun& kept);
  // Gives the slot all of the command, or nothing: on failure rows, pages and earmarks are as before; only when the
  // driver refuses the undo, the slot is in quarantine, with the rows it had. kOutOfPages comes before any driver call.
  // What was scrubbed for the tenant stays scrubbed. Pre: the copy's tokens lie in rows of its own.
  Status Admit(const AdmitCommand& command);
  // Maps what `from_slot` maps before row `rows` in a slot that is empty, at the same place, for the same tenant. Pages
  // set aside that this saves are free again. kInternal: the slot is not empty, or `from_slot` does not reach from
  // there to `rows`. On failure as Admit.
  Status ShareRows(int32_t from_slot, int32_t slot, int32_t rows);
  // Copies a row's first tokens into a row that is the slot's alone. On failure nothing is queued any more, and that
  // row holds anything.
  Status CopyRow(const CopyCommand& command);
  // Writes whole tokens of a cache with one reservation, from plain memory with `source_bytes` bytes; done when it
  // returns. Pre: no queued work uses those tokens. kInternal, before anything is written, when a slot has no rows for
  // its tokens or the source is too short; after the driver's failure those tokens hold anything.
  Status Put(std::span<const PutCommand> commands, const void* source, uint64_t source_bytes);
  // Reads bytes of a slot in a reservation, of which few are read or which may never have been touched.
  // kCopyOutOfRange where they are not mapped.
  Status Read(int32_t slot, size_t reservation, uint64_t offset, std::span<uint8_t> to);
  // Put from memory of a device, of `source.bytes` bytes: queued on its stream where the source's driver has
  // streams and the arena, if any, can be written by it; else done when the call returns. After a failure some of it
  // may be queued.
  Status Fetch(std::span<const PutCommand> commands, const FetchSource& source);
  // kInternal unless the slot has rows for its tokens [from, to).
  Status CheckTokens(int32_t slot, uint64_t from, uint64_t to) const;
  // Where the first mapped byte of a slot lies in its part of a reservation.
  uint64_t FirstByte(int32_t slot, size_t reservation) const;
  // Gives the slot pages of its own for a row; does nothing where the slot alone refers to its pages. Pre: no queued
  // work uses its row there. On failure all is as before; only when the driver refuses the undo, the rows from there on
  // are gone and the slot is in quarantine.
  Status Detach(const DetachCommand& command);

  // Writes rows, quarantine (0 or 1) and, unless that is empty, first rows of every slot that changed since the last
  // call.
  void Publish(std::span<int32_t> rows, std::span<uint8_t> quarantined, std::span<int32_t> first);
  // kInternal when the records contradict each other or the pool's references; counts the pages in use here, each once,
  // those in quarantine not.
  Status Verify(uint64_t& pages) const;
  // Unmaps everything and frees the addresses. Pre: the mapper has stopped. Idempotent; retryable after a failure.
  Status Close();

 private:
  struct Slot {
    std::vector<PageId> pages;  // from row `first` on, as in a RowRun
    int32_t first = 0;
    int32_t rows = 0;            // where they end
    int32_t earmarked_rows = 0;  // pages are set aside until it has so many from `first` on
    Tenant tenant = kUnknownTenant;
    bool is_busy = false;
    bool is_quarantined = false;
    bool has_changed = false;
  };

  KvCache(std::shared_ptr<PagePool> pool, Layout layout, bool scrub);

  using Lock = std::unique_lock<std::mutex>;
  Status Hold(Lock& lock, int32_t slot);  // waits until the slot is free, then marks it busy
  void LetGo(int32_t slot);               // pre: locked
  void MarkChanged(int32_t slot);         // pre: locked
  // Where the pages of a row begin in those of its slot.
  ptrdiff_t IndexOf(const Slot& slot, int32_t row) const {
    return static_cast<ptrdiff_t>(row - slot.first) * static_cast<ptrdiff_t>(layout().row_pages());
  }
  // Of the pages set aside for the slot, those of rows before `to`.
  uint64_t EarmarkedPages(const Slot& slot, int32_t to = INT32_MAX) const;

  Status AssignHeld(int32_t slot, Tenant tenant);
  Status SharedRun(int32_t slot, const KeptRun& kept, RowRun& run);
  Status AdmitHeld(const AdmitCommand& command, const RowRun& shared);
  Status MapAndFill(const AdmitCommand& command, const RowRun& run, const RowRun& own,
                    std::vector<StrandedRun>& stranded);
  Status GrowHeld(std::span<RowRun> runs, bool is_background);
  Status TakePages(std::span<RowRun> runs, uint64_t earmarked);
  void GiveBack(std::span<const RowRun> runs, uint64_t earmarked, std::vector<StrandedRun> stranded);
  void Strand(std::vector<StrandedRun> stranded);  // pre: locked
  Status Scrub(const RowRun& run, Tenant tenant);
  Status WaitFor(Stream stream, const Status& status);
  Status OwnStream(Stream& stream);
  Status UnmapHeld(int32_t slot, int32_t rows);
  Status SlideHeld(const SlideCommand& command, const DriverScope& scope);
  void HandOver(RowRun& behind, int32_t to, RowRun& ahead) const;
  void MoveEarmark(Slot& slot, uint64_t earmarked, std::span<const PageId> pages);
  Status Unmap(const RowRun& run, const DriverScope& scope, std::vector<StrandedRun>& stranded);
  void CountUnmapped(const RowRun& run);                               // pre: locked
  bool HasTokens(const Slot& slot, uint64_t from, uint64_t to) const;  // pre: locked
  Status UnmapStranded();
  Status CheckPut(const char* call, std::span<const PutCommand> commands, uint64_t source_bytes) const;
  Status FetchOne(uint64_t to, uint64_t from, uint64_t bytes, const FetchSource& source);
  Status CopyTokens(int32_t to_slot, int32_t from_slot, int32_t row, uint64_t tokens, std::optional<Stream> queued);
  Status FillQueued(const DetachCommand& command, const RowRun& shared, const RowRun& fresh, Tenant tenant,
                    bool& is_swapped);
  Status ClearScratch();
  Status InScratch(const RowRun& run, const std::function<Status()>& work);
  RowRun RunOf(int32_t slot, int32_t from, int32_t to) const;
  Status Swap(const RowRun& shared, const RowRun& fresh, bool& is_swapped);
  void SwapBack(const RowRun& shared, const RowRun& fresh);
  void LoseRows(const RowRun& run, std::vector<StrandedRun> stranded);

  const std::shared_ptr<PagePool> pool_;
  const bool scrub_;
  RowRanges ranges_;
  KeptRows kept_;  // the owner's thread only

  // What the cache waits for runs on a stream of its own: waiting for it is not waiting for an engine's work, and the
  // default stream cannot be used while a blocking stream is captured.
  std::mutex stream_mutex_;  // guards the next; held while the stream is made
  std::optional<Stream> own_stream_;

  mutable std::mutex mutex_;  // guards all below
  std::condition_variable let_go_;
  std::vector<Slot> slots_;
  std::vector<int32_t> changed_;       // slots whose rows JavaScript has not seen
  std::vector<StrandedRun> stranded_;  // their pages are quarantined in the pool
  CacheCounters counters_;
  bool is_closed_ = false;
};

}  // namespace vkv

#endif  // VKV_KV_CACHE_H_
