// All CUDA kernels as one module, the unit of compiling and loading.
#include "kernels/cuda/append.cu"
#include "kernels/cuda/copy.cu"
#include "kernels/cuda/decode.cu"
#include "kernels/cuda/prefill.cu"
#include "kernels/dense/cuda/product.cu"
#include "kernels/dense/cuda/rows.cu"
