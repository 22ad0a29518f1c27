// SPDX-License-Identifier: Apache-2.0
// Whole steps of the standard model (15 blocks, width 128, node input 11, edge input 3, output 2) on one
// mesh, and the fused path beside the op-by-op path. The judge of a step is the op-by-op path in f64 on the
// CPU, on the mesh's period.
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/optimizer.h>

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "inputs.h"
#include "support.h"

namespace meshgrad::bench {
namespace {

constexpr int64_t kNodeInputs = 11;
constexpr int64_t kEdgeInputs = 3;
constexpr int64_t kOutputs = 2;
constexpr uint64_t kSeed = 1;
constexpr double kLearningRate = 1e-4;
constexpr int kRunsBeforeReplay = 2;  // of CapturedWork: one to see, one to record

struct Kind {
  bool train = true;
  ComputePath path = ComputePath::fused;
  bool keep_hidden = true;
  bool captured = false;  ///< recorded once, then replayed; GPU only
};

MeshGraphNetOptions model_options(const Scale& scale, const Kind& kind) {
  MeshGraphNetOptions options;
  options.node_inputs = kNodeInputs;
  options.edge_inputs = {kEdgeInputs};
  options.edge_set_names = {"mesh"};
  options.outputs = kOutputs;
  options.width = scale.width;
  options.blocks = scale.blocks;
  options.path = kind.path;
  options.keep_hidden = kind.keep_hidden;
  return options;
}

/// FLOPs of the matrix products of a forward pass with the first layers split by linearity.
double forward_flops(const MeshGraphNetOptions& o, double nodes, double edges) {
  const auto w = static_cast<double>(o.width);
  const double deep = static_cast<double>(o.hidden_layers) * w * w;  // the layers behind the first
  const double block = edges * (w * w + deep) + nodes * (2.0 * w * w + 2.0 * w * w + deep);
  const double encoders = edges * (static_cast<double>(o.edge_inputs[0]) * w + deep) +
                          nodes * (static_cast<double>(o.node_inputs) * w + deep);
  const double decoder = nodes * (deep + w * static_cast<double>(o.outputs));
  return 2.0 * (static_cast<double>(o.blocks) * block + encoders + decoder);
}

MeshGraphNet allocated(Runtime& runtime, const MeshGraphNetOptions& options, DType dtype) {
  MeshGraphNet model(options);
  model.allocate(runtime, dtype, kSeed);
  return model;
}

Tensor mask_of(Runtime& runtime, int64_t nodes) {
  const std::vector<uint8_t> ones(static_cast<size_t>(nodes), 1);
  return Tensor::from<uint8_t>(runtime, ones, Shape{nodes}, Tag::data, "mask");
}

Tensor scalar(Runtime& runtime, double value) {
  const std::vector<double> one = {value};
  return Tensor::from<double>(runtime, one, Shape{1}, Tag::data, "scalar");
}

struct Step {
  Runtime& runtime;
  Case inputs;
  MeshGraphNetOptions options;
  MeshGraphNet model;
  reference::Edges base_edges;
  Input nodes, edges, target;
  Batch batch;
  Optimizer optimizer;
  Tensor weight;

  Step(Runtime& r, const Scale& scale, const Kind& kind, DType dtype, std::string_view name)
      : runtime(r),
        inputs(r, scale, dtype, name),
        options(model_options(scale, kind)),
        model(allocated(r, options, dtype)),
        nodes(inputs.rows(scale.period, kNodeInputs)),
        edges(inputs.rows(scale.base_edges(), kEdgeInputs)),
        target(inputs.rows(scale.period, kOutputs, accumulator_of(dtype))),
        optimizer(r, model.parameters(), {}, 1.0, {.peak = kLearningRate, .last = kLearningRate}),
        weight(scalar(r, static_cast<double>(scale.nodes()))) {
    Mesh mesh = make_mesh(r, scale);
    base_edges = mesh.base;
    batch.nodes = scale.nodes();
    batch.graph_offsets = {0, batch.nodes};
    batch.edge_sets.push_back({"mesh", std::move(mesh.graph), edges.tensor});
    batch.node_features = nodes.tensor;
    batch.target = target.tensor;
    batch.mask = mask_of(r, batch.nodes);
  }

