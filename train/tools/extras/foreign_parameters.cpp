// SPDX-License-Identifier: Apache-2.0
// Apart from the reader, which needs no tensors and is fuzzed alone.
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/extras/foreign_weights.h>

#include <fmt/format.h>

namespace meshgrad {

void set_parameters(const ForeignModel& foreign, const std::string& file, const ParameterSet& parameters,
                    const Stream& stream) {
  const Tensor host = host_tensor(parameters.values().shape(), parameters.values().dtype());
  for (size_t i = 0; i < parameters.parameters().size(); ++i) {
    const ParameterInfo& info = parameters.parameters()[i];
    const auto found = foreign.parameters.find(info.name);
    if (found == foreign.parameters.end()) {
      throw data_error(file, "a tensor for " + info.name, "none",
                       "all MLPs of a model have as many layers, and a norm after all but the decoder");
    }
    ForeignParameter parameter = found->second;
    const Tensor tensor =
        Tensor::borrow(parameter.values.data(), Shape(std::span<const int64_t>(parameter.shape)), DType::f64);
    try {
      from_file_order(info, tensor, parameters.slice(host, i));
    } catch (const DataError& error) {
      throw DataError(fmt::format("{}: {}: {}", file, parameter.name, error.what()));
    }
  }
  parameters.set(parameters.values(), host, stream);
}

}  // namespace meshgrad
