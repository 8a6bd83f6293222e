// A bare loop of parallel reads: threads take pieces of the given files in turn and read each with one pread, one
// behind the other into MEMORY_BYTES of touched memory, in huge pages where it can, again and again from its start;
// with O_DIRECT where DIRECT is 1. Pieces that were not written whole are left out: what a file has of them in advance
// is read without a disk. For every byte on standard input it reads all once and prints the bytes, and the
// nanoseconds by the clock and of the CPU.
// Usage: pread-loop THREADS PIECE_BYTES DIRECT MEMORY_BYTES FILE…
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
  if (argc < 6) return 2;
  const int threads = atoi(argv[1]);
  const size_t piece = strtoull(argv[2], nullptr, 10);
  const int flags = O_RDONLY | (atoi(argv[3]) == 1 ? O_DIRECT : 0);
  struct Piece {
    int file;
    off_t offset;
  };
  std::vector<Piece> pieces;
  for (int k = 5; k < argc; ++k) {
    const int file = open(argv[k], flags);
    struct stat found;
    if (file < 0 || fstat(file, &found) != 0) return 1;
    const off_t bytes = static_cast<off_t>(piece);
    for (off_t at = 0; at + bytes <= found.st_size; at += bytes)
      if (lseek(file, at, SEEK_DATA) == at && lseek(file, at, SEEK_HOLE) >= at + bytes) pieces.push_back({file, at});
  }
  const size_t room = strtoull(argv[4], nullptr, 10) / piece;
  constexpr size_t kHugePage = size_t{1} << 21;  // as a promotion's payloads have where the system has some to spare
  const size_t bytes = (room * piece + kHugePage - 1) / kHugePage * kHugePage;
  char* const memory = static_cast<char*>(aligned_alloc(kHugePage, bytes));
  madvise(memory, bytes, MADV_HUGEPAGE);  // refused: ordinary pages
  memset(memory, 1, room * piece);
  for (char ask; read(0, &ask, 1) == 1;) {
    std::atomic<size_t> next{0};
    std::atomic<uint64_t> total{0};
    const int64_t start = Now(CLOCK_MONOTONIC), cpu = Now(CLOCK_PROCESS_CPUTIME_ID);
    std::vector<std::thread> running;
    for (int k = 0; k < threads; ++k) {
      running.emplace_back([&] {
        for (size_t at; (at = next++) < pieces.size();) {
          const ssize_t read = pread(pieces[at].file, memory + at % room * piece, piece, pieces[at].offset);
          if (read > 0) total += static_cast<uint64_t>(read);
        }
      });
    }
    for (std::thread& thread : running) thread.join();
    printf("%llu %lld %lld\n", static_cast<unsigned long long>(total),
           static_cast<long long>(Now(CLOCK_MONOTONIC) - start),
           static_cast<long long>(Now(CLOCK_PROCESS_CPUTIME_ID) - cpu));
    fflush(stdout);
  }
  return 0;
}
