// PageListener: hears of a host driver's pages before their memory is given back to the system, so that what else uses
// it can let go. Threads: called on any that releases pages, with no lock held.
#ifndef VKV_HOST_PAGE_LISTENER_H_
#define VKV_HOST_PAGE_LISTENER_H_

#include <cstdint>

#include "status.h"

namespace vkv::host {

class PageListener {
 public:
  virtual ~PageListener() = default;

  // The page at `offset` of the page file is mapped nowhere and is about to be given back. A failure keeps it.
  virtual Status BeforeRelease(uint64_t offset, uint64_t bytes) = 0;
};

}  // namespace vkv::host

#endif  // VKV_HOST_PAGE_LISTENER_H_
