// Decode attention of one part of one sequence: all heads side by side, so that memory is read in the order it lies in.
//
// Tokens are taken in blocks: scores of a block for all query heads, then the running maximum and total, then its
// values. Query heads that share a KV head share its loads. While keys are read the same tokens' values are fetched,
// and while those are read the next block's keys: memory and arithmetic then take their time together and not one after
// the other (on an EPYC 9005, four float16 query heads to a KV head, 21.5 instead of 10.3 GB/s per core). Included
// after common_inl.h.

constexpr int kMostHeads = kWidth < 8 ? kWidth : 8;
constexpr int kSums = kTileRows * kTileVectors;  // vectors of sums that the registers hold

// Query heads to take together when so many are left.
constexpr int HeadsOf(int left) { return left >= 8 && kMostHeads == 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1; }

// One KV head of a block of tokens, and the query heads that share it.
struct HeadBlock {
  const uint8_t* keys;       // [token, dim]
  const uint8_t* values;     // [token, value dim]
  const uint8_t* next_keys;  // of the block after it; null when there is none
  int64_t key_bytes;         // from token to token
  int64_t value_bytes;
  int tokens;
  int dim;
  int value_dim;
  const float* queries;  // [query head, padded dim]
  float* scores;         // [query head, kDecodeTokens]
  float* sums;           // [query head, padded value dim]
};

// Scores of kWidth / Heads tokens from `first` on (the last again where there are no more) against `Heads` queries.
template <int Heads, typename T>
inline void ScoreTile(const HeadBlock& block, int head, int first) {
  constexpr int kTokens = kWidth / Heads;
  const int dim = block.dim;
  const int padded = Padded(dim);
  const float* const queries = block.queries + head * padded;
  const T* key[kTokens];
  for (int t = 0; t < kTokens; ++t) {
    const int token = first + t < block.tokens ? first + t : block.tokens - 1;
    key[t] = reinterpret_cast<const T*>(block.keys + token * block.key_bytes);
    if (head == 0) Prefetch(block.values + token * block.value_bytes, block.value_dim * int64_t{sizeof(T)});
  }
  Vector sums[kWidth];  // [head, token]
  for (int s = 0; s < kWidth; ++s) sums[s] = Zero();
  int i = 0;
  for (; i + kWidth <= dim; i += kWidth) {
    Vector k[kTokens];
    for (int t = 0; t < kTokens; ++t) k[t] = Load(key[t] + i);
    for (int h = 0; h < Heads; ++h) {
      const Vector q = Load(queries + h * padded + i);
      for (int t = 0; t < kTokens; ++t) sums[h * kTokens + t] = MultiplyAdd(k[t], q, sums[h * kTokens + t]);
    }
  }
  float result[kWidth];
  Store(result, SumsOf(sums));
  for (int h = 0; h < Heads; ++h) {
    for (int t = 0; t < kTokens; ++t) {
      float score = result[h * kTokens + t];
      for (int rest = i; rest < dim; ++rest) score += ToFloat(key[t][rest]) * queries[h * padded + rest];
      block.scores[(head + h) * kDecodeTokens + first + t] = score;
    }
  }
}

template <int Heads, typename T>
inline void ScoreHeads(const HeadBlock& block, int head, int first) {
  for (int token = first; token < first + kWidth && token < block.tokens; token += kWidth / Heads) {
    ScoreTile<Heads, T>(block, head, token);
  }
}

// Turns one query head's scores of a block into weights; returns by what the sums so far are to be multiplied.
inline float Weigh(float* scores, int tokens, float& largest, float& total) {
  for (int token = tokens; token < kDecodeTokens; ++token) scores[token] = -__builtin_inff();
  const float before = largest;
  Vector most = Set(before);
  for (int i = 0; i < kDecodeTokens; i += kWidth) most = Larger(Load(scores + i), most);  // never NaN
  largest = LargestOf(most);
  Vector sum = Zero();
  for (int i = 0; i < kDecodeTokens; i += kWidth) {
    const Vector weight = Exp(Subtract(Load(scores + i), Set(largest)));
    Store(scores + i, weight);
    sum = Add(sum, weight);
  }
  const float correction = before == largest ? 1 : ExpOf(before - largest);
  total = total * correction + SumOf(sum);
  return correction;
}

