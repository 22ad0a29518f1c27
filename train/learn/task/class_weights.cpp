// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/task/class_weights.h>

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace meshgrad {
namespace {

constexpr std::string_view kClassWeights = "class_weights";

}  // namespace

ClassWeights::ClassWeights(const LossConfig& config, std::span<const int64_t> trained) {
  const std::vector<double>& given = config.class_weights;
  if (given.empty()) return;
  if (given != kBalancedWeights) {
    if (given.size() != trained.size()) {
      throw config_error("loss.class_weights", fmt::format("{} numbers, one for each class", trained.size()),
                         fmt::format("{}", given.size()), "list one for each class, from 0");
    }
    for (const double weight : given) values_.push_back(static_cast<float>(weight));
    return;
  }
  const auto total = static_cast<double>(std::accumulate(trained.begin(), trained.end(), int64_t{0}));
  for (size_t c = 0; c < trained.size(); ++c) {
    if (trained[c] == 0) {
      throw config_error("loss.class_weights", "a list of numbers where a class is not trained on",
                         fmt::format("\"balanced\" with 0 of class {}", c), "list one for each class");
    }
    values_.push_back(
        static_cast<float>(total / (static_cast<double>(trained.size()) * static_cast<double>(trained[c]))));
  }
}

void ClassWeights::add_to(BatchLayout& layout) const {
  if (!values_.empty()) layout.add(kClassWeights, {std::ssize(values_)}, DType::f32);
}

void ClassWeights::write(const Batch& batch) const {
  if (!values_.empty()) std::ranges::copy(values_, batch.tensor(kClassWeights).data<float>());
}

LossTerms class_loss(Tape& tape, const Model& model, const Batch& batch, const Recomputation& recomputation,
                     const Teacher* teacher) {
  const TeacherOutput taught = teacher != nullptr ? teacher->predict(tape.runtime(), batch) : TeacherOutput();
  const Values values = forward(model, tape, batch.graph, recomputation.stages);
  const Tensor weights = batch.has(kClassWeights) ? batch.tensor(kClassWeights) : Tensor();
  const Variable sum =
      ops::class_loss(tape, values.front(), batch.tensor("labels"), batch.tensor("mask"), weights, taught)
          .sum;
  return {.sum = sum, .penalty = {}};
}

}  // namespace meshgrad
