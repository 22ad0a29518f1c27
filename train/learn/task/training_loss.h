// SPDX-License-Identifier: Apache-2.0
// TrainingLoss: how the errors of predictions count in training: the keys loss.*, for every task on meshes.
// A loss is a sum over nodes and columns, of which each node's weight is known before a forward pass:
//   sum over i of w_i / weight * sum over j of c_j cost(e_ij), weight = sum of the nodes' type weights,
// with the errors e in standard deviations of the target, and c the weights of fields. w_i is the type weight
// times, with relative_l2, one over the mean square of the sample's target, and with loss.sample N/n at n
// nodes drawn of N, 0 at the others. So sampling leaves the expected loss and gradient as they are;
// docs/loss.md has the variance.
#pragma once
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/batch_layout.h>
#include <meshgrad/train/learn/task/sample.h>

#include <string>
#include <vector>

namespace meshgrad {

class MeshTask;
struct TargetFields;

/// Of N nodes the n that count in this use of a sample: in `weights` N/n there, 0 elsewhere. A function of
/// its arguments alone, every subset equally likely. n is the nearest integer to fraction * N, at least 1.
void sample_nodes(double fraction, uint64_t seed, uint64_t sample, uint32_t visit,
                  std::vector<double>& weights);
/// n of sample_nodes.
int64_t sampled_nodes(double fraction, int64_t nodes);

class TrainingLoss {
 public:
  explicit TrainingLoss(const LossConfig& config = {}) : config_(config) {}
  /// The same over all nodes and without a penalty: what validation reports.
  TrainingLoss for_validation() const;
  /// Adds "loss.rows" [nodes] and "loss.columns" [outputs] where there are such weights.
  void add_to(BatchLayout& layout, int64_t outputs) const;
  /// Writes them; the batch's "target" is normalised, `seed` that of the run.
  void write(const Batch& batch, const MeshTask& task, std::string_view split,
             const std::vector<Sample>& samples, uint64_t seed) const;
  /// Sum of the type weights of these samples' predicted nodes; without targets on nodes their number.
  double weight(const MeshTask& task, std::string_view split, const std::vector<Sample>& samples) const;
  double type_weight(int64_t type) const;
  /// By column of the targets.
  std::vector<double> column_weights(const TargetFields& targets) const;
  LossForm form(const Batch& batch) const;
  /// Whether the predicted change is penalised, and how.
  bool penalises() const { return config_.change_penalty > 0.0; }
  LossForm penalty(const Batch& batch) const;
  /// What loss.sample comes to, for people; empty without it. `visits` is how often training uses a sample.
  std::string describe_sampling(const MeshTask& task, std::string_view split, double visits) const;

 private:
  bool weighs_rows() const;
  bool weighs_columns() const { return config_.weight != 1.0 || !config_.field_weights.empty(); }
  template <class T>
  void write_rows(const Batch& batch, const MeshTask& task, std::string_view split,
                  const std::vector<Sample>& samples, uint64_t seed) const;

  LossConfig config_;
};

}  // namespace meshgrad
