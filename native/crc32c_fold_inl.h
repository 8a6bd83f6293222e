// The loop of crc32c_fold.cc, included once per instruction set, in a namespace that defines VKV_FOLD_TARGET, Vector,
// Load, Stream, Wide and Onto. A register holds sizeof(Vector) bytes of the running remainder; 256 bytes are taken a
// turn, each register by the distance of a turn.

// Far enough that the bytes are there when their turn comes; more than a copy asks for by itself.
constexpr size_t kAhead = 1536;
constexpr size_t kVectors = kFoldBytes / sizeof(Vector);

// 16 bytes, moved on by 16.
VKV_FOLD_TARGET inline __m128i Further128(__m128i sum) {
  constexpr Factors kBy128 = FactorsFor(128);
  const __m128i by = _mm_set_epi64x(static_cast<int64_t>(kBy128.second_half), static_cast<int64_t>(kBy128.first_half));
  return _mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x00), _mm_clmulepi64_si128(sum, by, 0x11));
}

template <bool kCopies>
VKV_FOLD_TARGET inline Vector Take(uint8_t* to, const uint8_t* from, size_t at) {
  const Vector bytes = Load(from + at);
  if constexpr (kCopies) Stream(to + at, bytes);
  return bytes;
}

template <bool kCopies>
VKV_FOLD_TARGET uint32_t FoldAll(uint8_t* to, const uint8_t* from, size_t bytes, uint32_t state) {
  const Vector by_turn = Wide(kByTurn), by_vector = Wide(FactorsFor(8 * sizeof(Vector)));
  Vector sums[kVectors];
  for (size_t k = 0; k < kVectors; ++k) sums[k] = Take<kCopies>(to, from, sizeof(Vector) * k);
  sums[0] = Onto(sums[0], First(state));
  for (size_t at = kFoldBytes; at < bytes; at += kFoldBytes) {
    for (size_t line = 0; line < kFoldBytes; line += kLineBytes) {
      // No fault, also behind the end.
      _mm_prefetch(reinterpret_cast<const char*>(reinterpret_cast<uintptr_t>(from) + at + kAhead + line), _MM_HINT_T0);
    }
    for (size_t k = 0; k < kVectors; ++k) {
      sums[k] = Onto(Take<kCopies>(to, from, at + sizeof(Vector) * k), Further(sums[k], by_turn));
    }
  }
  if constexpr (kCopies) _mm_sfence();  // the thread that is told of the copy sees it
  Vector sum = sums[0];
  for (size_t k = 1; k < kVectors; ++k) sum = Onto(sums[k], Further(sum, by_vector));
  alignas(sizeof(Vector)) uint8_t words[sizeof(Vector)];
  Store(words, sum);
  __m128i last = _mm_load_si128(reinterpret_cast<const __m128i*>(words));
  for (size_t at = 16; at < sizeof(Vector); at += 16) {
    last = _mm_xor_si128(_mm_load_si128(reinterpret_cast<const __m128i*>(words + at)), Further128(last));
  }
  const uint64_t first = _mm_crc32_u64(0, static_cast<uint64_t>(_mm_extract_epi64(last, 0)));
  return static_cast<uint32_t>(_mm_crc32_u64(first, static_cast<uint64_t>(_mm_extract_epi64(last, 1))));
}

VKV_FOLD_TARGET uint32_t Fold(const uint8_t* from, size_t bytes, uint32_t state) {
  return FoldAll</*kCopies=*/false>(nullptr, from, bytes, state);
}

VKV_FOLD_TARGET uint32_t FoldAndCopy(uint8_t* to, const uint8_t* from, size_t bytes, uint32_t state) {
  return FoldAll</*kCopies=*/true>(to, from, bytes, state);
}
