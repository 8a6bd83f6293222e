// The inner loops of sampling. Included after a vectors_*_inl.h, inside its namespace and target.

constexpr int kVectors = kLanes / kWidth;

inline bool Largest(const float* block, float* groups) {
  bool has_nan = false;
  for (int group = 0; group < kGroups; ++group) {
    const float* const from = block + group * kGroup;
    Vector largest = Load(from);
    for (int i = 0; i < kGroup; i += 2 * kWidth) {
      const Vector a = Load(from + i);
      const Vector b = Load(from + i + kWidth);
      has_nan |= HasNan(a, b);
      largest = Larger(largest, Larger(a, b));
    }
    groups[group] = LargestOf(largest);
  }
  return has_nan;
}

// 2^u for u ≤ 0; zero below −125. No sum here has a product as a term, unless it is fused: compilers must not choose.
inline Vector Power(Vector u) {
  const Vector least = Set(-125.0f);
  const Vector clamped = Larger(u, least);
  const Vector n = Round(clamped);
  const Vector r = Multiply(Subtract(clamped, n), Set(0.693147180559945f));
  Vector sum = Set(1.9875691500e-4f);  // Cephes' polynomial of eʳ
  sum = FusedMultiplyAdd(sum, r, Set(1.3981999507e-3f));
  sum = FusedMultiplyAdd(sum, r, Set(8.3334519073e-3f));
  sum = FusedMultiplyAdd(sum, r, Set(4.1665795894e-2f));
  sum = FusedMultiplyAdd(sum, r, Set(1.6666665459e-1f));
  sum = FusedMultiplyAdd(sum, r, Set(5.0000001201e-1f));
  sum = Add(FusedMultiplyAdd(sum, Multiply(r, r), r), Set(1.0f));
  return ZeroBelow(u, least, ScaleByPower(sum, n));
}

inline double Weigh(const float* logits, int64_t count, float largest, float factor, float least, float* weights) {
  Vector sums[kVectors];
  for (Vector& sum : sums) sum = Zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    for (int v = 0; v < kVectors; ++v) {
      const Vector logit = Load(logits + i + v * kWidth);
      const Vector power = Power(Multiply(Subtract(logit, Set(largest)), Set(factor)));
      const Vector weight = ZeroBelow(logit, Set(least), power);
      Store(weights + i + v * kWidth, weight);
      sums[v] = Add(sums[v], weight);
    }
  }
  float lanes[kLanes];
  for (int v = 0; v < kVectors; ++v) Store(lanes + v * kWidth, sums[v]);
  double total = 0;
  for (const float lane : lanes) total += static_cast<double>(lane);
  return total;
}

inline int64_t Gather(const float* block, float low, float high, int32_t first, float* values, int32_t* tokens) {
  int64_t count = 0;
  for (int i = 0; i < kBlock; i += kWidth) {
    count += Compress(Load(block + i), Set(low), Set(high), first + i, values + count, tokens + count);
  }
  return count;
}
