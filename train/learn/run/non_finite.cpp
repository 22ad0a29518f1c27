// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/kernels/reduction.h>
#include <meshgrad/train/learn/run/non_finite.h>

#include <cmath>

namespace meshgrad {
namespace {

using Phase = NonFinite::Phase;

class Search {
 public:
  Search(Runtime& runtime, const ParameterSet& parameters)
      : runtime_(runtime),
        parameters_(parameters),
        sum_(Tensor::empty(runtime, Shape{1}, DType::f64, Tag::workspace, "sum of squares")),
        flag_(Tensor::zeros(runtime, Shape{1}, DType::i32, Tag::workspace, "non-finite")) {}

  const std::optional<NonFinite>& found() const { return found_; }

  void check_given(const Task& task, const Batch& batch) {
    const GraphBatch& graph = batch.graph;
    check(Phase::given, "batch", "", "node features", graph.node_features, graph.node_rows());
    for (const EdgeSet& set : graph.edge_sets) {
      check(Phase::given, "batch", "", "edge features of " + set.name, set.features, set.graph.edge_rows());
    }
    for (const GivenTensor& given : task.given(batch))
      check(Phase::given, "batch", "", given.name, given.tensor, given.rows, given.mask);
    for (size_t i = 0; i < parameters_.parameters().size(); ++i) {
      const std::string& name = parameters_.parameters()[i].name;
      const Tensor stored = parameters_.weight(i).value;
      check(Phase::given, "parameters", "", name, parameters_.value(i), stored.rows());
      check(Phase::given, "parameters", "", fmt::format("{} in {}", name, name_of(stored.dtype())), stored,
            stored.rows());
    }
  }

  void check_op(const OpWritten& op) {
    if (!op.backward) last_op_ = op.op;
    const Phase phase = op.backward ? Phase::backward : Phase::forward;
    for (const OpWritten::Part& part : op.parts)
      check(phase, op.scope, op.op, part.name, part.tensor, part.rows);
    if (op.backward) check_weight_gradients(op);
  }

  /// Its op is the last one of the forward pass.
  void check_loss(const Variable& loss) { check(Phase::forward, "", last_op_, "loss", loss.value(), 1); }

  /// `mask`, if it is there: rows where it is 0 do not count.
  void check(Phase phase, const std::string& scope, const std::string& op, const std::string& name,
             const Tensor& tensor, const Rows& rows, const Tensor& mask = {}) {
    if (found_ || !tensor.defined() || tensor.elements() == 0) return;
    const int64_t real = real_rows(rows, tensor.device(), runtime_.stream());
    const Tensor host = to_host(tensor, runtime_.stream());
    const Tensor counts = mask.defined() ? to_host(mask, runtime_.stream()) : Tensor();
    NonFinite here{.phase = phase, .scope = scope, .op = op, .tensor = name};
    dispatch_cpu_storage(host.dtype(), [&]<class T>() {
      const int64_t width = host.width();
      for (int64_t i = 0; i < real * width; ++i) {
        if (counts.defined() && counts.data<uint8_t>()[i / width] == 0) continue;
        const auto value = static_cast<double>(static_cast<Accumulator<T>>(host.data<T>()[i]));
        ++here.elements;
        if (std::isfinite(value)) continue;
        if (here.count++ > 0) continue;
        here.row = i / width;
        here.value = value;
      }
    });
    if (here.count > 0) found_ = here;
  }

 private:
  void check_weight_gradients(const OpWritten& op) {
    const Tensor& gradients = parameters_.gradients();
    if (found_ || !gradients.defined()) return;
    fill_zero(sum_, runtime_.stream());
    kernels::sum_of_squares({.x = gradients, .sum = sum_, .non_finite = flag_}, runtime_, runtime_.stream());
    if (*to_host(flag_, runtime_.stream()).data<int32_t>() == 0) return;
    for (size_t i = 0; i < parameters_.parameters().size(); ++i) {
      const Tensor gradient = parameters_.gradient(i);
      check(Phase::backward, op.scope, op.op, "gradient of " + parameters_.parameters()[i].name, gradient,
            gradient.rows());
    }
  }

  Runtime& runtime_;
  const ParameterSet& parameters_;
  Tensor sum_, flag_;
  std::string last_op_;
  std::optional<NonFinite> found_;
};

}  // namespace

std::string NonFinite::text() const {
  std::string place = scope;
  if (phase != Phase::given) {
    place = fmt::format("{} of op {}{}", phase == Phase::forward ? "forward" : "backward", op,
                        scope.empty() ? std::string() : " in " + scope);
  }
  const std::string shown = std::isnan(value) ? "nan" : fmt::format("{}", value);  // a NaN has a sign, too
  return fmt::format("{}: {} holds {} in row {}, and {} of its {} values are not finite", place, tensor,
                     shown, row, count, elements);
}

std::string NonFinite::fix(DType precision) const {
  std::string wider(wider_range_fix(precision));
  if (!wider.empty()) wider += "; or ";
  switch (phase) {
    case Phase::given:
      if (scope == "parameters") return "lower optimizer.lr or set train.clip_norm, in a new run";
      return fmt::format("{}look for bad values in the data, or lower train.noise", wider);
    case Phase::forward:
      return fmt::format("{}lower optimizer.lr or set train.clip_norm", wider);
    case Phase::backward:
      break;
  }
  return precision == DType::f16 ? "lower loss_scale.floor, or set precision = \"bf16\""
                                 : "lower optimizer.lr or set train.clip_norm";
}

std::optional<NonFinite> find_non_finite(Runtime& runtime, const Task& task, const Model& model,
                                         const Batch& batch, double seed,
                                         const Recomputation& recomputation) {
  Search search(runtime, model.parameters);
  search.check_given(task, batch);
  if (search.found()) return search.found();
  Tape tape(runtime, Tape::Mode::train);
  tape.observe([&](const OpWritten& op) { search.check_op(op); });
  const Variable loss = task.loss(tape, model, batch, recomputation).sum;
  search.check_loss(loss);
  if (search.found()) return search.found();
  tape.backward(loss, Tensor::from<double>(runtime, std::span<const double>(&seed, 1), Shape{1},
                                           Tag::workspace, "seed"));
  return search.found();
}

std::optional<NonFinite> find_non_finite_in_window(Runtime& runtime, const Config& config, const Task& task,
                                                   Model& model, BatchLoader& loader, int64_t step,
                                                   double loss_scale, Normalizers& normalizers,
                                                   const Recomputation& recomputation) {
  if (!model.parameters.gradients().defined()) model.parameters.allocate_gradients(runtime);
  fill_zero(model.parameters.gradients(), runtime.stream());
  loader.give_to_first_rank(step);
  const double weight = loader.window_weight(step);
  std::vector<Sample> samples;
  for (int64_t micro = 0; micro < config.train.accumulate; ++micro) {
    loader.list_samples({step, micro}, samples);
    if (samples.empty()) continue;
    const Batch batch = training_batch(task, runtime, config.precision, config.data.train_split, samples,
                                       loader.noise(step), normalizers);
    const auto found = find_non_finite(runtime, task, model, batch, loss_scale / weight, recomputation);
    if (found) return found;
  }
  return std::nullopt;
}

}  // namespace meshgrad
