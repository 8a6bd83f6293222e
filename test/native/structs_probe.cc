// Prints the structs of include/virtual_kv.h that a file begins with, a field after the other: `structs_probe FILE
// TENSORS SEQUENCES`, tensors before sequences. One line each, and after a tensor the address of token 3 of head 1 in
// slot 2.
#include "../../include/virtual_kv.h"

#include <cstdio>
#include <cstdlib>

int main(int, char** words) {
  std::FILE* const file = std::fopen(words[1], "rb");
  if (file == nullptr) return 1;
  for (int left = std::atoi(words[2]); left > 0; left -= 1) {
    vkv_tensor t{};
    if (std::fread(&t, sizeof t, 1, file) != 1) return 1;
    std::printf("%llu %lld %lld %lld %d %d %d %d %d %d %d %d\n", static_cast<unsigned long long>(t.base),
                static_cast<long long>(t.slot_stride), static_cast<long long>(t.token_stride),
                static_cast<long long>(t.head_stride), t.layer, t.role, t.heads, t.dim, t.dtype, t.element_bytes,
                t.slots, t.max_tokens);
    std::printf("%llu\n", static_cast<unsigned long long>(vkv_address(&t, 2, 3, 1)));
  }
  for (int left = std::atoi(words[3]); left > 0; left -= 1) {
    vkv_sequence s{};
    if (std::fread(&s, sizeof s, 1, file) != 1) return 1;
    std::printf("%d %d %d %d\n", s.slot, s.position, s.count, s.start);
  }
  return std::fclose(file);
}