  /// Forward, loss and backward on a runtime of the same device; returns the prediction.
  Tensor gradients(Runtime& on) const {
    Tape tape(on);
    const Variable prediction = model.forward(tape, batch);
    const LossSum loss = masked_loss(tape, prediction, batch.target, batch.mask);
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
    return model.forward(tape, batch).value();
  }
};

/// What the judge makes of one period: the prediction, and the gradients of the loss divided by its weight.
struct Judged {
  Matrix prediction;
  std::vector<double> gradients;
};
Judged judge(const Step& step) {
  Runtime cpu({.device = {}});
  const int64_t period = step.nodes.base.rows;
  MeshGraphNetOptions options = step.options;
  options.path = ComputePath::op_by_op;
  const MeshGraphNet model = allocated(cpu, options, DType::f64);
  const auto tensor = [&](const Matrix& matrix) {
    const Tensor t = Tensor::empty(cpu, Shape{matrix.rows, matrix.cols}, DType::f64, Tag::data);
    fill_rows(t, matrix, cpu);
    return t;
  };
  Batch batch;
  batch.nodes = period;
  batch.graph_offsets = {0, period};
  batch.edge_sets.push_back({"mesh",
                             build_graph(cpu, period, step.base_edges.senders, step.base_edges.receivers),
                             tensor(step.edges.base)});
  batch.node_features = tensor(step.nodes.base);
  Tape tape(cpu);
  const Variable prediction = model.forward(tape, batch);
  const LossSum loss = masked_loss(tape, prediction, tensor(step.target.base), mask_of(cpu, period));
  Judged result{Matrix(period, kOutputs, values_of(prediction.value(), cpu.stream())), {}};
  tape.backward(loss.sum, scalar(cpu, 1.0 / static_cast<double>(period)));
  result.gradients = values_of(model.parameters().gradients(), cpu.stream());
  return result;
}

/// A step rounds, and what rounding moves across relu's kink changes a gradient by more than rounding: a
/// share of about epsilon of the values, each by its whole size. So gradients are held as a whole, to the
/// root.
std::string gradient_difference(const Step& step, const std::vector<double>& expected) {
  const std::vector<double> actual = values_of(step.model.parameters().gradients(), step.runtime.stream());
  if (actual.size() != expected.size()) return "gradients: of another size than the judge's";
  const double scale = step.optimizer.state().loss_scale;
  double off = 0.0, all = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    off += std::pow(actual[i] / scale - expected[i], 2);
    all += std::pow(expected[i], 2);
  }
  const double relative = std::sqrt(off / all);
  const double allowed = 4.0 * std::sqrt(test::tolerance(step.inputs.storage(), 1, 1.0) / 8.0);
  if (relative <= allowed) return {};
  return fmt::format("gradients: {:.2g} from the judge's, relative to their norm; {:.2g} allowed", relative,
                     allowed);
}

/// A recorded step's gradients: those of the replay behind the recording.
std::string check_captured(const Step& step, const std::vector<double>& expected) {
  CapturedWork work(step.runtime, "judged step", [&](Runtime& on) { step.gradients(on); });
  for (int run = 0; run < kRunsBeforeReplay; ++run) work.run();
  fill_zero(step.model.parameters().gradients(), step.runtime.stream());
  work.run();
  return work.refusal().empty() ? gradient_difference(step, expected) : "not captured: " + work.refusal();
}

std::string check_step(Step& step, const Kind& kind) {
  const Judged expected = judge(step);
  const Tensor prediction = kind.train ? step.gradients(step.runtime) : step.predict(step.runtime);
  const int64_t terms = step.options.blocks * step.options.width;
  std::string text = step.inputs.check(
      {}, [] {},
      [&](Case& judged) { judged.expect("prediction", prediction, expected.prediction, terms, 1.0); });
  if (!kind.train) return text;
  if (text.empty()) text = gradient_difference(step, expected.gradients);
  if (text.empty() && kind.captured) text = check_captured(step, expected.gradients);
  fill_zero(step.model.parameters().gradients(), step.runtime.stream());
  return text;
}

Workload prepare(Runtime& runtime, const Scale& scale, const Kind& kind, DType dtype, std::string_view name) {
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
  } else {
    work.run = [&runtime, once] { once(runtime); };
  }
  return work;
}

}  // namespace

