#include "kernels/dense/cuda/simulated_dense.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/cuda/simulated_base.h"
#include "kernels/dense/cuda/dense_launches.h"
#include "kernels/dense/dense_reference.h"

namespace vkv::kernels::cuda {
namespace {

using mock::LaunchArguments;
using mock::SimulatedKernel;
using mock::Touch;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// `count` elements of a type, read.
Touch ReadOf(const void* from, int64_t count, Dtype dtype = Dtype::kFloat32) {
  return {reinterpret_cast<uint64_t>(from), static_cast<uint64_t>(count * ElementBytes(dtype)), /*is_write=*/false};
}

Touch WriteOf(const void* to, int64_t count, Dtype dtype = Dtype::kFloat32) {
  return {reinterpret_cast<uint64_t>(to), static_cast<uint64_t>(count * ElementBytes(dtype)), /*is_write=*/true};
}

// Rows [smallest, largest] that indices name, of a table with `width` elements each: tables are one piece.
Touch ReadOfTable(const void* table, std::span<const int32_t> indices, int64_t width, Dtype dtype) {
  const auto [least, most] = std::minmax_element(indices.begin(), indices.end());
  const auto* const bytes = static_cast<const uint8_t*>(table);
  return ReadOf(bytes + *least * width * ElementBytes(dtype), (*most - *least + 1) * width, dtype);
}

class SimulatedMultiply final : public Simulated<MultiplyParameters> {
 public:
  explicit SimulatedMultiply(std::string name) : name_(std::move(name)) {}

 private:
  bool IsPossible(const MultiplyParameters& parameters) const override {
    const auto& [input, product, is_aligned] = parameters;
    return input.rows >= 1 && input.rows <= kMultiplyRowsPerLaunch && input.inputs >= 1 && product.outputs >= 1 &&
           (!is_aligned || IsAligned(input, product));
  }
  bool HasSize(const LaunchArguments& launch, const MultiplyParameters& parameters) const override {
    const auto& [input, product, is_aligned] = parameters;
    const MultiplyKernel kernel = ChooseMultiply(product.dtype, input.rows);
    return kernel.name == name_ &&
           IsSize(launch, CeilDiv(input.rows, kernel.rows) * CeilDiv(product.outputs, kernel.outputs), 1, 1,
                  32 * kMultiplyWarps);
  }
  std::vector<Touch> Touches(const MultiplyParameters& parameters) const override {
    const auto& [input, product, is_aligned] = parameters;
    std::vector<Touch> touches = {ReadOf(input.input, input.rows * input.inputs),
                                  ReadOf(product.weight, product.outputs * input.inputs, product.dtype),
                                  WriteOf(product.output, input.rows * product.outputs)};
    if (product.bias != nullptr) touches.push_back(ReadOf(product.bias, product.outputs));
    return touches;
  }
  void RunIt(const MultiplyParameters& parameters) const override {
    reference::Multiply(parameters.input, parameters.product);
  }

