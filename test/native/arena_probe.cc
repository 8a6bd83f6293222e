// A PinnedArena between the host driver's pages and a device that notes what is asked of it and copies when it is
// waited for: prints each call of the device that counts, and each that breaks a rule.
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "pinned_arena.h"

namespace {

using vkv::DriverHost;
using vkv::Event;
using vkv::MemoryInfo;
using vkv::Ok;
using vkv::PageHandle;
using vkv::PinnedArena;
using vkv::Status;
using vkv::Stream;

constexpr uint64_t kPageBytes = uint64_t{64} << 10;
constexpr Stream kStream = 7;

class FakeDevice final : public vkv::Driver {
 public:
  // Called once, while the device works off what was queued before.
  std::function<void()> meanwhile;

  const vkv::DriverInfo& info() const override { return info_; }
  DriverHost* AsHost() override { return nullptr; }
  vkv::cuda::DriverCuda* AsCuda() override { return nullptr; }
  Status QueryMemory(MemoryInfo&) override { return Ok(); }
  bool IsShortOfMappings() override { return false; }
  bool is_lost() const override { return false; }
  Status Enter() override { return Ok(); }
  void Leave() override {}
  Status Reserve(uint64_t, uint64_t, uint64_t&) override { return Ok(); }
  Status FreeReservation(uint64_t, uint64_t) override { return Ok(); }
  Status CreatePage(uint64_t, uint64_t, PageHandle&) override { return Ok(); }
  Status ReleasePage(PageHandle, uint64_t) override { return Ok(); }
  Status Map(uint64_t, uint64_t, PageHandle) override { return Ok(); }
  Status MapEach(uint64_t, uint64_t, std::span<const PageHandle>, uint64_t&) override { return Ok(); }
  Status SetAccess(uint64_t, uint64_t) override { return Ok(); }
  Status Unmap(uint64_t, uint64_t) override { return Ok(); }
  void BeginUndo() override {}
  void EndUndo() override {}
  uint64_t SharedRunBytes(uint64_t, uint64_t) override { return 0; }
  Status Write(uint64_t, const void*, uint64_t) override { return Ok(); }
  Status Read(void*, uint64_t, uint64_t) override { return Ok(); }
  Status WriteEach(std::span<const vkv::WritePiece>) override { return Ok(); }
  Status ReadUntouched(void*, uint64_t, uint64_t) override { return Ok(); }
  Status FindOnDevice(uint64_t address, uint64_t& on_device) override {
    return Driver::FindOnDevice(address, on_device);
  }
  Status Upload(uint64_t, const void*, uint64_t, Stream) override { return Ok(); }
  Status Copy(uint64_t, uint64_t, uint64_t, Stream) override { return Ok(); }
  Status Fill(uint64_t, uint8_t, uint64_t, Stream) override { return Ok(); }
  Status CreateStream(Stream&) override { return Ok(); }
  Status DestroyStream(Stream) override { return Ok(); }
  Status RecordEvent(Stream, Event&) override { return Ok(); }
  Status QueryEvent(Event, bool&) override { return Ok(); }
  Status SynchronizeEvent(Event) override { return Ok(); }
  Status WaitEvent(Stream, Event) override { return Ok(); }
  Status DestroyEvent(Event) override { return Ok(); }

  Status RegisterHost(uint64_t address, uint64_t bytes) override {
    registered_[address] = bytes;
    return Ok();
  }
  Status UnregisterHost(uint64_t address) override {
    const uint64_t end = address + registered_[address];
    for (const uint64_t to : queued_)
      if (to >= address && to < end) std::puts("unregistered under a queued copy");
    registered_.erase(address);
    std::puts("unregistered");
    return Ok();
  }
  Status Download(void* to, uint64_t, uint64_t, Stream) override {
    queued_.push_back(reinterpret_cast<uint64_t>(to));
    return Ok();
  }
  Status SynchronizeStream(Stream) override {
    const size_t before = queued_.size();
    std::puts("waited");
    if (meanwhile) std::exchange(meanwhile, nullptr)();
    queued_.erase(queued_.begin(), queued_.begin() + static_cast<std::ptrdiff_t>(before));
    return Ok();
  }

 private:
  vkv::DriverInfo info_;
  std::map<uint64_t, uint64_t> registered_;
  std::vector<uint64_t> queued_;  // where copies go that were not waited for
};

// The probe cannot go on without this.
void Need(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s failed: code %d, %s\n", status.call, static_cast<int>(status.code), status.result_name);
  std::_Exit(2);
}

}  // namespace

int main() {
  std::unique_ptr<DriverHost> opened;
  Need(DriverHost::Open({}, opened));
  const std::shared_ptr<DriverHost> host = std::move(opened);
  const auto device = std::make_shared<FakeDevice>();
  const std::shared_ptr<PinnedArena> arena = PinnedArena::Open(device, host, nullptr);

  uint64_t address = 0;
  Need(host->Reserve(3 * kPageBytes, kPageBytes, address));
  uint64_t offsets[3];  // in the file
  for (uint64_t k = 0; k < 3; ++k) {
    const uint64_t at = address + k * kPageBytes;
    PageHandle page = 0;
    uint64_t bytes = 0;
    Need(host->CreatePage(kPageBytes, at, page));
    Need(host->Map(at, kPageBytes, page));
    Need(host->SetAccess(at, kPageBytes));
    if (!host->FindInFile(at, kPageBytes, offsets[k], bytes)) return 1;
  }
  const auto copy_to = [&](uint64_t page) {
    const PinnedArena::Run run = {address + page * kPageBytes, 0, kPageBytes};
    Need(arena->Copy(/*source=*/0, {&run, 1}, kPageBytes, kStream));
  };

  copy_to(0);
  copy_to(2);
  device->meanwhile = [&] { copy_to(2); };
  std::puts("page 0 is given back while a copy to page 2 is queued");
  Need(arena->BeforeRelease(offsets[0], kPageBytes));
  std::puts("page 2 is given back");
  Need(arena->BeforeRelease(offsets[2], kPageBytes));
  std::puts("closed, with nothing queued since");
  copy_to(1);
  Need(device->SynchronizeStream(kStream));
  Need(arena->Close());
  Need(arena->Close());
  return 0;
}
