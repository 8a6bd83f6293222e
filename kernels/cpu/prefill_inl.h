// Prefill attention of one block of queries against all keys they may see, in blocks of keys (the algorithm of
// FlashAttention: no score leaves the cache). Blocks of keys begin at multiples of kPrefillTokens, and a token that a
// row does not see adds exactly zero to it: so a row's result does not depend on the rows beside it. Both products,
// keys · queriesᵀ and weights · values, are one small matrix product; scores are kept transposed, [token, row], so that
// maximum and total of a row are those of a vector's lane. Included after common_inl.h.

// c[r, ·] += Σ_k a[r · row_step + k · step] · b[k, ·] for `Rows` rows and `Vectors` vectors, accumulated in registers.
template <int Rows, int Vectors>
inline void MultiplyTile(const float* a, int row_step, int step, const float* b, int b_stride, float* c, int c_stride,
                         int count) {
  Vector sums[Rows][Vectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) sums[r][v] = Load(c + r * c_stride + v * kWidth);
  }
  for (int k = 0; k < count; ++k) {
    Vector right[Vectors];
    for (int v = 0; v < Vectors; ++v) right[v] = Load(b + k * b_stride + v * kWidth);
    for (int r = 0; r < Rows; ++r) {
      const Vector left = Set(a[r * row_step + k * step]);
      for (int v = 0; v < Vectors; ++v) sums[r][v] = MultiplyAdd(left, right[v], sums[r][v]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) Store(c + r * c_stride + v * kWidth, sums[r][v]);
  }
}

// `rows` is a multiple of kTileRows, `columns` of kWidth; what pads them is scratch.
inline void MultiplyMatrices(const float* a, int row_step, int step, const float* b, int b_stride, float* c,
                             int c_stride, int rows, int columns, int count) {
  for (int r = 0; r < rows; r += kTileRows) {
    int j = 0;
    for (; j + kTileVectors * kWidth <= columns; j += kTileVectors * kWidth) {
      MultiplyTile<kTileRows, kTileVectors>(a + r * row_step, row_step, step, b + j, b_stride, c + r * c_stride + j,
                                            c_stride, count);
    }
    for (; j < columns; j += kWidth) {
      MultiplyTile<kTileRows, 1>(a + r * row_step, row_step, step, b + j, b_stride, c + r * c_stride + j, c_stride,
                                 count);
    }
  }
}

constexpr float kLeastScore = -3e38f;  // below every score, and no infinity: nothing minus nothing is zero

constexpr int RoundUp(int value, int step) { return (value + step - 1) / step * step; }

// One head of tokens [from + skipped, from + count) of a slot as floats, [token − from, padded dim]; zeros before them
// and up to `padded_count`.
inline void LoadTokens(float* to, const Tensor& tensor, Dtype dtype, int32_t slot, int32_t from, int skipped, int count,
                       int padded_count, int32_t head) {
  const int padded = Padded(tensor.dim);
  for (int i = 0; i < skipped * padded; ++i) to[i] = 0;
  for (int token = skipped; token < count; ++token) {
    const auto at = reinterpret_cast<uint64_t>(TokenAt(tensor, slot, from + token) + head * tensor.head_bytes);
    LoadRow(to + token * padded, at, dtype, 0, tensor.dim, padded, 1);
  }
  for (int i = count * padded; i < padded_count * padded; ++i) to[i] = 0;
}