  const std::string name_;
};

class SimulatedNormalize final : public Simulated<NormalizeParameters> {
  bool IsPossible(const NormalizeParameters& parameters) const override { return parameters.command.width >= 1; }
  bool HasSize(const LaunchArguments& launch, const NormalizeParameters& parameters) const override {
    return IsSize(launch, parameters.rows, 1, 1, kRowThreads);
  }
  std::vector<Touch> Touches(const NormalizeParameters& parameters) const override {
    const auto& [command, rows] = parameters;
    return {ReadOf(command.input, rows * command.width), ReadOf(command.weight, command.width),
            WriteOf(command.output, rows * command.width)};
  }
  void RunIt(const NormalizeParameters& parameters) const override {
    reference::Normalize(parameters.command, parameters.rows);
  }
};

// The positions or tokens of a launch, wherever it has them.
template <typename Parameters>
std::span<const int32_t> IndicesOf(const Parameters& parameters, const int32_t* given) {
  return {parameters.list != nullptr ? parameters.list : given, static_cast<size_t>(parameters.rows)};
}

template <typename Parameters>
mock::ListUse ListOfIndices(const Parameters& parameters) {
  return {offsetof(Parameters, list), parameters.list != nullptr ? parameters.rows * sizeof(int32_t) : 0};
}

class SimulatedRotate final : public Simulated<RotateParameters> {
  bool IsPossible(const RotateParameters& parameters) const override {
    return parameters.rows >= 1 && parameters.rows <= kIndicesPerLaunch && parameters.command.positions == nullptr;
  }
  bool HasSize(const LaunchArguments& launch, const RotateParameters& parameters) const override {
    return IsSize(launch, parameters.rows, 1, 1, kRowThreads);
  }
  mock::ListUse List(const RotateParameters& parameters) const override { return ListOfIndices(parameters); }
  std::vector<Touch> Touches(const RotateParameters& parameters) const override {
    const Rotation& command = parameters.command;
    return {WriteOf(command.heads_of_rows, parameters.rows * command.heads * command.dim),
            ReadOfTable(command.table, IndicesOf(parameters, parameters.positions), command.dim, Dtype::kFloat32)};
  }
  void RunIt(const RotateParameters& parameters) const override {
    Rotation command = parameters.command;
    command.positions = IndicesOf(parameters, parameters.positions).data();
    reference::Rotate(command, parameters.rows);
  }
};

class SimulatedGate final : public Simulated<GateParameters> {
  bool IsPossible(const GateParameters& parameters) const override { return parameters.command.count >= 1; }
  bool HasSize(const LaunchArguments& launch, const GateParameters& parameters) const override {
    return IsSize(launch, CeilDiv(parameters.command.count, kPieceElements), 1, 1, kRowThreads);
  }
  std::vector<Touch> Touches(const GateParameters& parameters) const override {
    const Gating& command = parameters.command;
    return {ReadOf(command.gate, command.count), ReadOf(command.up, command.count),
            WriteOf(command.output, command.count)};
  }
  void RunIt(const GateParameters& parameters) const override { reference::Gate(parameters.command); }
};

class SimulatedCap final : public Simulated<CapParameters> {
  bool IsPossible(const CapParameters& parameters) const override { return parameters.command.count >= 1; }
  bool HasSize(const LaunchArguments& launch, const CapParameters& parameters) const override {
    return IsSize(launch, CeilDiv(parameters.command.count, kPieceElements), 1, 1, kRowThreads);
  }
  std::vector<Touch> Touches(const CapParameters& parameters) const override {
    return {WriteOf(parameters.command.values, parameters.command.count)};
  }
  void RunIt(const CapParameters& parameters) const override { reference::Cap(parameters.command); }
};

class SimulatedGather final : public Simulated<GatherParameters> {
  static std::span<const int32_t> TokensOf(const GatherParameters& parameters) {
    return IndicesOf(parameters, parameters.tokens);
  }
  mock::ListUse List(const GatherParameters& parameters) const override { return ListOfIndices(parameters); }
  bool IsPossible(const GatherParameters& parameters) const override {
    return parameters.rows >= 1 && parameters.rows <= kIndicesPerLaunch && parameters.command.width >= 1;
  }
  bool HasSize(const LaunchArguments& launch, const GatherParameters& parameters) const override {
    return IsSize(launch, parameters.rows, 1, 1, kRowThreads);
  }
  std::vector<Touch> Touches(const GatherParameters& parameters) const override {
    const Gathering& command = parameters.command;
    return {ReadOfTable(command.table, TokensOf(parameters), command.width, command.dtype),
            WriteOf(command.output, parameters.rows * command.width)};
  }
  void RunIt(const GatherParameters& parameters) const override {
    reference::Gather(parameters.command, TokensOf(parameters));
  }
};

class SimulatedBias final : public Simulated<BiasParameters> {
  bool IsPossible(const BiasParameters& parameters) const override { return parameters.outputs >= 1; }
  bool HasSize(const LaunchArguments& launch, const BiasParameters& parameters) const override {
    return IsSize(launch, parameters.rows, 1, 1, kRowThreads);
  }
  std::vector<Touch> Touches(const BiasParameters& parameters) const override {
    return {ReadOf(parameters.bias, parameters.outputs),
            WriteOf(parameters.output, parameters.rows * parameters.outputs)};
  }
  void RunIt(const BiasParameters& parameters) const override {
    const auto& [bias, output, rows, outputs, adds] = parameters;
    reference::SpreadBias(bias, output, rows, outputs, adds);
  }
};

class SimulatedNarrow final : public Simulated<NarrowParameters> {
  bool IsPossible(const NarrowParameters& parameters) const override {
    return parameters.count >= 1 && parameters.dtype != Dtype::kFloat32;
  }
  bool HasSize(const LaunchArguments& launch, const NarrowParameters& parameters) const override {
    return IsSize(launch, CeilDiv(parameters.count, kPieceElements), 1, 1, kRowThreads);
  }
  std::vector<Touch> Touches(const NarrowParameters& parameters) const override {
    const auto& [from, to, count, dtype] = parameters;
    return {ReadOf(from, count), WriteOf(to, count, dtype)};
  }
  void RunIt(const NarrowParameters& parameters) const override {
    const auto& [from, to, count, dtype] = parameters;
    reference::Narrow(from, to, dtype, count);
  }
};

}  // namespace

std::shared_ptr<const SimulatedKernel> FindSimulatedDense(const std::string& name) {
  if (name == "vkv_normalize") return std::make_shared<SimulatedNormalize>();
  if (name == "vkv_rotate") return std::make_shared<SimulatedRotate>();
  if (name == "vkv_gate") return std::make_shared<SimulatedGate>();
  if (name == "vkv_cap") return std::make_shared<SimulatedCap>();
  if (name == "vkv_gather") return std::make_shared<SimulatedGather>();
  if (name == "vkv_bias") return std::make_shared<SimulatedBias>();
  if (name == "vkv_narrow") return std::make_shared<SimulatedNarrow>();
  // The launch is compared with the kernel that the product needs, so every product kernel has the same stand-in.
  if (name.starts_with("vkv_multiply_")) return std::make_shared<SimulatedMultiply>(name);
  return nullptr;
}

}  // namespace vkv::kernels::cuda
