// A bare copy on threads, from plain memory into memory of the kind that a host driver's pages are, all of it touched
// before: for every byte on standard input copies it once and prints the bytes, and the nanoseconds by the clock and of
// the CPU. Usage: copy-loop THREADS BYTES
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

static int64_t Now(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int threads = atoi(argv[1]);
  const size_t bytes = strtoull(argv[2], nullptr, 10), piece = size_t{4} << 20;
  const int file = memfd_create("copy-loop", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes)) != 0) return 1;
  auto* const to = static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  auto* const from =
      static_cast<char*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (to == MAP_FAILED || from == MAP_FAILED) return 1;
  memset(to, 1, bytes);
  memset(from, 2, bytes);
  for (char ask; read(0, &ask, 1) == 1;) {
    const int64_t start = Now(CLOCK_MONOTONIC), cpu = Now(CLOCK_PROCESS_CPUTIME_ID);
    std::atomic<size_t> next{0};
    std::vector<std::thread> running;
    for (int k = 0; k < threads; ++k) {
      running.emplace_back([&] {
        for (size_t at; (at = next.fetch_add(piece)) < bytes;)
          memcpy(to + at, from + at, bytes - at < piece ? bytes - at : piece);
      });
    }
    for (std::thread& thread : running) thread.join();
    printf("%zu %lld %lld\n", bytes, static_cast<long long>(Now(CLOCK_MONOTONIC) - start),
           static_cast<long long>(Now(CLOCK_PROCESS_CPUTIME_ID) - cpu));
    fflush(stdout);
  }
  return 0;
}
