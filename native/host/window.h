// Window: a second mapping of a part of a reservation, which can be revoked while other code still has its addresses.
//
// Linux only, and only for memory that the driver maps shared (host; the mock's real backing). It owns its addresses,
// never the memory. Where nothing is shown it reads as zeros. Threads: the caller locks; other threads may read the
// addresses at any time, and no call makes a read of shown addresses fatal, even for a moment.
#ifndef VKV_HOST_WINDOW_H_
#define VKV_HOST_WINDOW_H_

#include <cstdint>
#include <memory>

#include "status.h"

namespace vkv::host {

class Window {
 public:
  // The most kernel mappings that opening a window and showing `pages` pages can take.
  static constexpr uint64_t MappingsFor(uint64_t pages) { return pages + 2; }

  // Takes addresses for `bytes` bytes; shows nothing. kOutOfAddressSpace when there are none.
  static Status Open(uint64_t bytes, uint64_t alignment_bytes, std::unique_ptr<Window>& window);
  ~Window();  // frees the addresses; pre: no code can access them any more, or Leave() was called
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  uint64_t address() const { return address_; }
  uint64_t bytes() const { return bytes_; }  // that can be shown at most
  uint64_t shown_bytes() const { return shown_bytes_; }

  // Shows the memory at [from, from + bytes) behind what is shown already, in pieces of `page_bytes`, each of which
  // lies in one shared mapping. On failure nothing more is shown than before, and bytes() may have become smaller.
  Status Show(uint64_t from, uint64_t bytes, uint64_t page_bytes);
  // Hides the memory: reads give zeros, writes are fatal. The addresses can be used for other memory.
  void Hide();
  // The same for addresses that other code keeps: writes reach private memory. They stay taken until the process ends.
  void Leave();

 private:
  Window(uint64_t address, uint64_t bytes) : address_(address), bytes_(bytes) {}
  void CutBehind(uint64_t end_bytes, uint64_t hole_bytes);

  uint64_t address_;  // 0: left
  uint64_t bytes_;
  uint64_t shown_bytes_ = 0;
};

// Kernel mappings of this process now; counting them takes about a millisecond for 10,000.
uint64_t CountMappings();

}  // namespace vkv::host

#endif  // VKV_HOST_WINDOW_H_
