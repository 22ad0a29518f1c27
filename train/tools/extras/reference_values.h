// SPDX-License-Identifier: Apache-2.0
// verify: holds the engine against values that another framework computed.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/runtime.h>

#include <string>
#include <vector>

namespace meshgrad {

/// Largest deviation within a group of values.
struct VerifyGroup {
  std::string name;        ///< "prediction", "latents", "loss", "gradients", ...
  double absolute = 0.0;   ///< largest |ours - theirs|
  double relative = 0.0;   ///< absolute / largest |theirs| of the same tensor set (see verify)
  double tolerance = 0.0;  ///< what `relative` may be
  std::string worst;       ///< the tensor with the largest deviation
  int64_t values = 0;      ///< how many were compared
  bool passed() const { return relative <= tolerance; }
};

struct VerifyReport {
  std::string file;
  DType precision = DType::f64;
  int64_t width = 0, blocks = 0, nodes = 0, edges = 0, graphs = 0, steps = 0;
  std::vector<VerifyGroup> groups;
  bool passed() const;
};

/// Loads a reference file in safetensors form: inputs `in.node_features`, `in.edge_features`, `in.senders`,
/// `in.receivers`, `in.target`, `in.loss_mask`, `in.graph_sizes`; parameters `param.*`; expected
/// `out.prediction`, `out.loss`, `out.node_latent.K`, `out.edge_latent.K`, `grad.*`, `adam.losses`,
/// `adam.grad_norms`, `adam.param.*`; metadata lr, clip_norm, steps. Sizes are taken from the tensors. Runs
/// forward, backward and the Adam steps on `path` and compares. Deviations are relative to the group's
/// largest value; parameters after Adam to the learning rate; in 16 bits the last two groups are left out, as
/// rounding makes updates diverge. Throws DataError when a tensor is missing or does not fit.
VerifyReport verify(Runtime& runtime, const std::string& file, DType precision, bool fused = true,
                    bool keep_hidden = true);

}  // namespace meshgrad
