// The reads of pread-loop.cc through io_uring, with the kernel's own calls and no library: one thread keeps DEPTH reads
// of PIECE_BYTES under way; with O_DIRECT where DIRECT is 1; where FIXED is 1 memory and files are registered. Usage:
// uring-loop DEPTH PIECE_BYTES DIRECT FIXED FILE…. Prints the bytes, and the nanoseconds by the clock and of the CPU.
// Where the kernel refuses a call it says which, and ends with 3.
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

int64_t Now(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

[[noreturn]] void Refused(const char* call) {
  printf("%s: %s\n", call, strerror(errno));
  exit(3);
}

struct Ring {
  explicit Ring(unsigned depth) {
    io_uring_params params = {};
    file = static_cast<int>(syscall(SYS_io_uring_setup, depth, &params));
    if (file < 0) Refused("io_uring_setup");
    char* const rings = Map(params.sq_off.array + params.sq_entries * sizeof(unsigned), IORING_OFF_SQ_RING);
    char* const completions = Map(params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe), IORING_OFF_CQ_RING);
    entries = reinterpret_cast<io_uring_sqe*>(Map(params.sq_entries * sizeof(io_uring_sqe), IORING_OFF_SQES));
    tail = reinterpret_cast<std::atomic<unsigned>*>(rings + params.sq_off.tail);
    mask = *reinterpret_cast<unsigned*>(rings + params.sq_off.ring_mask);
    array = reinterpret_cast<unsigned*>(rings + params.sq_off.array);
    done_head = reinterpret_cast<std::atomic<unsigned>*>(completions + params.cq_off.head);
    done_tail = reinterpret_cast<std::atomic<unsigned>*>(completions + params.cq_off.tail);
    done_mask = *reinterpret_cast<unsigned*>(completions + params.cq_off.ring_mask);
    done = reinterpret_cast<io_uring_cqe*>(completions + params.cq_off.cqes);
  }

  char* Map(size_t bytes, off_t what) const {
    void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, what);
    if (at == MAP_FAILED) Refused("mmap");
    return static_cast<char*>(at);
  }

  int file;
  io_uring_sqe* entries;
  std::atomic<unsigned>* tail;
  unsigned mask;
  unsigned* array;
  std::atomic<unsigned>* done_head;
  std::atomic<unsigned>* done_tail;
  unsigned done_mask;
  io_uring_cqe* done;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  const auto depth = static_cast<unsigned>(atoi(argv[1]));
  const size_t piece = strtoull(argv[2], nullptr, 10);
  const int flags = O_RDONLY | (atoi(argv[3]) == 1 ? O_DIRECT : 0);
  const bool is_fixed = atoi(argv[4]) == 1;
  struct Piece {
    int file;
    uint64_t offset;
  };
  std::vector<Piece> pieces;
  std::vector<int> files;
  for (int k = 5; k < argc; ++k) {
    const int file = open(argv[k], flags);
    struct stat found;
    if (file < 0 || fstat(file, &found) != 0) return 1;
    for (uint64_t at = 0; at + piece <= static_cast<uint64_t>(found.st_size); at += piece)
      pieces.push_back({is_fixed ? static_cast<int>(files.size()) : file, at});
    files.push_back(file);
  }
  const size_t room = (size_t{32} << 20) / piece;
  char* const memory = static_cast<char*>(aligned_alloc(4096, room * piece));
  memset(memory, 1, room * piece);
  Ring ring(depth);
  if (is_fixed) {
    const iovec buffer = {memory, room * piece};
    if (syscall(SYS_io_uring_register, ring.file, IORING_REGISTER_BUFFERS, &buffer, 1) < 0) Refused("register buffers");
    if (syscall(SYS_io_uring_register, ring.file, IORING_REGISTER_FILES, files.data(), files.size()) < 0)
      Refused("register files");
  }
  uint64_t total = 0;
  const int64_t start = Now(CLOCK_MONOTONIC), cpu = Now(CLOCK_PROCESS_CPUTIME_ID);
  for (size_t next = 0, ended = 0; ended < pieces.size();) {
    unsigned added = 0;
    unsigned tail = ring.tail->load(std::memory_order_relaxed);
    for (; next < pieces.size() && next - ended < depth; ++next, ++added, ++tail) {
      io_uring_sqe& entry = ring.entries[tail & ring.mask];
      memset(&entry, 0, sizeof entry);
      entry.opcode = is_fixed ? IORING_OP_READ_FIXED : IORING_OP_READ;
      entry.flags = is_fixed ? IOSQE_FIXED_FILE : 0;
      entry.fd = pieces[next].file;
      entry.addr = reinterpret_cast<uint64_t>(memory + next % room * piece);
      entry.len = static_cast<unsigned>(piece);
      entry.off = pieces[next].offset;
      ring.array[tail & ring.mask] = tail & ring.mask;
    }
    ring.tail->store(tail, std::memory_order_release);
    if (syscall(SYS_io_uring_enter, ring.file, added, 1, IORING_ENTER_GETEVENTS, nullptr, 0) < 0)
      Refused("io_uring_enter");
    unsigned head = ring.done_head->load(std::memory_order_relaxed);
    for (; head != ring.done_tail->load(std::memory_order_acquire); ++head, ++ended) {
      const io_uring_cqe& read = ring.done[head & ring.done_mask];
      if (read.res < 0) {
        errno = -read.res;
        Refused("read");
      }
      total += static_cast<uint64_t>(read.res);
    }
    ring.done_head->store(head, std::memory_order_release);
  }
  printf("%llu %lld %lld\n", static_cast<unsigned long long>(total),
         static_cast<long long>(Now(CLOCK_MONOTONIC) - start),
         static_cast<long long>(Now(CLOCK_PROCESS_CPUTIME_ID) - cpu));
  return 0;
}
