// What the inner loops share, over any of the vectors: conversions of whole rows, and the exponential function.
// Included after a vectors_*_inl.h, inside its namespace and target. It calls nothing that the linker could merge with
// a copy from another file (std:: templates, say): that copy might need instructions which this machine does not have.

// Elements [0, count) as floats, then zeros up to `padded`, each times `factor`.
template <typename T>
inline void LoadRow(float* to, const T* from, int count, int padded, float factor) {
  const Vector by = Set(factor);
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) Store(to + i, Multiply(Load(from + i), by));
  for (; i < count; ++i) to[i] = ToFloat(from[i]) * factor;
  for (; i < padded; ++i) to[i] = 0;
}

template <typename T>
inline void StoreRow(T* to, const float* from, int count, float factor) {
  const Vector by = Set(factor);
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) Store(to + i, Multiply(Load(from + i), by));
  for (; i < count; ++i) to[i] = FromFloat<T>(from[i] * factor);
}

inline void LoadRow(float* to, uint64_t from, Dtype dtype, int64_t first, int count, int padded, float factor) {
  switch (dtype) {
    case Dtype::kFloat32: return LoadRow(to, reinterpret_cast<const float*>(from) + first, count, padded, factor);
    case Dtype::kFloat16: return LoadRow(to, reinterpret_cast<const Half*>(from) + first, count, padded, factor);
    case Dtype::kBfloat16: return LoadRow(to, reinterpret_cast<const Bfloat*>(from) + first, count, padded, factor);
  }
}

inline void StoreRow(uint64_t to, Dtype dtype, int64_t first, const float* from, int count, float factor) {
  switch (dtype) {
    case Dtype::kFloat32: return StoreRow(reinterpret_cast<float*>(to) + first, from, count, factor);
    case Dtype::kFloat16: return StoreRow(reinterpret_cast<Half*>(to) + first, from, count, factor);
    case Dtype::kBfloat16: return StoreRow(reinterpret_cast<Bfloat*>(to) + first, from, count, factor);
  }
}

template <typename To, typename From>
inline void ConvertRow(To* to, const From* from, int64_t count) {
  int64_t i = 0;
  for (; i + kWidth <= count; i += kWidth) Store(to + i, Load(from + i));
  for (; i < count; ++i) to[i] = FromFloat<To>(ToFloat(from[i]));
}

template <typename To>
inline void ConvertRow(To* to, const void* from, Dtype dtype, int64_t count) {
  switch (dtype) {
    case Dtype::kFloat32: return ConvertRow(to, static_cast<const float*>(from), count);
    case Dtype::kFloat16: return ConvertRow(to, static_cast<const Half*>(from), count);
    case Dtype::kBfloat16: return ConvertRow(to, static_cast<const Bfloat*>(from), count);
  }
}

inline void Convert(void* to, Dtype to_dtype, const void* from, Dtype from_dtype, int64_t count) {
  switch (to_dtype) {
    case Dtype::kFloat32: return ConvertRow(static_cast<float*>(to), from, from_dtype, count);
    case Dtype::kFloat16: return ConvertRow(static_cast<Half*>(to), from, from_dtype, count);
    case Dtype::kBfloat16: return ConvertRow(static_cast<Bfloat*>(to), from, from_dtype, count);
  }
}

// eˣ for x ≤ 0, to 2 units in the last place; zero below −87, minus infinity included; NaN of NaN, so that a score that
// is no number shows in the result. 2ⁿ · eʳ with |r| ≤ ln 2 / 2.
inline Vector Exp(Vector x) {
  const Vector least = Set(-87.0f);
  const Vector clamped = Larger(least, x);
  const Vector n = Round(Multiply(clamped, Set(1.44269504088896341f)));
  const Vector r = MultiplyAdd(n, Set(2.12194440e-4f), MultiplyAdd(n, Set(-0.693359375f), clamped));
  Vector sum = Set(1.9875691500e-4f);  // Cephes' polynomial
  sum = MultiplyAdd(sum, r, Set(1.3981999507e-3f));
  sum = MultiplyAdd(sum, r, Set(8.3334519073e-3f));
  sum = MultiplyAdd(sum, r, Set(4.1665795894e-2f));
  sum = MultiplyAdd(sum, r, Set(1.6666665459e-1f));
  sum = MultiplyAdd(sum, r, Set(5.0000001201e-1f));
  sum = Add(MultiplyAdd(sum, Multiply(r, r), r), Set(1.0f));
  return ZeroBelow(x, least, ScaleByPower(sum, n));
}

inline float ExpOf(float x) {
  float lanes[kWidth];
  Store(lanes, Exp(Set(x)));
  return lanes[0];
}

// The hyperbolic tangent, to 4 · 10⁻⁷ of itself: a quotient of polynomials (Eigen's), within ±7.9, where it is 1.
inline Vector Tanh(Vector x) {
  constexpr float kMost = 7.90531110763549805f;
  constexpr float kAbove[] = {-2.76076847742355e-16f, 2.00018790482477e-13f, -8.60467152213735e-11f,
                              5.12229709037114e-08f,  1.48572235717979e-05f, 6.37261928875436e-04f,
                              4.89352455891786e-03f};
  constexpr float kBelow[] = {1.19825839466702e-06f, 1.18534705686654e-04f, 2.26843463243900e-03f,
                              4.89352518554385e-03f};
  const Vector negated = Larger(Set(-kMost), Subtract(Zero(), x));  // NaN stays: Larger gives the second then
  const Vector clamped = Larger(Set(-kMost), Subtract(Zero(), negated));
  const Vector square = Multiply(clamped, clamped);
  Vector above = Zero();
  for (const float next : kAbove) above = MultiplyAdd(above, square, Set(next));
  Vector below = Zero();
  for (const float next : kBelow) below = MultiplyAdd(below, square, Set(next));
  return Divide(Multiply(above, clamped), below);
}

// scores = cap · tanh(scores / cap); `count` is a multiple of kWidth.
inline void CapScores(float* scores, int count, float cap) {
  for (int i = 0; i < count; i += kWidth) {
    Store(scores + i, Multiply(Tanh(Multiply(Load(scores + i), Set(1 / cap))), Set(cap)));
  }
}

inline float SinkOf(const AttentionCommand& command, int head) {
  return reinterpret_cast<const float*>(command.sinks)[head];
}

inline const uint8_t* TokenAt(const Tensor& tensor, int64_t slot, int64_t token) {
  return reinterpret_cast<const uint8_t*>(tensor.address) + slot * tensor.slot_bytes + token * tensor.token_bytes;
}

// Lines are fetched before they are needed; past the end of memory that is harmless.
inline void Prefetch(const uint8_t* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}
