#include "kernels/dense/cuda/dense_launches.h"

#include <algorithm>

namespace vkv::kernels::cuda {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

MultiplyKernel ChooseMultiply(Dtype dtype, int64_t rows) {
  int at_once = kMultiplyRows[0];
  for (const int choice : kMultiplyRows) {
    if (at_once < rows) at_once = choice;
  }
  const int outputs = at_once == 1 ? kMultiplyOutputs<1> : kMultiplyOutputs<2>;
  return {std::string("vkv_multiply_") + NameOf(dtype) + "_r" + std::to_string(at_once), at_once,
          kMultiplyWarps * outputs};
}

bool IsAligned(const ProductInput& input, const Product& product) {
  const auto addresses = reinterpret_cast<uint64_t>(input.input) | reinterpret_cast<uint64_t>(product.weight);
  const int64_t strides = input.inputs * int64_t{sizeof(float)} | input.inputs * ElementBytes(product.dtype);
  return (addresses | static_cast<uint64_t>(strides)) % 16 == 0;
}

Status LaunchMultiply(const ProductInput& input, const Product& product, const Submit& submit) {
  for (int64_t row = 0; row < input.rows; row += kMultiplyRowsPerLaunch) {
    MultiplyParameters parameters;
    parameters.input = {input.input + row * input.inputs, std::min<int64_t>(input.rows - row, kMultiplyRowsPerLaunch),
                        input.inputs};
    parameters.product = product;
    parameters.product.output += row * product.outputs;
    parameters.is_aligned = IsAligned(input, product);
    const MultiplyKernel kernel = ChooseMultiply(product.dtype, parameters.input.rows);
    const Grid grid = {ToGrid(CeilDiv(parameters.input.rows, kernel.rows) * CeilDiv(product.outputs, kernel.outputs)),
                       1, 1};
    VKV_RETURN_IF_ERROR(SubmitOne(submit, kernel.name.c_str(), grid, 32 * kMultiplyWarps, 0, parameters));
  }
  return Ok();
}

Status LaunchNormalize(const Normalization& command, int64_t rows, const Submit& submit) {
  return SubmitOne(submit, "vkv_normalize", {ToGrid(rows), 1, 1}, kRowThreads, 0, NormalizeParameters{command, rows});
}

Status LaunchRotate(const Rotation& command, int64_t rows, const Submit& submit) {
  RotateParameters parameters;
  for (int64_t row = 0; row < rows; row += kIndicesPerLaunch) {
    parameters.rows = std::min<int64_t>(rows - row, kIndicesPerLaunch);
    parameters.command = command;
    parameters.command.heads_of_rows += row * command.heads * command.dim;
    parameters.command.positions = nullptr;
    if (command.are_on_device)
      parameters.list = command.positions + row;
    else
      std::copy_n(command.positions + row, parameters.rows, parameters.positions);
    VKV_RETURN_IF_ERROR(SubmitOne(submit, "vkv_rotate", {ToGrid(parameters.rows), 1, 1}, kRowThreads, 0, parameters));
  }
  return Ok();
}

Status LaunchGate(const Gating& command, const Submit& submit) {
  return SubmitOne(submit, "vkv_gate", {ToGrid(CeilDiv(command.count, kPieceElements)), 1, 1}, kRowThreads, 0,
                   GateParameters{command});
}

Status LaunchCap(const Capping& command, const Submit& submit) {
  return SubmitOne(submit, "vkv_cap", {ToGrid(CeilDiv(command.count, kPieceElements)), 1, 1}, kRowThreads, 0,
                   CapParameters{command});
}

Status LaunchGather(const Gathering& command, std::span<const int32_t> tokens, const Submit& submit) {
  GatherParameters parameters;
  parameters.command = command;
  while (!tokens.empty()) {
    const auto some = tokens.first(std::min<size_t>(tokens.size(), kIndicesPerLaunch));
    tokens = tokens.subspan(some.size());
    parameters.rows = static_cast<int64_t>(some.size());
    if (command.are_on_device)
      parameters.list = some.data();
    else
      std::copy(some.begin(), some.end(), parameters.tokens);
    VKV_RETURN_IF_ERROR(SubmitOne(submit, "vkv_gather", {ToGrid(parameters.rows), 1, 1}, kRowThreads, 0, parameters));
    parameters.command.output += parameters.rows * command.width;
  }
  return Ok();
}

Status LaunchBias(const BiasParameters& parameters, const Submit& submit) {
  return SubmitOne(submit, "vkv_bias", {ToGrid(parameters.rows), 1, 1}, kRowThreads, 0, parameters);
}

Status LaunchNarrow(const NarrowParameters& parameters, const Submit& submit) {
  return SubmitOne(submit, "vkv_narrow", {ToGrid(CeilDiv(parameters.count, kPieceElements)), 1, 1}, kRowThreads, 0,
                   parameters);
}

}  // namespace vkv::kernels::cuda
