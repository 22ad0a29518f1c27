// SPDX-License-Identifier: Apache-2.0
#include "standard_step.h"

#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/learn/planning/recompute.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/run/step_trace.h>
#include <meshgrad/train/learn/task/unrolled_loss.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "inputs.h"
#include "model_case.h"
#include "support.h"

namespace meshgrad::bench {
namespace {

using test::LossBatch;
using test::ModelCase;

constexpr int64_t kNodeInputs = 11;
constexpr int64_t kEdgeInputs = 3;
constexpr int64_t kModelOutputs = 2;
constexpr uint64_t kModelSeed = 1;
constexpr double kLearningRate = 1e-4;
constexpr int kRunsBeforeReplay = 2;  // of CapturedWork: one to see, one to record

/// The side of the corner of a larger square that is checked: far enough that the blocks do not see past it.
int64_t corner_side(const Scale& scale) { return 2 * scale.blocks + 13; }

ModelCase model_options(const Scale& scale, const StepKind& kind) {
  ModelCase options = test::model_case(kNodeInputs, kModelOutputs, scale.width, scale.blocks);
  options.edge_inputs = {kEdgeInputs};
  options.path = kind.path;
  options.keep_hidden = kind.keep_hidden;
  return options;
}

/// FLOPs of the matrix multiplications of a forward pass with the first layers split by linearity.
double forward_flops(const ModelCase& o, double nodes, double edges) {
  const auto w = static_cast<double>(o.width);
  const double deep = static_cast<double>(o.hidden_layers) * w * w;  // the layers after the first
  const double block = edges * (w * w + deep) + nodes * (2.0 * w * w + 2.0 * w * w + deep);
  const double encoders = edges * (static_cast<double>(o.edge_inputs[0]) * w + deep) +
                          nodes * (static_cast<double>(o.node_inputs) * w + deep);
  const double decoder = nodes * (deep + w * static_cast<double>(o.outputs));
  return 2.0 * (static_cast<double>(o.blocks) * block + encoders + decoder);
}

Model allocated(Runtime& runtime, const ModelCase& options, DType dtype) {
  return test::make_model(options, runtime, dtype, kModelSeed);
}

Tensor mask_of(Runtime& runtime, int64_t nodes) {
  const std::vector<uint8_t> ones(static_cast<size_t>(nodes), 1);
  return Tensor::from<uint8_t>(runtime, ones, Shape{nodes}, Tag::data, "mask");
}

Tensor scalar(Runtime& runtime, double value) {
  const std::vector<double> one = {value};
  return Tensor::from<double>(runtime, one, Shape{1}, Tag::data, "scalar");
}

std::vector<RecomputedStages> segments_of(const StepKind& kind, const Model& model) {
  Config config;
  config.recompute.mode = kind.recompute_blocks ? RecomputeMode::block : RecomputeMode::off;
  return uniform_segments(config, model);
}

/// What the reference goes through: nodes and edges of the period, by number, and which of them it answers
/// for.
struct Part {
  std::vector<int64_t> nodes, edges;
  reference::Edges mesh;
  std::vector<uint8_t> answers;  // of each of `nodes`
  bool whole = true;
  int64_t answered() const { return std::count(answers.begin(), answers.end(), 1); }
};

Part whole_period(const reference::Edges& mesh) {
  Part part{.nodes = std::vector<int64_t>(static_cast<size_t>(mesh.nodes)),
            .edges = std::vector<int64_t>(mesh.senders.size()),
            .mesh = mesh,
            .answers = std::vector<uint8_t>(static_cast<size_t>(mesh.nodes), 1)};
  std::iota(part.nodes.begin(), part.nodes.end(), 0);
  std::iota(part.edges.begin(), part.edges.end(), 0);
  return part;
}

/// The last rows and columns of a square. A block sees one node further, so that the nodes as many rows and
/// columns from the two cuts have what they have in the square, and gradients of their loss have, too.
Part last_corner(const reference::Edges& mesh, const Scale& scale) {
  const int64_t side = scale.side(), first = side - corner_side(scale);
  Part part{.nodes = {}, .edges = {}, .mesh = {}, .answers = {}, .whole = false};
  std::vector<int32_t> number(static_cast<size_t>(mesh.nodes), -1);
  for (int64_t node = 0; node < mesh.nodes; ++node) {
    const int64_t least = std::min(node / side, node % side) - first;
    if (least < 0) continue;
    number[static_cast<size_t>(node)] = static_cast<int32_t>(part.nodes.size());
    part.nodes.push_back(node);
    part.answers.push_back(least >= scale.blocks ? 1 : 0);
  }
  part.mesh.nodes = part.mesh.owned_nodes = static_cast<int64_t>(part.nodes.size());
  for (size_t edge = 0; edge < mesh.senders.size(); ++edge) {
    const int32_t sender = number[static_cast<size_t>(mesh.senders[edge])];
    const int32_t receiver = number[static_cast<size_t>(mesh.receivers[edge])];
    if (sender < 0 || receiver < 0) continue;
    part.edges.push_back(static_cast<int64_t>(edge));
    part.mesh.senders.push_back(sender);
    part.mesh.receivers.push_back(receiver);
  }
  return part;
}

Matrix rows_of(const Matrix& matrix, const std::vector<int64_t>& rows) {
  Matrix picked(static_cast<int64_t>(rows.size()), matrix.cols);
  auto to = picked.v.begin();
  for (const int64_t row : rows) to = std::copy_n(matrix.v.begin() + row * matrix.cols, matrix.cols, to);
  return picked;
}

struct Step {
  Runtime& runtime;
  Case inputs;
  ModelCase options;
  Model model;
  std::vector<RecomputedStages> recomputed;
  Part checked;
  Input nodes, edges, target;
  LossBatch batch;
  Optimizer optimizer;
  Tensor weight;