std::vector<Benchmark> step_benchmarks(const Selection& selection) {
  constexpr Kind kTrain{}, kTrainRecomputing{.keep_hidden = false}, kForward{.train = false};
  constexpr Kind kTrainByOps{.path = ComputePath::op_by_op};
  constexpr Kind kForwardByOps{.train = false, .path = ComputePath::op_by_op};
  // The fused backward of a GPU recomputes; that of the CPU is faster on what forward kept.
  const Kind fused_train = selection.device == DeviceKind::cuda ? kTrainRecomputing : kTrain;
  std::vector<Benchmark> list;
  std::vector<DType> types = timed_types();
  const bool on_cpu = selection.device == DeviceKind::cpu;
  if (on_cpu) types.push_back(DType::f64);
  std::vector<SizeClass> sizes = size_classes(selection.quick);
  if (!selection.quick) sizes.front().scale = {.period = 43 * 43, .copies = 1, .square = true};
  if (!selection.quick)  // two meshes of 1,885 nodes: MeshGraphNets' cylinder flow
    sizes.insert(sizes.begin() + 1, {"2x1885", {.period = 145, .copies = 26}});
  if (!selection.quick && on_cpu)  // 500 nodes
    sizes.insert(sizes.begin() + 1, {"small", {.period = 125, .copies = 4, .width = 64, .blocks = 6}});
  for (const SizeClass& size : sizes) {
    for (const DType dtype : types) {
      if (dtype == DType::f64 && !size.name.empty()) continue;  // for checks, not for large meshes
      if (on_cpu && dtype != DType::f32 && !size.name.empty() && size.name != "small") continue;
      const auto part = [&](std::string_view what) {
        return fmt::format("{}{}/{}", what, size.name.empty() ? "" : "/" + size.name, name_of(dtype));
      };
      const auto make = [=](const Kind& kind, const std::string& name) {
        return
            [=, scale = size.scale](Runtime& runtime) { return prepare(runtime, scale, kind, dtype, name); };
      };
      const auto add = [&](const std::string& name, const Kind& kind) {
        list.push_back({name, make(kind, name)});
      };
      add(part("step/train"), kTrain);
      add(part("step/train_recompute_hidden"), kTrainRecomputing);
      add(part("step/train_op_by_op"), kTrainByOps);
      add(part("step/forward"), kForward);
      if (selection.device == DeviceKind::cuda) {
        Kind captured_train = fused_train, captured_forward = kForward;
        captured_train.captured = captured_forward.captured = true;
        add(part("step/train_captured"), captured_train);
        add(part("step/forward_captured"), captured_forward);
        for (const auto& [what, other] :
             {std::pair{"launched", fused_train}, std::pair{"op_by_op", kTrainByOps}}) {
          const std::string name = part(fmt::format("ratio/train/{}_over_captured", what));
          list.push_back({name, make(captured_train, name), make(other, name)});
        }
      }
      add(part("step/forward_op_by_op"), kForwardByOps);
      for (const auto& [what, fused, by_ops] :
           {std::tuple{"train", fused_train, kTrainByOps}, std::tuple{"forward", kForward, kForwardByOps}}) {
        const std::string name = part(fmt::format("ratio/{}/op_by_op_over_fused", what));
        list.push_back({name, make(fused, name), make(by_ops, name)});
      }
    }
  }
  return list;
}

}  // namespace meshgrad::bench
