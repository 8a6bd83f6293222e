#include "host/driver_host.h"

#include <algorithm>

#include "host/machine.h"

namespace vkv {
namespace {

using host::AddressRange;
using host::AddressSpace;
using host::Page;
using host::SystemError;

constexpr uint64_t kGranularityBytes = uint64_t{64} << 10;
constexpr uint64_t kDefaultPageBytes = uint64_t{2} << 20;
constexpr uint64_t kLargestRangeBytes = uint64_t{1} << 56;  // beyond any machine; sums do not overflow

bool IsPageSize(uint64_t bytes) { return bytes != 0 && bytes % kGranularityBytes == 0; }

}  // namespace

Status OpenHostDriver(const HostOptions& options, std::unique_ptr<Driver>& driver) {
  std::unique_ptr<DriverHost> opened;
  VKV_RETURN_IF_ERROR(DriverHost::Open(options, opened));
  driver = std::move(opened);
  return Ok();
}

Status DriverHost::Open(const HostOptions& options, std::unique_ptr<DriverHost>& driver) {
  std::unique_ptr<DriverHost> opened(new DriverHost);
  VKV_RETURN_IF_ERROR(host::ForkGuard::Open(opened->guard_));
  VKV_RETURN_IF_ERROR(opened->file_.Open());
  opened->memory_bytes_ = options.memory_bytes;
  opened->populate_ = options.populate;
  opened->huge_pages_ = options.huge_pages;
  if (options.memory_bytes == 0) {
    const uint64_t limit = host::FindMemoryRoom(options.machine_root).limit_bytes;
    opened->memory_bytes_ = limit - host::HeadroomBytes(limit);
  }
  if (options.memory_bytes == 0 || options.populate || options.huge_pages)
    opened->share_ = std::make_unique<host::MemoryShare>(opened->file_, options.machine_root);
  const uint64_t kernel_limit = host::KernelMappingLimit();
  const uint64_t half = host::ProcessMappings::Share(kernel_limit);
  const uint64_t most = host::ProcessMappings::MostOnRequest(kernel_limit);

  DriverInfo& info = opened->info_;
  info.kind = "host";
  info.kernels = "cpu";
  info.device_name = "host memory";
  info.granularity_bytes = kGranularityBytes;
  info.default_page_bytes = kDefaultPageBytes;
  info.mapping_limit = options.mapping_limit != 0 ? std::min(options.mapping_limit, most) : half;
  opened->shared_mapping_limit_ = std::max(half, info.mapping_limit);
  opened->kernel_mapping_limit_ = kernel_limit;
  info.has_host_access = true;
  info.has_zeroed_pages = true;
  info.has_readable_holes = true;
  driver = std::move(opened);
  return Ok();
}

DriverHost::~DriverHost() {
  if (guard_ == nullptr) return;
  if (guard_->is_forked()) {              // all of it belongs to the parent
    (void)share_.release();               // its neighbours are the parent's
    (void)new auto(std::move(streams_));  // and so are the threads
    (void)new auto(std::move(ended_streams_));
    (void)new auto(std::move(events_));
    return;
  }
  StopStreams();
  for (const AddressRange* range = space_.After(0); range != nullptr; range = space_.After(range->address))
    (void)guard_->Free(calls_, range->address, range->bytes + range->guard_bytes);
  space_.Clear();
  share_.reset();
  file_.Close();
}

Status DriverHost::FailCall(std::string_view kind, uint64_t nth, int error) {
  if (kind == "command") {
    for (const auto& stream : AllStreams()) stream->FailCommand(nth, error);
    return Ok();
  }
  if (kind == "hold") {
    for (const auto& stream : AllStreams()) stream->Hold(nth);
    return Ok();
  }
  host::SystemCall call;
  if (!host::SystemCallFromName(kind, call)) return Misuse("FailCall", 0, nth);
  calls_.FailNext(call, nth, error);
  return Ok();
}

Status DriverHost::QueryMemory(MemoryInfo& memory) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  MemoryInfo answer;
  VKV_RETURN_IF_ERROR(file_.ResidentBytes(answer.resident_bytes));
  const uint64_t available = share_ != nullptr ? share_->available_bytes() : UINT64_MAX;
  std::lock_guard lock(mutex_);
  answer.total_bytes = memory_bytes_;
  answer.free_bytes = std::min(memory_bytes_ - pages_.live_bytes(), available);
  answer.live_pages = pages_.live_pages();
  answer.live_reservations = space_.ranges();
  answer.mappings = space_.mappings();
  answer.process_mappings = host::ProcessMappings::in_use();
  memory = answer;
  return Ok();
}

