// Operations on single rows: RMSNorm, rotary positions, gates, soft caps, conversion. Included after common_inl.h.

inline void Normalize(const Normalization& command, int64_t from, int64_t to) {
  const int64_t width = command.width;
  for (int64_t row = from; row < to; ++row) {
    const float* const input = command.input + row * width;
    float* const output = command.output + row * width;
    Vector squares = Zero();
    int64_t i = 0;
    for (; i + kWidth <= width; i += kWidth) squares = MultiplyAdd(Load(input + i), Load(input + i), squares);
    float sum = SumOf(squares);
    for (; i < width; ++i) sum += input[i] * input[i];
    const float factor = 1.0f / __builtin_sqrtf(sum / static_cast<float>(width) + command.epsilon);
    const Vector by = Set(factor);
    for (i = 0; i + kWidth <= width; i += kWidth) {
      const Vector value = Multiply(Multiply(Load(input + i), by), Load(command.weight + i));
      Store(output + i, command.adds ? Add(Load(output + i), value) : value);
    }
    for (; i < width; ++i) {
      const float value = input[i] * factor * command.weight[i];
      output[i] = command.adds ? output[i] + value : value;
    }
  }
}

inline void Rotate(const Rotation& command, int64_t from, int64_t to) {
  const int64_t half = command.dim / 2;
  for (int64_t row = from; row < to; ++row) {
    const float* const cosines = command.table + command.positions[row] * command.dim;
    const float* const sines = cosines + half;
    for (int64_t head = 0; head < command.heads; ++head) {
      float* const low = command.heads_of_rows + (row * command.heads + head) * command.dim;
      float* const high = low + half;
      int64_t i = 0;
      for (; i + kWidth <= half; i += kWidth) {
        const Vector a = Load(low + i);
        const Vector b = Load(high + i);
        const Vector c = Load(cosines + i);
        const Vector s = Load(sines + i);
        Store(low + i, Subtract(Multiply(a, c), Multiply(b, s)));
        Store(high + i, Add(Multiply(b, c), Multiply(a, s)));
      }
      for (; i < half; ++i) {
        const float a = low[i];
        const float b = high[i];
        low[i] = a * cosines[i] - b * sines[i];
        high[i] = b * cosines[i] + a * sines[i];
      }
    }
  }
}

// With e = exp(−|x|): sigmoid(x) is 1 / (1 + e) where x ≥ 0, else e / (1 + e).
inline void Gate(const Gating& command, int64_t from, int64_t to) {
  const bool is_silu = command.activation == Activation::kSilu;
  for (int64_t i = from; i < to; i += kWidth) {
    const int64_t lanes = to - i < kWidth ? to - i : kWidth;
    float x[kWidth] = {};
    for (int64_t lane = 0; lane < lanes; ++lane) x[lane] = command.gate[i + lane];
    Vector value = Load(x);
    if (!is_silu) {
      const Vector slope = MultiplyAdd(Multiply(value, value), Set(kGeluCubic), Set(kGeluLinear));
      value = Multiply(value, slope);
    }
    const Vector e = Exp(Subtract(Zero(), Larger(value, Subtract(Zero(), value))));
    float above[kWidth];
    float below[kWidth];
    Store(above, ZeroBelow(value, Zero(), Subtract(Set(1.0f), e)));  // 1 − e, or nothing; e is added below
    Store(below, e);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      command.output[i + lane] = x[lane] * ((above[lane] + below[lane]) / (1.0f + below[lane])) * command.up[i + lane];
    }
  }
}

inline void Cap(const Capping& command, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; i += kWidth) {
    const int64_t lanes = to - i < kWidth ? to - i : kWidth;
    float* const values = command.values + i;
    float capped[kWidth] = {};
    for (int64_t lane = 0; lane < lanes; ++lane) capped[lane] = values[lane];
    CapScores(capped, kWidth, command.cap);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      if (values[lane] == values[lane]) values[lane] = capped[lane];  // a NaN stays one
    }
  }
}

inline void ToFloats(float* to, const void* from, Dtype dtype, int64_t count) { ConvertRow(to, from, dtype, count); }
