// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/nn/slice_layer.h>

namespace meshgrad {

SliceLayer::Linear SliceLayer::linear(ParameterSet& parameters, const std::string& name, int64_t in,
                                      int64_t out, bool bias) const {
  Linear made{parameters.add(name + ".weight", {in, out}, Initial::uniform_fan_in, in), {}};
  if (bias) made.bias = parameters.add(name + ".bias", {out}, Initial::uniform_fan_in, in);
  return made;
}

SliceLayer::SliceLayer(ParameterSet& parameters, const std::string& name, const SliceLayerOptions& options)
    : options_(options) {
  const int64_t width = options.width, columns = width / options.heads;
  if (options.norm != Norm::none) gain_ = parameters.add(name + ".norm.weight", {width}, Initial::one, 1);
  if (options.norm == Norm::layer) shift_ = parameters.add(name + ".norm.bias", {width}, Initial::zero, 1);
  values_ = linear(parameters, name + ".values", width, width, true);
  keys_ = linear(parameters, name + ".keys", width, width, true);
  slices_ = linear(parameters, name + ".slices", columns, options.slices, true);
  temperatures_ = parameters.add(name + ".temperatures", {options.heads}, Initial::half, 1);
  token_queries_ = linear(parameters, name + ".token_queries", columns, columns, false);
  token_keys_ = linear(parameters, name + ".token_keys", columns, columns, false);
  token_values_ = linear(parameters, name + ".token_values", columns, columns, false);
  out_ = linear(parameters, name + ".out", width, width, true);
}

Variable SliceLayer::operator()(Tape& tape, const ParameterSet& set, const Tensor& graph_starts,
                                const Variable& x) const {
  const auto weight = [&](std::optional<size_t> index) { return index ? set.weight(*index) : Weight{}; };
  const auto apply = [&](const Linear& map, const Variable& to) {
    return ops::linear(tape, to, set.weight(map.weight), weight(map.bias));
  };
  const Variable normed =
      gain_ ? ops::norm(tape, x, options_.norm, weight(gain_), weight(shift_), MlpParameters().epsilon) : x;
  const SliceInputs slices{.heads = options_.heads,
                           .graph_starts = graph_starts,
                           .keys = apply(keys_, normed),
                           .weight = set.weight(slices_.weight),
                           .bias = weight(slices_.bias),
                           .temperatures = set.weight(temperatures_)};
  const Variable tokens = ops::slice_tokens(tape, slices, apply(values_, normed));
  const Variable attended = ops::token_attention(tape, options_.slices, apply(token_queries_, tokens),
                                                 apply(token_keys_, tokens), apply(token_values_, tokens));
  return ops::add(tape, x, apply(out_, ops::slice_spread(tape, slices, attended)));
}

}  // namespace meshgrad