// sums = sums · correction + Σ weight · value, of `Heads` heads, `Vectors` vectors from element i on.
template <int Heads, int Vectors, typename T>
inline void AddTile(const HeadBlock& block, int head, const float* corrections, int i) {
  const int padded = Padded(block.value_dim);
  float* const sums = block.sums + head * padded + i;
  const float* const weights = block.scores + head * kDecodeTokens;
  Vector held[Heads][Vectors];
  for (int h = 0; h < Heads; ++h) {
    const Vector correction = Set(corrections[h]);
    for (int v = 0; v < Vectors; ++v) held[h][v] = Multiply(Load(sums + h * padded + v * kWidth), correction);
  }
  const bool is_fetching = head == 0 && block.next_keys != nullptr;
  for (int token = 0; token < block.tokens; ++token) {
    const T* const value = reinterpret_cast<const T*>(block.values + token * block.value_bytes) + i;
    if (is_fetching) {
      Prefetch(block.next_keys + token * block.key_bytes + i * int64_t{sizeof(T)},
               Vectors * kWidth * int64_t{sizeof(T)});
    }
    Vector loaded[Vectors];
    for (int v = 0; v < Vectors; ++v) loaded[v] = Load(value + v * kWidth);
    for (int h = 0; h < Heads; ++h) {
      const Vector weight = Set(weights[h * kDecodeTokens + token]);
      for (int v = 0; v < Vectors; ++v) held[h][v] = MultiplyAdd(weight, loaded[v], held[h][v]);
    }
  }
  for (int h = 0; h < Heads; ++h) {
    for (int v = 0; v < Vectors; ++v) Store(sums + h * padded + v * kWidth, held[h][v]);
  }
}

template <int Heads, typename T>
inline void AddHeads(const HeadBlock& block, int head, const float* corrections) {
  constexpr int kVectors = kSums / Heads < 1 ? 1 : kSums / Heads > 4 ? 4 : kSums / Heads;
  int i = 0;
  for (; i + kVectors * kWidth <= block.value_dim; i += kVectors * kWidth) {
    AddTile<Heads, kVectors, T>(block, head, corrections, i);
  }
  for (; i + kWidth <= block.value_dim; i += kWidth) AddTile<Heads, 1, T>(block, head, corrections, i);
  for (; i < block.value_dim; ++i) {
    for (int h = 0; h < Heads; ++h) {
      float& held = block.sums[(head + h) * Padded(block.value_dim) + i];
      float sum = held * corrections[h];
      for (int token = 0; token < block.tokens; ++token) {
        sum += block.scores[(head + h) * kDecodeTokens + token] *
               ToFloat(reinterpret_cast<const T*>(block.values + token * block.value_bytes)[i]);
      }
      held = sum;
    }
  }
}

template <typename T>
inline void ScoreBlock(const HeadBlock& block, int group, int first) {
  for (int head = 0; head < group; head += HeadsOf(group - head)) {
    switch (HeadsOf(group - head)) {
      case 1: ScoreHeads<1, T>(block, head, first); break;
      case 2: ScoreHeads<2, T>(block, head, first); break;
      case 4: ScoreHeads<4, T>(block, head, first); break;
      default: ScoreHeads<kMostHeads, T>(block, head, first); break;
    }
  }
}

template <typename T>
inline void AddBlock(const HeadBlock& block, int group, float* largest, float* total) {
  for (int head = 0; head < group; head += HeadsOf(group - head)) {
    float corrections[kMostHeads];
    for (int h = 0; h < HeadsOf(group - head); ++h) {
      corrections[h] =
          Weigh(block.scores + (head + h) * kDecodeTokens, block.tokens, largest[head + h], total[head + h]);
    }
    switch (HeadsOf(group - head)) {
      case 1: AddHeads<1, T>(block, head, corrections); break;
      case 2: AddHeads<2, T>(block, head, corrections); break;
      case 4: AddHeads<4, T>(block, head, corrections); break;
      default: AddHeads<kMostHeads, T>(block, head, corrections); break;
    }
  }
}