  Step(Runtime& r, const Scale& scale, const StepKind& kind, DType dtype, std::string_view name)
      : runtime(r),
        inputs(r, scale, dtype, name),
        options(model_options(scale, kind)),
        model(allocated(r, options, dtype)),
        recomputed(segments_of(kind, model)),
        nodes(inputs.rows(scale.period, kNodeInputs)),
        edges(inputs.rows(scale.base_edges(), kEdgeInputs)),
        target(inputs.rows(scale.period, kModelOutputs, accumulator_of(dtype))),
        optimizer(r, model.parameters, {}, 1.0, {.peak = kLearningRate, .last = kLearningRate}),
        weight(scalar(r, static_cast<double>(scale.nodes()))) {
    Mesh mesh = make_mesh(r, scale);
    checked = scale.square && scale.side() > corner_side(scale) ? last_corner(mesh.base, scale)
                                                                : whole_period(mesh.base);
    batch.graph.nodes = scale.nodes();
    batch.graph.edge_sets.push_back({"mesh", std::move(mesh.graph), edges.tensor});
    batch.graph.node_features = nodes.tensor;
    batch.target = target.tensor;
    batch.mask = mask_of(r, batch.graph.nodes);
  }

  /// Forward, loss and backward on a runtime of the same device; returns the prediction.
  Tensor gradients(Runtime& on) const {
    Tape tape(on);
    const Variable prediction = test::predict(model, tape, batch.graph, recomputed);
    const LossSum loss = ops::masked_loss(tape, prediction, batch.target, batch.mask);
    const Tensor seed = optimizer.note_loss(on, loss.sum.value(), weight);
    const Tensor result = prediction.value();
    tape.backward(loss.sum, seed);
    return result;
  }
  void train(Runtime& on) const {
    gradients(on);
    optimizer.step(on);
  }
  Tensor predict(Runtime& on) const {
    Tape tape(on, Tape::Mode::evaluate);
    return test::predict(model, tape, batch.graph).value();
  }
};

/// The reference's result on its part of the mesh: predictions of the nodes that it computes exactly, and the
/// gradients of their loss divided by its weight.
struct ReferenceStep {
  Matrix prediction;
  std::vector<double> gradients;
};
Matrix answers_of(const Part& part, const Matrix& of_nodes) {
  std::vector<int64_t> rows;
  for (size_t i = 0; i < part.nodes.size(); ++i)
    if (part.answers[i] != 0) rows.push_back(static_cast<int64_t>(i));
  return rows_of(of_nodes, rows);
}
ReferenceStep reference_step(const Step& step) {
  Runtime cpu({.device = {}});
  const Part& part = step.checked;
  const auto nodes = static_cast<int64_t>(part.nodes.size());
  ModelCase options = step.options;
  options.path = ComputePath::op_by_op;
  const Model model = allocated(cpu, options, DType::f64);
  const auto tensor = [&](const Matrix& whole, const std::vector<int64_t>& rows) {
    const Matrix matrix = rows_of(whole, rows);
    const Tensor t = Tensor::empty(cpu, Shape{matrix.rows, matrix.cols}, DType::f64, Tag::data);
    fill_rows(t, matrix, cpu);
    return t;
  };
  LossBatch batch;
  batch.graph.nodes = nodes;
  batch.graph.edge_sets.push_back({"mesh", build_graph(cpu, nodes, part.mesh.senders, part.mesh.receivers),
                                   tensor(step.edges.base, part.edges)});
  batch.graph.node_features = tensor(step.nodes.base, part.nodes);
  Tape tape(cpu);
  const Variable prediction = test::predict(model, tape, batch.graph);
  const Tensor mask = Tensor::from<uint8_t>(cpu, part.answers, Shape{nodes}, Tag::data, "mask");
  const LossSum loss = ops::masked_loss(tape, prediction, tensor(step.target.base, part.nodes), mask);
  ReferenceStep result{
      answers_of(part, Matrix(nodes, kModelOutputs, values_of(prediction.value(), cpu.stream()))), {}};
  tape.backward(loss.sum, scalar(cpu, 1.0 / static_cast<double>(part.answered())));
  result.gradients = values_of(model.parameters.gradients(), cpu.stream());
  return result;
}

/// A step rounds, and what rounding moves across relu's kink changes a gradient by more than rounding: a
/// share of about epsilon of the values, each by its whole size. So gradients are held as a whole, to the
/// root.
std::string gradient_difference(const Step& step, const std::vector<double>& expected) {
  const std::vector<double> actual = values_of(step.model.parameters.gradients(), step.runtime.stream());
  if (actual.size() != expected.size()) return "gradients: of another size than the reference's";
  const double scale = step.optimizer.state().loss_scale;
  double off = 0.0, all = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    off += std::pow(actual[i] / scale - expected[i], 2);
    all += std::pow(expected[i], 2);
  }
  const double relative = std::sqrt(off / all);
  const double allowed = 4.0 * std::sqrt(test::tolerance(step.inputs.storage(), 1, 1.0) / 8.0);
  if (relative <= allowed) return {};
  return fmt::format("gradients: {:.2g} from the reference's, relative to their norm; {:.2g} allowed",
                     relative, allowed);
}

/// A recorded step's gradients: those of the replay after the recording.
std::string check_captured(const Step& step, const std::vector<double>& expected) {
  CapturedWork work(step.runtime, "checked step", [&](Runtime& on) { step.gradients(on); });
  for (int run = 0; run < kRunsBeforeReplay; ++run) work.run();
  fill_zero(step.model.parameters.gradients(), step.runtime.stream());
  work.run();
  return work.refusal().empty() ? gradient_difference(step, expected) : "not captured: " + work.refusal();
}

/// While it lives, only the nodes that the reference answers for count.
class OnlyCheckedNodes {
 public:
  explicit OnlyCheckedNodes(Step& step) : step_(step), mask_(step.batch.mask), weight_(step.weight) {
    const Part& part = step.checked;
    if (part.whole) return;
    std::vector<uint8_t> mask(static_cast<size_t>(step.batch.graph.nodes), 0);
    for (size_t i = 0; i < part.nodes.size(); ++i) mask[static_cast<size_t>(part.nodes[i])] = part.answers[i];
    step.batch.mask =
        Tensor::from<uint8_t>(step.runtime, mask, Shape{step.batch.graph.nodes}, Tag::data, "checked nodes");
    step.weight = scalar(step.runtime, static_cast<double>(part.answered()));
  }
  ~OnlyCheckedNodes() {
    step_.batch.mask = mask_;
    step_.weight = weight_;
  }
  OnlyCheckedNodes(const OnlyCheckedNodes&) = delete;
  OnlyCheckedNodes& operator=(const OnlyCheckedNodes&) = delete;

