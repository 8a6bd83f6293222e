// A panel of weights as floats, [output, input], whose rows begin on cache lines (with that, and tiles of 6 × 4 instead
// of 8 × 2, two cores did 333 GFLOP/s at 512 rows instead of 168). Included after product_inl.h.

template <typename T>
void MultiplyPacked(const float* input, const T* weights, int64_t inputs, int64_t rows, int outputs, int64_t count,
                    float* panel, float* sums) {
  for (int o = 0; o < outputs; ++o) ConvertRow(panel + o * kPanelStride, weights + o * inputs, count);
  MultiplyPanel<float>(input, inputs, rows, {panel, kPanelStride, outputs, count, panel}, sums);
}