bool DriverHost::IsShortOfMappings() {
  if (guard_->is_forked()) return false;
  std::lock_guard lock(mutex_);
  return 2 * space_.mappings() > info_.mapping_limit || 2 * host::ProcessMappings::in_use() > shared_mapping_limit_;
}

// Checks this driver's own limit of mappings, and the one that all host drivers of the process share.
Status DriverHost::CheckMappings(uint64_t needed) const {
  const uint64_t own = space_.mappings();
  // Unmapping in the middle of a run takes mappings and asks no limit: what was unmapped beyond it must come back.
  if (needed <= own || undos_.load(std::memory_order_relaxed) > 0) return Ok();
  const uint64_t others = host::ProcessMappings::in_use() - own;
  const bool is_own_limit = info_.mapping_limit < shared_mapping_limit_ && needed > info_.mapping_limit;
  if (!is_own_limit && needed + others <= shared_mapping_limit_) return Ok();
  Status status = Fail(Code::kOutOfMappings, "mmap", static_cast<int64_t>(needed),
                       static_cast<int64_t>(is_own_limit ? info_.mapping_limit : shared_mapping_limit_));
  status.others = is_own_limit ? -1 : static_cast<int64_t>(others);
  return status;
}

Status DriverHost::Reserve(uint64_t bytes, uint64_t page_bytes, uint64_t& address) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  if (bytes == 0 || !IsPageSize(page_bytes) || bytes % page_bytes != 0) return Misuse("Reserve", bytes, page_bytes);
  if (bytes > kLargestRangeBytes) return Fail(Code::kOutOfAddressSpace, "mmap", static_cast<int64_t>(bytes));
  std::lock_guard lock(mutex_);
  VKV_RETURN_IF_ERROR(CheckMappings(space_.mappings() + AddressSpace::kMappingsOfRange));
  return MakeRange(bytes, page_bytes, address);
}

// The kernel aligns to its own page only, so a page more is asked for: what lies before the first aligned
// address goes back, what is left behind the range becomes its guard.
Status DriverHost::MakeRange(uint64_t bytes, uint64_t page_bytes, uint64_t& address) {
  uint64_t start = 0;
  const uint64_t asked = bytes + page_bytes;
  int error = calls_.Reserve(asked, start);
  if (error != 0) return SystemError(Code::kOutOfAddressSpace, "mmap", error, bytes);
  const uint64_t end = start + asked;
  const uint64_t aligned = (start + page_bytes - 1) / page_bytes * page_bytes;

  const char* call = "mmap";
  error = calls_.Unmap(aligned, bytes);
  if (error == 0 && aligned > start) {
    call = "munmap";
    error = calls_.Free(start, aligned - start);
    if (error == 0) start = aligned;
  }
  Status status = error == 0 ? Ok() : SystemError(Code::kOutOfAddressSpace, call, error, bytes);
  uint64_t offset = 0;
  if (status.ok()) status = file_.TakeRange(bytes, offset);
  if (!status.ok()) {
    (void)calls_.Free(start, end - start);
    return status;
  }
  const uint64_t guard_bytes = end - aligned - bytes;
  guard_->Add(aligned, bytes + guard_bytes);
  space_.Add(aligned, bytes, guard_bytes, page_bytes, offset);
  address = aligned;
  return Ok();
}

