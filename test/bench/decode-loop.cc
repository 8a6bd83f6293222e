// Decoding one sequence of a Llama in float32 as a plain C program does it: every product is a loop over rows that
// OpenMP divides, compiled with -Ofast for this processor; weights, and K and V, lie one behind the other. The weights
// are zeros. For every byte on standard input it decodes TOKENS tokens behind those so far and prints the bytes of
// weights that they read, and the nanoseconds by the clock and of the CPU. Usage: decode-loop LAYERS HIDDEN
// INTERMEDIATE QUERY_HEADS KV_HEADS HEAD_DIM VOCABULARY MOST_TOKENS TOKENS
#include <time.h>
#include <unistd.h>

#include <cmath>
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

static void Product(float* out, const float* x, const float* w, int columns, int rows) {
#pragma omp parallel for
  for (int row = 0; row < rows; ++row) {
    float sum = 0;
    for (int k = 0; k < columns; ++k) sum += w[size_t(row) * columns + k] * x[k];
    out[row] = sum;
  }
}

static void Normalize(float* out, const float* x, const float* w, int n) {
  float sum = 0;
  for (int k = 0; k < n; ++k) sum += x[k] * x[k];
  const float scale = 1 / std::sqrt(sum / n + 1e-5f);
  for (int k = 0; k < n; ++k) out[k] = w[k] * scale * x[k];
}

static void Rotate(float* x, int heads, int head, int at) {
  for (int h = 0; h < heads; ++h) {
    for (int k = 0; k < head; k += 2) {
      const float angle = at * std::pow(1e5f, -float(k) / head), c = std::cos(angle), s = std::sin(angle);
      float* const pair = x + h * head + k;
      const float first = pair[0], second = pair[1];
      pair[0] = first * c - second * s;
      pair[1] = first * s + second * c;
    }
  }
}

int main(int argc, char** argv) {
  if (argc != 10) return 2;
  int given[9];
  for (int k = 0; k < 9; ++k) given[k] = atoi(argv[k + 1]);
  const auto [layers, hidden, intermediate, heads, kv_heads, head, vocabulary, most, tokens] = given;
  const int width = heads * head, kv = kv_heads * head;
  const size_t layer = size_t(hidden) * (2 * width + 2 * kv + 3 * intermediate);
  // Zeros that are written: memory that never was has no pages of its own.
  std::vector<float> weights(layers * layer + size_t(vocabulary) * hidden), norm(hidden, 1);
  std::vector<float> keys(size_t(layers) * most * kv), values(keys.size());
  std::vector<float> x(hidden, 1), normed(hidden), q(width), out(width), back(hidden), gate(intermediate),
      up(intermediate);
  std::vector<float> scores(size_t(heads) * most), logits(vocabulary);
  int at = 0;
  for (char ask; read(0, &ask, 1) == 1;) {
    if (at + tokens > most) return 1;
    const int64_t start = Now(CLOCK_MONOTONIC), used = Now(CLOCK_PROCESS_CPUTIME_ID);
    for (const int end = at + tokens; at < end; ++at) {
      for (int l = 0; l < layers; ++l) {
        const float* w = weights.data() + l * layer;
        float* const k_rows = keys.data() + size_t(l) * most * kv;
        float* const v_rows = values.data() + size_t(l) * most * kv;
        float* const k = k_rows + size_t(at) * kv;
        Normalize(normed.data(), x.data(), norm.data(), hidden);
        Product(q.data(), normed.data(), w, hidden, width);
        Product(k, normed.data(), w += size_t(hidden) * width, hidden, kv);
        Product(v_rows + size_t(at) * kv, normed.data(), w += size_t(hidden) * kv, hidden, kv);
        Rotate(q.data(), heads, head, at);
        Rotate(k, kv_heads, head, at);
#pragma omp parallel for
        for (int h = 0; h < heads; ++h) {
          float* const score = scores.data() + size_t(h) * most;
          const size_t group = size_t(h / (heads / kv_heads)) * head;
          float sum = 0;
          for (int t = 0; t <= at; ++t) {
            float dot = 0;
            for (int i = 0; i < head; ++i) dot += q[h * head + i] * k_rows[size_t(t) * kv + group + i];
            sum += score[t] = std::exp(dot / std::sqrt(float(head)));
          }
          float* const o = out.data() + h * head;
          std::memset(o, 0, head * sizeof(float));
          for (int t = 0; t <= at; ++t)
            for (int i = 0; i < head; ++i) o[i] += score[t] / sum * v_rows[size_t(t) * kv + group + i];
        }
        Product(back.data(), out.data(), w += size_t(hidden) * kv, width, hidden);
        for (int i = 0; i < hidden; ++i) x[i] += back[i];
        Normalize(normed.data(), x.data(), norm.data(), hidden);
        Product(gate.data(), normed.data(), w += size_t(hidden) * width, hidden, intermediate);
        Product(up.data(), normed.data(), w += size_t(hidden) * intermediate, hidden, intermediate);
        for (int i = 0; i < intermediate; ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
        Product(back.data(), gate.data(), w += size_t(hidden) * intermediate, intermediate, hidden);
        for (int i = 0; i < hidden; ++i) x[i] += back[i];
      }
      Normalize(x.data(), x.data(), norm.data(), hidden);
      Product(logits.data(), x.data(), weights.data() + layers * layer, hidden, vocabulary);
      x[0] += logits[0];
    }
    printf("%zu %lld %lld\n", size_t(tokens) * weights.size() * sizeof(float),
           static_cast<long long>(Now(CLOCK_MONOTONIC) - start),
           static_cast<long long>(Now(CLOCK_PROCESS_CPUTIME_ID) - used));
    fflush(stdout);
  }
  return 0;
}
