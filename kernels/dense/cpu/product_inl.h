// Matrix products: both operands are contiguous along their inputs, so a tile of rows × outputs is a set of dot
// products, and nothing has to be transposed.
//
// A tile's sums are vectors, which are brought into one lane each at its end, a vector's width of them at a time. One
// row (decoding) is bound by memory: it reads the weights in the order of their addresses and fetches them a fixed
// distance ahead (1.0 to 1.2 times as fast as by tiles of 8 outputs). A few rows fetch the weights of the next tile
// meanwhile (4 to 24 rows: 1.1 to 2.3 times as fast as without): AVX-512 into the first-level cache (4 rows 1.14 times,
// 8 and 16 rows 1.01 to 1.07 times as fast as into the second), others into the second, since the first holds this
// tile. Many rows are bound by arithmetic, and weights are laid into panels of floats: MultiplyPacked, by rows or by
// tiles. All measured on an EPYC 9005 (Zen 5), not on Intel. Included after common_inl.h and before one of
// panel_rows_inl.h and panel_tiles_inl.h.

// Outputs of a tile of `rows` rows, and tiles whose sums fill whole vectors.
constexpr int TileOutputs(int rows) {
  if (rows == kDotRows) return kDotOutputs;
  return kWidth / rows < 8 ? kWidth / rows : 8;
}
constexpr int TilesAtOnce(int rows) {
  int tiles = 1;
  while (rows * TileOutputs(rows) * tiles % kWidth != 0) ++tiles;
  return tiles;
}

// The first `count` elements, then zeros: the end of a row is summed like the rest of it, whatever the tile.
template <typename T>
inline Vector LoadFirst(const T* from, int64_t count) {
  T elements[kWidth] = {};
  for (int64_t i = 0; i < count; ++i) elements[i] = from[i];
  return Load(elements);
}

// The cache that takes what is fetched ahead, as __builtin_prefetch counts them.
constexpr int kTileLocality = kWidth == 16 ? 3 : 2;

// One tile: sums[row, output] of the products of `count` inputs. `ahead` is where the next tile's weights begin.
template <int Rows, int Outputs, typename T>
inline void ProductTile(const float* const* rows, const T* const* weights, int64_t count, const T* ahead,
                        int64_t stride, Vector* sums) {
  Vector held[Rows][Outputs];
  for (int r = 0; r < Rows; ++r) {
    for (int o = 0; o < Outputs; ++o) held[r][o] = Zero();
  }
  for (int64_t i = 0; i + kWidth <= count; i += kWidth) {
    Vector weight[Outputs];
    for (int o = 0; o < Outputs; ++o) {
      weight[o] = Load(weights[o] + i);
      __builtin_prefetch(ahead + o * stride + i, 0, kTileLocality);
    }
    for (int r = 0; r < Rows; ++r) {
      const Vector row = Load(rows[r] + i);
      for (int o = 0; o < Outputs; ++o) held[r][o] = MultiplyAdd(row, weight[o], held[r][o]);
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int o = 0; o < Outputs; ++o) sums[r * Outputs + o] = held[r][o];
  }
}

// The same for the last `rest` inputs, fewer than a vector has lanes.
template <int Rows, int Outputs, typename T>
inline void AddRest(const float* const* rows, const T* const* weights, int64_t at, int64_t rest, Vector* sums) {
  for (int r = 0; r < Rows; ++r) {
    for (int o = 0; o < Outputs; ++o) {
      Vector& sum = sums[r * Outputs + o];
      sum = MultiplyAdd(LoadFirst(rows[r] + at, rest), LoadFirst(weights[o] + at, rest), sum);
    }
  }
}

// What one panel of weights is: outputs × `count` inputs, each output `stride` elements behind the last.
template <typename T>
struct Panel {
  const T* weights;
  int64_t stride;
  int outputs;
  int64_t count;
  const T* ahead;  // the next panel
};