Status DriverHost::FreeReservation(uint64_t address, uint64_t bytes) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  std::lock_guard lock(mutex_);
  const AddressRange* const range = space_.Find(address, bytes);
  if (range == nullptr || range->address != address || range->bytes != bytes || range->table.mapped_pages() != 0)
    return Misuse("FreeReservation", address, bytes);
  if (const int error = guard_->Free(calls_, address, bytes + range->guard_bytes))
    return SystemError(Code::kDriverCallFailed, "munmap", error, address, bytes);
  space_.Remove(*range);
  return Ok();
}

Status DriverHost::TakeOffset(uint64_t page_bytes, uint64_t near, uint64_t& offset, uint64_t& home) {
  host::PageRun run;
  const bool is_page = near != 0 && space_.FindRun(near, page_bytes, run) && run.pages == 1;
  if (!is_page || run.range->table.At(run.first).has_home) {
    Status status = file_.TakeOffset(page_bytes, offset);
    status.how_many = status.ok() ? 0 : static_cast<int64_t>(pages_.live_pages());
    return status;
  }
  run.range->table.set_home(run.first, true);
  offset = run.range->file_offset + (near - run.range->address);
  home = near;
  return Ok();
}

void DriverHost::GiveOffset(const Page& page) {
  if (page.home == 0) return file_.GiveOffset(page.bytes, page.offset);
  // The reservation may be gone, and another may have its addresses; the place in the file then belongs to
  // neither.
  host::PageRun run;
  if (!space_.FindRun(page.home, page.bytes, run)) return;
  if (run.range->file_offset + (page.home - run.range->address) != page.offset) return;
  run.range->table.set_home(run.first, false);
}

Status DriverHost::CreatePage(uint64_t page_bytes, uint64_t near, PageHandle& page) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  if (!IsPageSize(page_bytes)) return Misuse("CreatePage", /*address=*/0, page_bytes);
  uint64_t offset = 0;
  PageHandle created = 0;
  {
    std::lock_guard lock(mutex_);
    if (page_bytes > memory_bytes_ - pages_.live_bytes() || !CanTakeMemory(page_bytes))
      return Fail(Code::kOutOfDeviceMemory, "CreatePage", static_cast<int64_t>(page_bytes),
                  static_cast<int64_t>(pages_.live_pages()));
    uint64_t home = 0;
    const Status status = TakeOffset(page_bytes, near, offset, home);
    if (!status.ok()) {
      GiveMemory(page_bytes);
      return status;
    }
    created = pages_.Add(offset, page_bytes, home);
  }
  if (huge_pages_) file_.AddHugePages(offset, page_bytes);
  const int error = populate_ ? file_.Commit(offset, page_bytes) : 0;
  if (error == 0) {
    page = created;
    return Ok();
  }
  // Huge pages may be there already. Memory that the kernel keeps all the same goes to the next page at the offset.
  (void)file_.Punch(offset, page_bytes);
  std::lock_guard lock(mutex_);
  GiveOffset(*pages_.Find(created));
  pages_.Remove(host::PageTable::IndexOf(created));
  GiveMemory(page_bytes);
  return SystemError(Code::kOutOfDeviceMemory, "fallocate", error, page_bytes, pages_.live_pages());
}

Status DriverHost::ReleasePage(PageHandle handle, uint64_t page_bytes) {
  VKV_RETURN_IF_ERROR(CheckProcess());
  uint64_t offset = 0;
  {
    std::lock_guard lock(mutex_);
    Page* const page = pages_.Find(handle);
    if (page == nullptr || page->bytes != page_bytes || page->maps != 0)
      return Misuse("ReleasePage", handle, page_bytes);
    page->is_releasing = true;
    offset = page->offset;
  }
  const Status told = TellListeners(offset, page_bytes);
  const int error = told.ok() ? file_.Punch(offset, page_bytes) : 0;
  std::lock_guard lock(mutex_);
  const host::PageIndex index = host::PageTable::IndexOf(handle);
  Page& page = pages_.At(index);
  page.is_releasing = false;
  if (!told.ok()) return told;
  if (error != 0) return SystemError(Code::kDriverCallFailed, "fallocate", error, handle, page_bytes);
  GiveOffset(page);
  pages_.Remove(index);
  GiveMemory(page_bytes);
  return Ok();
}

}  // namespace vkv
