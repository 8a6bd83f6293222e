#include "host/window.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "host/system_calls.h"

namespace vkv::host {
namespace {

constexpr int kNoMemory = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* At(uint64_t address) { return reinterpret_cast<void*>(address); }

// Replaces the content by zeros with one call, so that no access falls in between. At the kernel's limit of mappings
// that call fails; the old content must not stay visible even then.
void Replace(uint64_t address, uint64_t bytes, int protection) {
  if (bytes == 0 || mmap(At(address), bytes, protection, kNoMemory | MAP_FIXED, -1, 0) != MAP_FAILED) return;
  (void)mprotect(At(address), bytes, PROT_NONE);
}

}  // namespace

Status Window::Open(uint64_t bytes, uint64_t alignment_bytes, std::unique_ptr<Window>& window) {
  const uint64_t asked = bytes + alignment_bytes;
  void* const taken = mmap(nullptr, asked, PROT_READ, kNoMemory, -1, 0);
  if (taken == MAP_FAILED) return SystemError(Code::kOutOfAddressSpace, "mmap", errno, bytes);
  const uint64_t start = reinterpret_cast<uint64_t>(taken);
  const uint64_t aligned = (start + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
  if (aligned > start) munmap(taken, aligned - start);
  const uint64_t end = start + asked;
  if (end > aligned + bytes) munmap(At(aligned + bytes), end - aligned - bytes);
  window.reset(new Window(aligned, bytes));
  return Ok();
}

Window::~Window() {
  if (address_ != 0 && bytes_ != 0) munmap(At(address_), bytes_);
}

Status Window::Show(uint64_t from, uint64_t bytes, uint64_t page_bytes) {
  const uint64_t before = shown_bytes_;
  if (bytes > bytes_ - before) return Fail(Code::kInternal, "Window::Show", static_cast<int64_t>(bytes));
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t piece = std::min(page_bytes, bytes - done);
    // An old size of 0 makes a second mapping of the same shared memory.
    const void* const shown =
        mremap(At(from + done), 0, piece, MREMAP_MAYMOVE | MREMAP_FIXED, At(address_ + before + done));
    if (shown == MAP_FAILED) {
      const int error = errno;
      Replace(address_ + before, done, PROT_READ);
      CutBehind(before + done, piece);
      return SystemError(Code::kDriverCallFailed, "mremap", error, from + done, piece);
    }
    done += piece;
  }
  shown_bytes_ += bytes;
  // In a forked child the window would show the parent's memory.
  (void)madvise(At(address_ + before), bytes, MADV_DONTFORK);
  return Ok();
}

// A failed mremap may have left a hole that another thread's mmap has taken since: the window ends there.
void Window::CutBehind(uint64_t end_bytes, uint64_t hole_bytes) {
  const uint64_t rest = end_bytes + hole_bytes;
  if (rest < bytes_) munmap(At(address_ + rest), bytes_ - rest);
  bytes_ = end_bytes;
}

void Window::Hide() {
  Replace(address_, shown_bytes_, PROT_READ);
  shown_bytes_ = 0;
}

void Window::Leave() {
  Replace(address_, shown_bytes_, PROT_READ | PROT_WRITE);
  if (bytes_ > shown_bytes_) munmap(At(address_ + shown_bytes_), bytes_ - shown_bytes_);
  address_ = 0;
}

uint64_t CountMappings() {
  const int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  uint64_t lines = 0;
  char text[16384];
  for (ssize_t bytes; (bytes = read(file, text, sizeof text)) > 0;) lines += std::count(text, text + bytes, '\n');
  close(file);
  return lines;
}

}  // namespace vkv::host