 private:
  Step& step_;
  Tensor mask_, weight_;
};

/// The rows of a prediction that the reference answers for: all of them, or those of its corner.
Tensor checked_rows(const Step& step, const Tensor& prediction) {
  if (step.checked.whole) return prediction;
  const Matrix all(prediction.rows(), kModelOutputs, values_of(prediction, step.runtime.stream()));
  const Matrix picked = answers_of(step.checked, rows_of(all, step.checked.nodes));
  return Tensor::from<double>(step.runtime, picked.v, Shape{picked.rows, picked.cols}, Tag::data,
                              "checked rows");
}

std::string check_step(Step& step, const StepKind& kind) {
  const ReferenceStep expected = reference_step(step);
  const OnlyCheckedNodes only(step);
  const Tensor prediction =
      checked_rows(step, kind.train ? step.gradients(step.runtime) : step.predict(step.runtime));
  const int64_t terms = step.options.blocks * step.options.width;
  std::string text = step.inputs.check(
      {}, [] {},
      [&](Case& checked) { checked.expect("prediction", prediction, expected.prediction, terms, 1.0); });
  if (!kind.train) return text;
  if (text.empty()) text = gradient_difference(step, expected.gradients);
  if (text.empty() && kind.captured) text = check_captured(step, expected.gradients);
  fill_zero(step.model.parameters.gradients(), step.runtime.stream());
  return text;
}

}  // namespace