// Adds the products of `Rows` rows (or `left`, if fewer are left) and a panel to sums [row, kPanelOutputs].
template <int Rows, typename T>
inline void MultiplyRows(const float* input, int64_t inputs, int64_t left, const Panel<T>& panel, float* sums) {
  constexpr int kOutputs = TileOutputs(Rows);
  constexpr int kTiles = TilesAtOnce(Rows);
  constexpr int kSums = Rows * kOutputs * kTiles;
  const float* rows[Rows];
  for (int r = 0; r < Rows; ++r) rows[r] = input + (r < left ? r : left - 1) * inputs;
  const int64_t rest = panel.count % kWidth;
  for (int first = 0; first < panel.outputs; first += kOutputs * kTiles) {
    Vector tiles[kSums];
    for (int tile = 0; tile < kTiles; ++tile) {
      const int from = first + tile * kOutputs;
      const T* weights[kOutputs];
      for (int o = 0; o < kOutputs; ++o) {
        weights[o] = panel.weights + (from + o < panel.outputs ? from + o : panel.outputs - 1) * panel.stride;
      }
      const int next = from + kOutputs;
      const T* const ahead = next < panel.outputs ? panel.weights + next * panel.stride : panel.ahead;
      Vector* const to = tiles + tile * Rows * kOutputs;
      ProductTile<Rows, kOutputs, T>(rows, weights, panel.count, ahead, panel.stride, to);
      if (rest != 0) AddRest<Rows, kOutputs, T>(rows, weights, panel.count - rest, rest, to);
    }
    float results[kSums];
    for (int i = 0; i < kSums; i += kWidth) Store(results + i, SumsOf(tiles + i));
    for (int r = 0; r < Rows && r < left; ++r) {
      for (int o = 0; o < kOutputs * kTiles && first + o < panel.outputs; ++o) {
        sums[r * kPanelOutputs + first + o] += results[o / kOutputs * Rows * kOutputs + r * kOutputs + o % kOutputs];
      }
    }
  }
}

// Weights of a product with as many bytes or more are fetched past the larger caches.
constexpr int64_t kStreamedBytes = 2 << 20;

// Whether one output at a time is as fast as memory: each addition waits for the one before it, about four cycles.
template <typename T>
constexpr bool kReadsInOrder = kWidth * sizeof(T) >= 32;

// The products of one row and `outputs` outputs, kPanelOutputs at most, added to sums. Sums are taken in the order of
// MultiplyRows, kPanelInputs inputs at a time, so that a row alone has the bits that it has beside others. kLocality:
// the caches that take what is fetched ahead, as __builtin_prefetch counts them.
template <int kLocality, typename T>
inline void MultiplyRow(const float* input, int64_t inputs, const T* weights, int outputs, float* sums) {
  constexpr int64_t kAhead = 8192 / static_cast<int64_t>(sizeof(T));  // fetched so many weights before they are used
  constexpr int kPieces = 4;
  for (int first = 0; first < outputs; first += kWidth) {
    for (int64_t from = 0; from < inputs; from += kPieces * kPanelInputs) {
      Vector held[kPieces][kWidth];  // [piece, output]
      int pieces = 0;
      for (int o = 0; o < kWidth; ++o) {
        const T* const weight = weights + (first + o < outputs ? first + o : outputs - 1) * inputs;
        pieces = 0;
        for (int64_t at = from; at < inputs && pieces < kPieces; at += kPanelInputs) {
          const int64_t count = inputs - at < kPanelInputs ? inputs - at : kPanelInputs;
          Vector sum = Zero();
          int64_t i = at;
          for (; i + kWidth <= at + count; i += kWidth) {
            __builtin_prefetch(weight + i + kAhead, 0, kLocality);
            sum = MultiplyAdd(Load(input + i), Load(weight + i), sum);
          }
          const int64_t rest = at + count - i;
          if (rest != 0) sum = MultiplyAdd(LoadFirst(input + i, rest), LoadFirst(weight + i, rest), sum);
          held[pieces++][o] = sum;
        }
      }
      for (int piece = 0; piece < pieces; ++piece) {
        float results[kWidth];
        Store(results, SumsOf(held[piece]));
        for (int o = 0; o < kWidth && first + o < outputs; ++o) sums[first + o] += results[o];
      }
    }
  }
}

// All rows of a block, in tiles as large as there are rows for.
template <typename T>
inline void MultiplyPanel(const float* input, int64_t inputs, int64_t rows, const Panel<T>& panel, float* sums) {
  constexpr int kFewRows = kDotRows < 4 ? kDotRows : 4;
  for (int64_t row = 0; row < rows;) {
    const int64_t left = rows - row;
    const float* const from = input + row * inputs;
    float* const to = sums + row * kPanelOutputs;
    if (left == 1) {
      MultiplyRows<1>(from, inputs, left, panel, to);
      row += 1;
    } else if (left == 2) {
      MultiplyRows<2>(from, inputs, left, panel, to);
      row += 2;
    } else if (left <= kFewRows) {
      MultiplyRows<kFewRows>(from, inputs, left, panel, to);
      row += kFewRows;
    } else {
      MultiplyRows<kDotRows>(from, inputs, left, panel, to);
      row += kDotRows;
    }
  }
}

