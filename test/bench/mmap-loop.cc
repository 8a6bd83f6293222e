// The bare system calls of growth, as a C loop would make them: for each row one mmap of a page into every tensor's
// stripe. Usage: mmap-loop TENSORS ROWS PAGE_BYTES. Prints the nanoseconds of each row. Nothing is touched, as in
// growth.
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

static int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const uint64_t tensors = strtoull(argv[1], nullptr, 10);
  const uint64_t rows = strtoull(argv[2], nullptr, 10);
  const uint64_t page = strtoull(argv[3], nullptr, 10);
  const uint64_t stripe = uint64_t{1} << 34;
  const int file = memfd_create("mmap-loop", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(tensors * stripe)) != 0) return 1;
  char* base = static_cast<char*>(
      mmap(nullptr, tensors * stripe, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  if (base == MAP_FAILED) return 1;
  for (uint64_t row = 0; row < rows; ++row) {
    const int64_t start = Now();
    for (uint64_t t = 0; t < tensors; ++t) {
      const uint64_t at = t * stripe + row * page;
      if (mmap(base + at, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, static_cast<off_t>(at)) ==
          MAP_FAILED)
        return 1;
    }
    printf("%lld\n", static_cast<long long>(Now() - start));
  }
  return 0;
}