Workload step_workload(Runtime& runtime, const Scale& scale, const StepKind& kind, DType dtype,
                       std::string_view name) {
  const auto step = std::make_shared<Step>(runtime, scale, kind, dtype, name);
  Workload work;
  work.flops =
      forward_flops(step->options, static_cast<double>(scale.nodes()), static_cast<double>(scale.edges())) *
      (kind.train ? 3.0 : 1.0);
  work.description = fmt::format("{} nodes, {} edges, {} blocks, width {}", scale.nodes(), scale.edges(),
                                 scale.blocks, scale.width);
  work.check = [step, kind] { return check_step(*step, kind); };
  work.randomise = [step] { step->inputs.randomise(); };
  const auto once = [step, kind](Runtime& on) {
    if (kind.train) return step->train(on);
    step->predict(on);
  };
  if (kind.captured) {
    const auto captured = std::make_shared<CapturedWork>(runtime, std::string(name), once);
    work.run = [captured] { captured->run(); };
    work.warm_runs = kRunsBeforeReplay;
  } else if (kind.traced) {
    work.run = [&runtime, once] {
      Ranks alone;
      StepTrace trace(runtime, 1);
      once(runtime);
      trace.finish(alone);
    };
  } else {
    work.run = [&runtime, once] { once(runtime); };
  }
  return work;
}

DryModel dry_model(Runtime& runtime, const MeshGraphNetOptions& options, const ModelSizes& sizes,
                   const BatchShape& shape, DType dtype, int64_t frames) {
  Config config;
  config.model = {.width = options.width,
                  .blocks = options.blocks,
                  .hidden_layers = options.hidden_layers,
                  .activation = options.activation,
                  .norm = options.norm,
                  .concat_order = options.concat_order,
                  .aggregate = options.aggregate,
                  .path = options.path,
                  .keep_hidden = options.keep_hidden};
  config.precision = dtype;
  BatchLayout layout(sizes, shape, dtype, BatchLayout::Sizes::exact);
  layout.add("target", {shape.nodes, sizes.outputs}, accumulator_of(dtype));
  layout.add("mask", {shape.nodes}, DType::u8);
  if (frames > 1) {
    const int64_t rows = (frames - 1) * unrolled_rows(shape.nodes);
    layout.add("unroll.nodes", {rows, sizes.node_inputs}, dtype);
    layout.add("unroll.target", {rows, sizes.outputs}, accumulator_of(dtype));
    layout.add("unroll.source", {sizes.node_inputs}, DType::i32);
    layout.add("unroll.ratio", {sizes.node_inputs}, accumulator_of(dtype));
  }
  return DryModel(
      runtime.device(), runtime.threads().threads(), config, sizes, layout,
      [frames](Tape& tape, const Model& model, const Batch& batch, const Recomputation& recomputation) {
        return unrolled_loss(tape, model, batch, {.count = frames}, recomputation);
      });
}

int64_t step_bytes(Runtime& runtime, const Scale& scale, const StepKind& kind, DType dtype) {
  const ModelCase options = model_options(scale, kind);
  Runtime counted({.device = runtime.device(), .threads = runtime.threads().threads(), .dry = true});
  const Model model = allocated(counted, options, dtype);
  const Optimizer optimizer(counted, model.parameters, {}, 1.0, {});
  DryModel dry = dry_model(runtime, options, options.sizes(), {scale.nodes(), scale.edges()}, dtype);
  return counted.allocator().stats().allocated.current + dry.batch_bytes() +
         dry.peak({.stages = segments_of(kind, model)}).bytes;
}

}  // namespace meshgrad::bench
