// Vectors for any machine: 4 floats as arrays, in loops that a compiler turns into whatever vectors it has. Included by
// simd_portable.cc only, inside its namespace.

constexpr int kWidth = 4;
constexpr int kTileRows = 4;  // of the matrix product's tile in registers
constexpr int kTileVectors = 2;
constexpr int kDotRows = 4;  // of its tile where both operands lie along their inputs
constexpr int kDotOutputs = 2;

struct Vector {
  float lane[kWidth];
};

template <typename Function>
inline Vector Each(Function function) {
  Vector result;
  for (int i = 0; i < kWidth; ++i) result.lane[i] = function(i);
  return result;
}

inline Vector Set(float value) {
  return Each([=](int) { return value; });
}
inline Vector Zero() { return Set(0); }
template <typename T>
inline Vector Load(const T* from) {
  return Each([=](int i) { return ToFloat(from[i]); });
}
template <typename T>
inline void Store(T* to, const Vector& value) {
  for (int i = 0; i < kWidth; ++i) to[i] = FromFloat<T>(value.lane[i]);
}
inline Vector Add(const Vector& a, const Vector& b) {
  return Each([&](int i) { return a.lane[i] + b.lane[i]; });
}
inline Vector Subtract(const Vector& a, const Vector& b) {
  return Each([&](int i) { return a.lane[i] - b.lane[i]; });
}
inline Vector Multiply(const Vector& a, const Vector& b) {
  return Each([&](int i) { return a.lane[i] * b.lane[i]; });
}
inline Vector Divide(const Vector& a, const Vector& b) {
  return Each([&](int i) { return a.lane[i] / b.lane[i]; });
}
inline Vector MultiplyAdd(const Vector& a, const Vector& b, const Vector& sum) {
  return Each([&](int i) { return a.lane[i] * b.lane[i] + sum.lane[i]; });
}
// Where one is NaN, b.
inline Vector Larger(const Vector& a, const Vector& b) {
  return Each([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
}
inline float SumOf(const Vector& value) { return (value.lane[0] + value.lane[1]) + (value.lane[2] + value.lane[3]); }
// The sums of 4 vectors, in one.
inline Vector SumsOf(const Vector* from) {
  return Each([&](int i) { return SumOf(from[i]); });
}
inline float LargestOf(const Vector& value) {
  float largest = value.lane[0];
  for (const float lane : value.lane) largest = lane > largest ? lane : largest;
  return largest;
}
// Adding and taking away 1.5 · 2²³ rounds to nearest; |value| is far below 2²².
inline Vector Round(const Vector& value) {
  constexpr float kMagic = 12582912.0f;
  return Each([&](int i) { return value.lane[i] + kMagic - kMagic; });
}
// value · 2ⁿ, n whole and −126 … 127, or NaN where value is.
inline Vector ScaleByPower(const Vector& value, const Vector& n) {
  return Each([&](int i) {
    const int32_t power = n.lane[i] == n.lane[i] ? static_cast<int32_t>(n.lane[i]) : 0;
    return value.lane[i] * std::bit_cast<float>((power + 127) << 23);
  });
}
// value where x is not below `least`, NaN included, else zero.
inline Vector ZeroBelow(const Vector& x, const Vector& least, const Vector& value) {
  return Each([&](int i) { return x.lane[i] < least.lane[i] ? 0.0f : value.lane[i]; });
}
// a · b + sum, rounded once: the same bits on every machine.
inline Vector FusedMultiplyAdd(const Vector& a, const Vector& b, const Vector& sum) {
  return Each([&](int i) { return __builtin_fmaf(a.lane[i], b.lane[i], sum.lane[i]); });
}
inline bool HasNan(const Vector& a, const Vector& b) {
  bool has = false;
  for (int i = 0; i < kWidth; ++i) has |= __builtin_isunordered(a.lane[i], b.lane[i]) != 0;
  return has;
}
// Writes the lanes that are `low` … `high` and their numbers, from `first` on, one behind the other, and returns how
// many. Up to kWidth entries behind them are overwritten.
inline int Compress(const Vector& value, const Vector& low, const Vector& high, int32_t first, float* values,
                    int32_t* ids) {
  int count = 0;
  for (int i = 0; i < kWidth; ++i) {
    values[count] = value.lane[i];
    ids[count] = first + i;
    count += value.lane[i] >= low.lane[i] && value.lane[i] <= high.lane[i] ? 1 : 0;
  }
  return count;
}
