#include "fault_report.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <string_view>
#include <vector>

#include "host/signal_chain.h"
#include "host/system_calls.h"

namespace vkv {

struct FaultReport::Region {
  struct Range {
    uint64_t begin;
    uint64_t end;
    uint64_t slot_bytes;
    uint64_t token_bytes;
  };
  std::vector<Range> ranges;  // by reservation
  std::vector<TensorSpan> tensors;
  std::vector<uint64_t> numbers;  // of the tensors, for the text
  uint64_t page_bytes;
  uint64_t common_bytes;
  uint64_t max_tokens;
  int32_t set;
  const int32_t* rows;
  const int32_t* first;
  std::atomic<bool> is_open{true};
  Region* next = nullptr;
};

namespace {

// A line for stderr, made without a call that a signal handler must not make.
class Line {
 public:
  Line& operator<<(std::string_view text) {
    for (const char letter : text)
      if (length_ < sizeof(text_)) text_[length_++] = letter;
    return *this;
  }
  Line& operator<<(uint64_t number) { return Digits(number, 10); }
  Line& Address(uint64_t address) { return (*this << "0x").Digits(address, 16); }
  void Print() const { (void)!write(STDERR_FILENO, text_, length_); }

 private:
  Line& Digits(uint64_t number, uint64_t base) {
    char digits[20];
    size_t count = 0;
    do digits[count++] = "0123456789abcdef"[number % base];
    while ((number /= base) > 0);
    while (count > 0) *this << std::string_view(&digits[--count], 1);
    return *this;
  }

  char text_[640];
  size_t length_ = 0;
};

}  // namespace

// Constant-initialised and trivially destroyed: signals belong to the process, and their handlers get no argument.
struct FaultReport::Handler {
  static constinit std::mutex mutex;  // guards changes of the list, and all below but what the handler reads
  static constinit std::atomic<Region*> first;
  static constinit bool is_installed;
  static constinit struct sigaction previous;

  static Status Install();
  static void OnFault(int signal, siginfo_t* info, void* context);
  static bool Name(uint64_t address);
  static void Print(const Region& region, size_t reservation, uint64_t address);
};

constinit std::mutex FaultReport::Handler::mutex;
constinit std::atomic<FaultReport::Region*> FaultReport::Handler::first{nullptr};
constinit bool FaultReport::Handler::is_installed = false;
constinit struct sigaction FaultReport::Handler::previous {};

void FaultReport::Handler::Print(const Region& region, size_t reservation, uint64_t address) {
  const Region::Range& range = region.ranges[reservation];
  const uint64_t slot = (address - range.begin) / range.slot_bytes;
  const uint64_t in_slot = (address - range.begin) % range.slot_bytes;
  const uint64_t token = in_slot / range.token_bytes;
  const uint64_t in_token = in_slot % range.token_bytes;
  size_t tensor = 0;
  while (tensor + 1 < region.tensors.size() &&
         (region.tensors[tensor].reservation != reservation ||
          region.tensors[tensor].offset_bytes + region.tensors[tensor].bytes <= in_token))
    tensor += 1;
  const auto bytes_of = [&region](int32_t rows) { return static_cast<uint64_t>(rows) * region.page_bytes; };
  const uint64_t end = std::min(bytes_of(region.rows[slot]) / region.common_bytes, region.max_tokens);
  Line line;
  line << "virtual-kv: native code wrote to ";
  line.Address(address) << ", where there is no memory: `cache.tensors[" << region.numbers[tensor] << "]`, slot "
                        << slot << ", token " << token << ". Slot " << slot << " has memory for ";
  if (region.first == nullptr) {
    line << end << " tokens. Call `cache.prepare` before kernels write tokens, and use none of a sequence ";
  } else {
    const uint64_t bytes_before = bytes_of(region.first[slot]);
    const uint64_t first = (bytes_before + region.common_bytes - 1) / region.common_bytes;
    line << "tokens [" << std::min(first, end) << ", " << end << ") in `cache.layout.sets["
         << static_cast<uint64_t>(region.set) << "]`, whose layers see no others. Call `cache.prepare` before kernels "
         << "write tokens, use none before `sequence.firstToken(" << region.numbers[tensor] << ")`, and none of a "
         << "sequence ";
  }
  line << "that was released.\n";
  line.Print();
}

bool FaultReport::Handler::Name(uint64_t address) {
  for (const Region* region = first.load(std::memory_order_acquire); region != nullptr; region = region->next) {
    if (!region->is_open.load()) continue;
    for (size_t i = 0; i < region->ranges.size(); ++i) {
      if (address < region->ranges[i].begin || address >= region->ranges[i].end) continue;
      Print(*region, i, address);
      return true;
    }
  }
  return false;
}

void FaultReport::Handler::OnFault(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  if (info->si_code == SEGV_MAPERR || info->si_code == SEGV_ACCERR) Name(reinterpret_cast<uint64_t>(info->si_addr));
  host::PassOn(previous, signal, info, context);
  errno = error;
}

Status FaultReport::Handler::Install() {
  if (is_installed) return Ok();
  VKV_RETURN_IF_ERROR(host::KeepCode(reinterpret_cast<void*>(&OnFault)));
  struct sigaction action {};
  action.sa_sigaction = OnFault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGSEGV, nullptr, &previous) != 0 || sigaction(SIGSEGV, &action, nullptr) != 0)
    return host::SystemError(Code::kDriverCallFailed, "sigaction", errno);
  is_installed = true;
  return Ok();
}

Status FaultReport::Open(const KvCache& cache, std::span<const TensorSpan> tensors, const Names& names) {
  const std::lock_guard lock(Handler::mutex);
  VKV_RETURN_IF_ERROR(Handler::Install());
  const Layout& layout = cache.layout();
  region_ = new Region{.ranges = {},
                       .tensors = {tensors.begin(), tensors.end()},
                       .numbers = {},
                       .page_bytes = layout.page_bytes(),
                       .common_bytes = layout.common_bytes(),
                       .max_tokens = layout.max_tokens(),
                       .set = names.set,
                       .rows = names.rows,
                       .first = names.first};
  for (size_t k = 0; k < tensors.size(); ++k)
    region_->numbers.push_back(k < names.tensors.size() ? static_cast<uint64_t>(names.tensors[k]) : k);
  for (size_t i = 0; i < layout.reservations(); ++i) {
    const uint64_t begin = cache.address(i);
    region_->ranges.push_back(
        {begin, begin + layout.ReservationBytes(i), layout.StripeBytes(i), layout.token_bytes(i)});
  }
  region_->next = Handler::first.load();
  Handler::first.store(region_, std::memory_order_release);
  return Ok();
}

void FaultReport::Close() {
  if (region_ != nullptr) region_->is_open.store(false);
  region_ = nullptr;
}

}  // namespace vkv
