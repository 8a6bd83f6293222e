// The writes of decoding steps, as a C loop would make them: in each step a row of every sequence and tensor goes from
// packed memory to where the last one of its sequence ends. Memory is of the kind that a host driver's pages are, and
// is touched, out of the measured time, a page at a time as sequences grow. For every byte on standard input makes
// STEPS steps and prints of their median the bytes, and the nanoseconds by the clock and of the CPU. Usage: row-loop
// SEQUENCES ROW_BYTES PAGE_BYTES MOST_ROWS STEPS, with the rows of all tensors counted as sequences
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static int64_t Now(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{1000000000} * now.tv_sec + now.tv_nsec;
}

static long long Median(std::vector<int64_t>& values) {
  std::sort(values.begin(), values.end());
  return static_cast<long long>(values[values.size() / 2]);
}

int main(int argc, char** argv) {
  if (argc != 6) return 2;
  const size_t sequences = strtoull(argv[1], nullptr, 10), row = strtoull(argv[2], nullptr, 10);
  const size_t page = strtoull(argv[3], nullptr, 10), stripe = strtoull(argv[4], nullptr, 10) * row;
  const size_t steps = strtoull(argv[5], nullptr, 10);
  const int file = memfd_create("row-loop", 0);
  if (file < 0 || ftruncate(file, static_cast<off_t>(sequences * stripe)) != 0) return 1;
  auto* const to = static_cast<char*>(mmap(nullptr, sequences * stripe, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  if (to == MAP_FAILED) return 1;
  const std::vector<char> from(sequences * row, 7);
  size_t at = 0, touched = 0;
  for (char ask; read(0, &ask, 1) == 1;) {
    std::vector<int64_t> clock, cpu;
    for (size_t step = 0; step < steps; ++step, at += row) {
      if (at + row > stripe) return 1;
      for (; at + row > touched; touched += page)
        for (size_t k = 0; k < sequences; ++k) memset(to + k * stripe + touched, 0, std::min(page, stripe - touched));
      const int64_t start = Now(CLOCK_MONOTONIC), used = Now(CLOCK_PROCESS_CPUTIME_ID);
      for (size_t k = 0; k < sequences; ++k) memcpy(to + k * stripe + at, from.data() + k * row, row);
      cpu.push_back(Now(CLOCK_PROCESS_CPUTIME_ID) - used);
      clock.push_back(Now(CLOCK_MONOTONIC) - start);
    }
    printf("%zu %lld %lld\n", sequences * row, Median(clock), Median(cpu));
    fflush(stdout);
  }
  return 0;
}