template <typename T>
inline void DecodeAs(const DecodePart& part, float* scratch) {
  const AttentionCommand& command = *part.command;
  const Tensor& keys = command.keys;
  const Tensor& values = command.values;
  const int group = command.query_heads / keys.heads;
  const int padded = Padded(keys.dim);
  const int value_padded = Padded(values.dim);
  float* const queries = scratch;                                // [query head, padded dim]
  float* const scores = queries + command.query_heads * padded;  // [query head, token of the block]
  for (int head = 0; head < command.query_heads; ++head) {
    const int64_t first = (int64_t{part.row} * command.query_heads + head) * keys.dim;
    LoadRow(queries + head * padded, command.queries, command.row_dtype, first, keys.dim, padded, command.scale);
    part.largest[head] = part.has_sinks ? SinkOf(command, head) : -__builtin_inff();
    part.total[head] = part.has_sinks ? 1 : 0;
  }
  for (int i = 0; i < command.query_heads * value_padded; ++i) part.sums[i] = 0;

  for (int32_t from = part.from; from < part.to; from += kDecodeTokens) {
    const int tokens = part.to - from < kDecodeTokens ? part.to - from : kDecodeTokens;
    const bool is_last = from + kDecodeTokens >= part.to;
    const auto block_of = [&](int kv_head) {
      const int head = kv_head * group;
      const uint8_t* const key = TokenAt(keys, part.slot, from) + kv_head * keys.head_bytes;
      return HeadBlock{key,
                       TokenAt(values, part.slot, from) + kv_head * values.head_bytes,
                       is_last ? nullptr : key + kDecodeTokens * keys.token_bytes,
                       keys.token_bytes,
                       values.token_bytes,
                       tokens,
                       keys.dim,
                       values.dim,
                       queries + head * padded,
                       scores + head * kDecodeTokens,
                       part.sums + head * value_padded};
    };
    for (int first = 0; first < tokens; first += kWidth) {
      for (int kv_head = 0; kv_head < keys.heads; ++kv_head) ScoreBlock<T>(block_of(kv_head), group, first);
    }
    for (int head = 0; head < command.query_heads && command.softcap > 0; ++head) {
      CapScores(scores + head * kDecodeTokens, kDecodeTokens, command.softcap);
    }
    for (int kv_head = 0; kv_head < keys.heads; ++kv_head) {
      AddBlock<T>(block_of(kv_head), group, part.largest + kv_head * group, part.total + kv_head * group);
    }
  }
}

inline void Decode(const DecodePart& part, float* scratch) {
  switch (part.command->cache_dtype) {
    case Dtype::kFloat32: return DecodeAs<float>(part, scratch);
    case Dtype::kFloat16: return DecodeAs<Half>(part, scratch);
    case Dtype::kBfloat16: return DecodeAs<Bfloat>(part, scratch);
  }
}

// Σ e^(largest − most) · sums over Σ e^(largest − most) · total, into part 0 and from there to the output.
inline void Merge(const DecodeParts& parts) {
  const AttentionCommand& command = *parts.command;
  const int dim = command.values.dim;
  const int padded = Padded(dim);
  for (int head = 0; head < command.query_heads; ++head) {
    float* const sums = parts.sums + head * padded;
    float most = parts.largest[head];
    for (int p = 1; p < parts.count; ++p) {
      const float other = parts.largest[p * parts.stride + head];
      most = other > most ? other : most;
    }
    float total = 0;
    for (int p = 0; p < parts.count; ++p) {
      const float factor = ExpOf(parts.largest[p * parts.stride + head] - most);
      total += factor * parts.total[p * parts.stride + head];
      const float* const own = sums + p * parts.stride;
      const Vector by = Set(factor);
      for (int i = 0; i < padded; i += kWidth) {
        const Vector term = Multiply(Load(own + i), by);
        Store(sums + i, p == 0 ? term : Add(Load(sums + i), term));
      }
    }
    StoreRow(command.output, command.row_dtype, (int64_t{parts.row} * command.query_heads + head) * dim, sums, dim,
             1 / total);
  }
}
