// SPDX-License-Identifier: Apache-2.0
// SliceLayer: nodes of a graph exchange what they know through a few slices (kernels/slice_attention.h), and
// add it to what they have: y = x + linear(slice attention of norm(x)).
// Source: Wu et al., "Transolver: a fast transformer solver for PDEs on general geometries" (ICML 2024).
// W starts uniform by fan-in, not orthogonal.
#pragma once
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/model.h>

#include <optional>

namespace meshgrad {

struct SliceLayerOptions {
  int64_t width = 128;
  int64_t heads = 8;  ///< that divide the width
  int64_t slices = 32;
  Norm norm = Norm::layer;
};

class SliceLayer {
 public:
  /// Declares NAME.norm.weight|bias, as the norm has them; NAME.values.weight|bias and NAME.keys.weight|bias
  /// [width, width]; with columns = width / heads NAME.slices.weight [columns, slices], NAME.slices.bias and
  /// NAME.temperatures [heads]; NAME.token_queries.weight, NAME.token_keys.weight and
  /// NAME.token_values.weight [columns, columns]; NAME.out.weight|bias [width, width].
  SliceLayer(ParameterSet& parameters, const std::string& name, const SliceLayerOptions& options);

  /// `x`: [nodes, width].
  Variable operator()(Tape& tape, const ParameterSet& set, const Tensor& graph_starts,
                      const Variable& x) const;

 private:
  struct Linear {
    size_t weight = 0;
    std::optional<size_t> bias;
  };
  Linear linear(ParameterSet& parameters, const std::string& name, int64_t in, int64_t out, bool bias) const;

  SliceLayerOptions options_;
  std::optional<size_t> gain_, shift_;
  Linear values_, keys_, slices_, token_queries_, token_keys_, token_values_, out_;
  size_t temperatures_ = 0;
};

}  // namespace meshgrad