inline void Prefill(const PrefillPart& part, float* scratch) {
  const AttentionCommand& command = *part.command;
  const Span& span = part.span;
  const int dim = command.keys.dim;
  const int padded = Padded(dim);
  const int value_dim = command.values.dim;
  const int value_padded = Padded(value_dim);
  const int heads = part.to_head - part.from_head;
  const int rows = (part.to_token - part.from_token) * heads;
  const int vector_rows = RoundUp(rows, kWidth > kTileRows ? kWidth : kTileRows);

  float* const queries = scratch;                           // [dim, row]
  float* const sums = queries + kPrefillRows * padded;      // [row, padded value dim]
  float* const block = sums + kPrefillRows * value_padded;  // [token, padded (value) dim]
  float* const scores = block + kPrefillTokens * (padded > value_padded ? padded : value_padded);  // [token, row]
  float* const largest = scores + kPrefillTokens * kPrefillRows;                                   // these: [row]
  float* const total = largest + kPrefillRows;
  float* const correction = total + kPrefillRows;
  float* const first = correction + kPrefillRows;  // the row sees tokens [first, limit)
  float* const limit = first + kPrefillRows;

  const auto row_of = [&](int row) {  // in units of [row, query head]
    return int64_t{span.first_row + part.from_token + row / heads} * command.query_heads + part.from_head + row % heads;
  };
  for (int row = 0; row < vector_rows; ++row) {
    const int real = row < rows ? row : rows - 1;  // what pads does the last row's work once more
    LoadRow(block, command.queries, command.row_dtype, row_of(real) * dim, dim, padded, command.scale);
    for (int i = 0; i < padded; ++i) queries[i * kPrefillRows + row] = block[i];
    const float sink = command.sinks == 0 ? -__builtin_inff() : SinkOf(command, part.from_head + real % heads);
    largest[row] = sink > kLeastScore ? sink : kLeastScore;
    total[row] = sink > kLeastScore ? 1 : 0;
    const int32_t position = span.length + part.from_token + real / heads;
    first[row] = static_cast<float>(FirstSeen(command, position));
    limit[row] = static_cast<float>(position + 1);
  }
  for (int i = 0; i < vector_rows * value_padded; ++i) sums[i] = 0;

  const int32_t end = span.length + part.to_token;            // behind the last token that a row sees
  const int32_t all_see = span.length + part.from_token + 1;  // and that all of them see
  const int32_t begin = FirstSeen(command, all_see - 1);      // the first that a row sees
  const int32_t all_see_from = FirstSeen(command, end - 1);   // and that all of them see
  for (int32_t from = begin - begin % kPrefillTokens; from < end; from += kPrefillTokens) {
    const int tokens = end - from < kPrefillTokens ? end - from : kPrefillTokens;
    const int skipped = from < begin ? begin - from : 0;
    const int tile_tokens = RoundUp(tokens, kTileRows);
    LoadTokens(block, command.keys, command.cache_dtype, span.slot, from, skipped, tokens, tile_tokens, part.kv_head);
    for (int token = 0; token < tile_tokens; ++token) {
      for (int row = 0; row < vector_rows; row += kWidth) Store(scores + token * kPrefillRows + row, Zero());
    }
    MultiplyMatrices(block, padded, 1, queries, kPrefillRows, scores, kPrefillRows, tile_tokens, vector_rows, dim);

    for (int token = 0; token < tokens && command.softcap > 0; ++token) {
      CapScores(scores + token * kPrefillRows, vector_rows, command.softcap);
    }

    const bool hides_earlier = from < all_see_from;
    const bool is_masked = hides_earlier || from + tokens > all_see;
    for (int row = 0; row < vector_rows; row += kWidth) {
      const Vector before = Load(largest + row);
      const Vector sees_from = Load(first + row);
      const Vector sees_to = Load(limit + row);
      Vector most = before;
      for (int token = 0; token < tokens; ++token) {
        float* const own = scores + token * kPrefillRows + row;
        // Hidden scores lie so far below kLeastScore that their weights are zero, also where a row sees nothing yet.
        const Vector score = Load(own);
        if (!is_masked) {
          most = Larger(score, most);  // never NaN
          continue;
        }
        const Vector next = Set(static_cast<float>(from + token + 1));
        const Vector is_later = Subtract(Set(1), ZeroBelow(sees_to, next, Set(1)));
        const Vector hidden = hides_earlier ? Add(is_later, ZeroBelow(sees_from, next, Set(1))) : is_later;
        const Vector masked = MultiplyAdd(hidden, Set(-3.4e38f), score);
        Store(own, masked);
        most = Larger(masked, most);
      }
      Vector sum = Zero();
      for (int token = 0; token < tokens; ++token) {
        float* const own = scores + token * kPrefillRows + row;
        const Vector weight = Exp(Subtract(Load(own), most));
        Store(own, weight);
        sum = Add(sum, weight);
      }
      const Vector factor = Exp(Subtract(before, most));
      Store(correction + row, factor);
      Store(largest + row, most);
      Store(total + row, MultiplyAdd(Load(total + row), factor, sum));
    }
    for (int row = 0; row < vector_rows; ++row) {
      if (correction[row] == 1) continue;
      const Vector factor = Set(correction[row]);
      float* const own = sums + row * value_padded;
      for (int i = 0; i < value_padded; i += kWidth) Store(own + i, Multiply(Load(own + i), factor));
    }
    LoadTokens(block, command.values, command.cache_dtype, span.slot, from, skipped, tokens, tokens, part.kv_head);
    MultiplyMatrices(scores, 1, kPrefillRows, block, value_padded, sums, value_padded, vector_rows, value_padded,
                     tokens);
  }
  for (int row = 0; row < rows; ++row) {
    StoreRow(command.output, command.row_dtype, row_of(row) * value_dim, sums + row * value_padded, value_dim,
             1 / total[row]);
  }
}