// Writes the finished sums of a block of rows.
inline void FinishPanel(const Product& product, const float* sums, int64_t row, int64_t rows, int64_t first,
                        int outputs) {
  for (int64_t r = 0; r < rows; ++r) {
    float* const to = product.output + (row + r) * product.outputs + first;
    const float* const from = sums + r * kPanelOutputs;
    for (int o = 0; o < outputs; ++o) {
      const float sum = product.bias == nullptr ? from[o] : from[o] + product.bias[first + o];
      to[o] = product.adds ? to[o] + sum : sum;
    }
  }
}

// Adds the products of `rows` rows and `outputs` outputs of `count` inputs each, kPanelInputs at most, to sums [row,
// kPanelOutputs]: input [row, inputs] and weights [output, inputs] begin at the first of those inputs. `panel` has room
// for kPanelOutputs · kPanelStride floats. Defined by panel_rows_inl.h or panel_tiles_inl.h.
template <typename T>
void MultiplyPacked(const float* input, const T* weights, int64_t inputs, int64_t rows, int outputs, int64_t count,
                    float* panel, float* sums);

template <typename T>
inline void MultiplyAs(const ProductPart& part, float* scratch) {
  const Product& product = *part.product;
  const auto* const weights = static_cast<const T*>(product.weight);
  const int64_t inputs = part.input.inputs;
  float* const panel = scratch;
  float* const sums = panel + kPanelOutputs * kPanelStride;  // [row, output]
  // A panel is worth making when many tiles of rows use it; fewer hide the conversion behind their own arithmetic.
  const bool packs = part.input.rows > 8 * kDotRows;
  // No cache holds a model with weights of this size until the next token (1.02 times as fast in float32).
  const bool streams = product.outputs * inputs * static_cast<int64_t>(sizeof(T)) >= kStreamedBytes;
  // Weights that are read once are read along their inputs, a few outputs side by side.
  const int64_t step = packs ? kPanelOutputs : kFewOutputs;
  for (int64_t first = part.from; first < part.to; first += step) {
    const auto outputs = static_cast<int>(part.to - first < step ? part.to - first : step);
    for (int64_t row = 0; row < part.input.rows; row += kPanelRows) {
      const int64_t rows = part.input.rows - row < kPanelRows ? part.input.rows - row : kPanelRows;
      for (int64_t i = 0; i < rows * kPanelOutputs; ++i) sums[i] = 0;
      if (kReadsInOrder<T> && part.input.rows == 1) {
        if (streams) {
          MultiplyRow<0>(part.input.input, inputs, weights + first * inputs, outputs, sums);
        } else {
          MultiplyRow<3>(part.input.input, inputs, weights + first * inputs, outputs, sums);
        }
        FinishPanel(product, sums, row, rows, first, outputs);
        continue;
      }
      for (int64_t at = 0; at < inputs; at += kPanelInputs) {
        const int64_t count = inputs - at < kPanelInputs ? inputs - at : kPanelInputs;
        const T* const from = weights + first * inputs + at;
        const float* const input = part.input.input + row * inputs + at;
        if (packs) {
          MultiplyPacked<T>(input, from, inputs, rows, outputs, count, panel, sums);
        } else {
          const T* const ahead = at + kPanelInputs < inputs ? from + kPanelInputs : weights + (first + step) * inputs;
          MultiplyPanel<T>(input, inputs, rows, {from, inputs, outputs, count, ahead}, sums);
        }
      }
      FinishPanel(product, sums, row, rows, first, outputs);
    }
  }
}

inline void Multiply(const ProductPart& part, float* scratch) {
  switch (part.product->dtype) {
    case Dtype::kFloat32: return MultiplyAs<float>(part, scratch);
    case Dtype::kFloat16: return MultiplyAs<Half>(part, scratch);
    case Dtype::kBfloat16: return MultiplyAs<Bfloat>(part, scratch);
  }
}
