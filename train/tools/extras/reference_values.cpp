// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/tools/extras/reference_values.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace meshgrad {
namespace {

/// Calls `body` with a pointer to the values of a tensor on the host.
template <class Body>
void with_values(const Tensor& tensor, Body&& body) {
  switch (tensor.dtype()) {
    case DType::f16:
      return body(tensor.data<half>());
    case DType::bf16:
      return body(tensor.data<bfloat16>());
    default:
      dispatch_storage(tensor.dtype(), [&]<class T>() { body(tensor.data<T>()); });
  }
}

template <class T>
double to_double(T value) {
  if constexpr (sizeof(T) == 2) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

/// The values divided by `scale`.
std::vector<double> to_doubles(const Tensor& tensor, const Stream& stream, double scale = 1.0) {
  const Tensor host = to_host(tensor, stream);
  std::vector<double> values(static_cast<size_t>(host.elements()));
  with_values(host, [&](const auto* from) {
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_double(from[i]) / scale;
  });
  return values;
}

Tensor to_host_tensor(const std::vector<double>& values, const Shape& shape, DType dtype,
                      std::string_view name) {
  const Tensor tensor = host_tensor(shape, dtype);
  if (tensor.elements() != static_cast<int64_t>(values.size())) {
    throw data_error(name, fmt::format("{} values", tensor.elements()), fmt::format("{}", values.size()),
                     "check how the file was written");
  }
  with_values(tensor, [&](auto* to) {
    using To = std::remove_pointer_t<decltype(to)>;
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (sizeof(To) == 2) {
        to[i] = To(static_cast<float>(values[i]));
      } else {
        to[i] = static_cast<To>(values[i]);
      }
    }
  });
  return tensor;
}

Tensor to_tensor(Runtime& runtime, const std::vector<double>& values, const Shape& shape, DType dtype,
                 std::string_view name) {
  const Tensor tensor = Tensor::empty(runtime, shape, dtype, Tag::data, name);
  copy(to_host_tensor(values, shape, dtype, name), tensor, runtime.stream());
  return tensor;
}

Shape shape_of(const SafetensorsTensor& tensor) { return Shape(std::span<const int64_t>(tensor.shape)); }

double metadata_number(const SafetensorsView& view, const std::string& key) {
  const std::string& text = view.metadata_at(key);
  if (const std::optional<double> value = parse_number(text)) return *value;
  throw data_error(view.file + ": metadata " + key, "a number", "\"" + text + "\"",
                   "check how the file was written");
}

/// One deviation group under construction.
class Comparison {
 public:
  Comparison(std::string name, double tolerance) {
    group_.name = std::move(name), group_.tolerance = tolerance;
  }

  void add(const std::string& tensor, const std::vector<double>& ours, const std::vector<double>& theirs) {
    if (ours.size() != theirs.size()) {
      throw data_error(tensor, fmt::format("{} values", ours.size()), fmt::format("{}", theirs.size()),
                       "check how the file was written");
    }
    for (size_t i = 0; i < ours.size(); ++i) {
      const double deviation = std::abs(ours[i] - theirs[i]);
      largest_ = std::max(largest_, std::abs(theirs[i]));
      // Written so that a NaN counts as the worst.
      if (!(deviation <= group_.absolute)) {
        group_.absolute = deviation;
        group_.worst = tensor;
        if (std::isnan(deviation)) group_.absolute = HUGE_VAL;
      }
    }
    group_.values += static_cast<int64_t>(ours.size());
  }

  VerifyGroup finish(double scale = 0.0) {
    const double reference = scale > 0.0 ? scale : largest_;
    group_.relative = group_.absolute == 0.0 ? 0.0 : group_.absolute / reference;
    if (std::isnan(group_.relative)) group_.relative = HUGE_VAL;
    return group_;
  }

 private:
  VerifyGroup group_;
  double largest_ = 0.0;
};

struct Tolerances {
  double forward, backward, adam_losses, adam_norms, adam_parameters;
};
/// In 16 bits pre-activations near 0 fall on relu's other side: rounding mgn_small's weights to f16, and
/// nothing else, moves a gradient by 6 % of the largest and soon makes Adam's updates diverge, so after the
/// first step only losses are compared.
Tolerances tolerances_for(DType precision) {
  switch (precision) {
    case DType::f64:
      return {1e-9, 1e-9, 1e-9, 1e-9, 1e-9};
    case DType::f16:
      return {1e-2, 2e-1, 2e-2, HUGE_VAL, HUGE_VAL};
    case DType::bf16:
      return {8e-2, 8e-1, 4e-2, HUGE_VAL, HUGE_VAL};
    default:  // seven times what PyTorch's own f32 deviates on such files
      return {5e-6, 2e-5, 2e-5, 2e-5, 2e-2};
  }
}

/// Keeps gradients in the range of f16 without ever overflowing on such small models.
double loss_scale_for(DType precision) { return precision == DType::f16 ? 256.0 : 1.0; }

/// A reference file, loaded: the model, its batch and the inputs as leaf variables.
struct Reference {
  SafetensorsFile file;
  Model model;
  GraphBatch batch;
  int64_t graphs = 1;
  Tensor target, mask;
  std::vector<int32_t> edge_order;  // the file's number of each of our edges
  Variable nodes, edges;
};

int64_t count_blocks(const SafetensorsView& view) {
  int64_t blocks = 0;
  while (view.contains(fmt::format("param.processor.{}.edge_mlp.linear_0.weight", blocks))) ++blocks;
  return blocks;
}

/// A file of weights alone, ours or another framework's, has no values to compare with.
void check_layout(const SafetensorsView& view) {
  for (const char* name :
       {"in.node_features", "in.senders", "param.node_encoder.linear_0.weight", "out.prediction"}) {
    if (view.contains(name)) continue;
    throw data_error(
        view.file,
        "reference values of a MeshGraphNet: tensors in.* (the batch), param.NAME (weights, named as in "
        "our checkpoints), out.* and grad.NAME",
        fmt::format("a file without {}", name), "docs/precision.md describes the file");
  }
}

ModelSizes sizes_from(const SafetensorsView& view) {
  return {.node_inputs = shape_of(view.at("in.node_features")).width(),
          .edge_inputs = {shape_of(view.at("in.edge_features")).width()},
          .edge_set_names = {std::string(kMeshEdges)},
          .outputs = shape_of(view.at("in.target")).width()};
}

MeshGraphNetOptions options_from(const SafetensorsView& view, bool fused, bool keep_hidden) {
  MeshGraphNetOptions options;
  options.width = shape_of(view.at("param.node_encoder.linear_0.weight")).rows();
  options.blocks = count_blocks(view);
  if (options.blocks == 0) view.at("param.processor.0.edge_mlp.linear_0.weight");  // says what is missing
  options.hidden_layers = 0;
  while (view.contains(fmt::format("param.node_encoder.linear_{}.weight", options.hidden_layers + 1))) {
    ++options.hidden_layers;
  }
  if (!view.contains("param.node_encoder.norm.weight")) options.norm = Norm::none;
  options.path = fused ? ComputePath::fused : ComputePath::op_by_op;
  options.keep_hidden = keep_hidden;
  options.keep_last_edges = true;
  return options;
}

std::vector<int32_t> to_indices(const SafetensorsTensor& tensor) {
  const std::vector<int64_t> wide = to_i64(tensor);
  for (const int64_t index : wide) {
    if (index < 0 || index > std::numeric_limits<int32_t>::max()) {
      throw data_error(tensor.name, "node numbers from 0 to 2^31 - 1", std::to_string(index),
                       "check how the file was written");
    }
  }
  return {wide.begin(), wide.end()};
}

/// Rows of a file's edge tensor in our order.
std::vector<double> permuted(const std::vector<double>& values, const std::vector<int32_t>& order) {
  const size_t width = order.empty() ? 0 : values.size() / order.size();
  std::vector<double> result(values.size());
  for (size_t i = 0; i < order.size(); ++i) {
    std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(order[i]) * width), width,
                result.begin() + static_cast<std::ptrdiff_t>(i * width));
  }
  return result;
}

void load_batch(Runtime& runtime, DType precision, Reference& reference) {
  const SafetensorsView& view = reference.file.view();
  GraphBatch& batch = reference.batch;
  batch.nodes = shape_of(view.at("in.node_features")).rows();
  const std::vector<int64_t> sizes = to_i64(view.at("in.graph_sizes"));
  reference.graphs = std::ssize(sizes);
  const int64_t sum = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  const auto negative = std::ranges::find_if(sizes, [](int64_t size) { return size < 0; });
  const bool valid = negative == sizes.end();
  if (!valid || sum != batch.nodes) {
    throw data_error(view.file + ": in.graph_sizes",
                     fmt::format("sizes that add up to {} nodes", batch.nodes),
                     fmt::format("{}", valid ? sum : *negative), "check how the file was written");
  }
  const std::vector<int32_t> senders = to_indices(view.at("in.senders"));
  const std::vector<int32_t> receivers = to_indices(view.at("in.receivers"));
  EdgeSet set;
  set.name = kMeshEdges;
  set.graph = build_graph(runtime, batch.nodes, senders, receivers, &reference.edge_order);
  const SafetensorsTensor& features = view.at("in.edge_features");
  const auto load = [&](const std::string& name, const std::vector<double>& values, DType dtype) {
    return to_tensor(runtime, values, shape_of(view.at(name)), dtype, name);
  };
  set.features = load("in.edge_features", permuted(to_f64(features), reference.edge_order), precision);
  batch.edge_sets.push_back(std::move(set));
  batch.node_features = load("in.node_features", to_f64(view.at("in.node_features")), precision);
  reference.target = load("in.target", to_f64(view.at("in.target")), accumulator_of(precision));
  const std::vector<int64_t> mask = to_i64(view.at("in.loss_mask"));
  const std::vector<uint8_t> mask_bytes(mask.begin(), mask.end());
  reference.mask =
      Tensor::from<uint8_t>(runtime, mask_bytes, Shape{static_cast<int64_t>(mask.size())}, Tag::data, "mask");
}

void load_parameters(Runtime& runtime, DType precision, Reference& reference) {
  reference.model.parameters.allocate(runtime, precision, 0);
  const ParameterSet& set = reference.model.parameters;
  const Tensor host = host_tensor(set.values().shape(), set.values().dtype());
  for (size_t i = 0; i < set.parameters().size(); ++i) {
    const ParameterInfo& info = set.parameters()[i];
    const SafetensorsTensor& tensor = reference.file.at("param." + info.name);
    from_file_order(info, to_host_tensor(to_f64(tensor), shape_of(tensor), DType::f64, info.name),
                    set.slice(host, i));
  }
  set.set(set.values(), host, runtime.stream());
}

Optimizer make_optimizer(Runtime& runtime, const Reference& reference, DType precision) {
  const SafetensorsView& view = reference.file.view();
  OptimizerConfig config;
  config.lr = metadata_number(view, "lr");
  Optimizer optimizer(runtime, reference.model.parameters, config, metadata_number(view, "clip_norm"),
                      {.peak = config.lr});
  StepState state;
  state.loss_scale = loss_scale_for(precision);
  optimizer.set_state(state);
  return optimizer;
}

/// Latents after the encoder (index 0) and each block: [nodes, width] and [edges, width].
struct LatentTrace {
  std::vector<Tensor> nodes, edges;
};

/// Forward and backward; scaled gradients of the mean loss are added to the arenas. Returns the prediction.
Tensor run_step(Runtime& runtime, const Optimizer& optimizer, const Reference& reference,
                LatentTrace* trace) {
  Tape tape(runtime);
  const auto last = static_cast<int64_t>(reference.model.stages.size()) - 1;
  const StageObserver observer = [&](int64_t stage, const Values& after) {
    if (stage == last) return;
    trace->nodes.push_back(after[0].value());
    trace->edges.push_back(after[1].value());
  };
  const Values values = forward(reference.model, tape, reference.batch, {reference.nodes, reference.edges},
                                {}, trace != nullptr ? observer : StageObserver());
  const Variable& prediction = values.front();
  const LossSum loss = ops::masked_loss(tape, prediction, reference.target, reference.mask);
  tape.backward(loss.sum, optimizer.note_loss(runtime, loss.sum.value(), loss.weight));
  return prediction.value();
}

void compare_forward(const Stream& stream, const Reference& reference, const Tensor& ours, double mean_loss,
                     const LatentTrace& trace, const Tolerances& tolerances, VerifyReport& report) {
  const SafetensorsView& view = reference.file.view();
  Comparison prediction("prediction", tolerances.forward);
  prediction.add("out.prediction", to_doubles(ours, stream), to_f64(view.at("out.prediction")));
  Comparison latents("latents", tolerances.forward);
  for (size_t depth = 0; depth < trace.nodes.size(); ++depth) {
    const std::string node = fmt::format("out.node_latent.{}", depth);
    const std::string edge = fmt::format("out.edge_latent.{}", depth);
    latents.add(node, to_doubles(trace.nodes[depth], stream), to_f64(view.at(node)));
    latents.add(edge, to_doubles(trace.edges[depth], stream),
                permuted(to_f64(view.at(edge)), reference.edge_order));
  }
  Comparison loss("loss", tolerances.forward);
  loss.add("out.loss", {mean_loss}, to_f64(view.at("out.loss")));
  for (Comparison* group : {&prediction, &latents, &loss}) report.groups.push_back(group->finish());
}

/// The parameters' values or gradients as files hold them.
void compare_arena(const Stream& stream, const Reference& reference, const Tensor& arena,
                   const std::string& prefix, double scale, Comparison& comparison) {
  const ParameterSet& set = reference.model.parameters;
  const Tensor host = to_host(arena, stream);
  for (size_t i = 0; i < set.parameters().size(); ++i) {
    const ParameterInfo& info = set.parameters()[i];
    comparison.add(prefix + info.name, to_doubles(to_file_order(info, set.slice(host, i)), stream, scale),
                   to_f64(reference.file.view().at(prefix + info.name)));
  }
}

void compare_gradients(const Stream& stream, const Reference& reference, double scale,
                       const Tolerances& tolerances, VerifyReport& report) {
  const SafetensorsView& view = reference.file.view();
  Comparison gradients("gradients", tolerances.backward);
  compare_arena(stream, reference, reference.model.parameters.gradients(), "grad.", scale, gradients);
  gradients.add("grad.in.node_features", to_doubles(reference.nodes.gradient(), stream, scale),
                to_f64(view.at("grad.in.node_features")));
  gradients.add("grad.in.edge_features", to_doubles(reference.edges.gradient(), stream, scale),
                permuted(to_f64(view.at("grad.in.edge_features")), reference.edge_order));
  report.groups.push_back(gradients.finish());
}

void compare_adam(Runtime& runtime, Reference& reference, const Tolerances& tolerances,
                  VerifyReport& report) {
  const SafetensorsView& view = reference.file.view();
  const Stream& stream = runtime.stream();
  const Optimizer optimizer = make_optimizer(runtime, reference, report.precision);
  reference.nodes = Variable(reference.batch.node_features, false);
  reference.edges = Variable(reference.batch.edges(kMeshEdges).features, false);
  fill_zero(reference.model.parameters.gradients(), stream);
  std::vector<double> losses, norms;
  for (int64_t step = 0; step < report.steps; ++step) {
    run_step(runtime, optimizer, reference, nullptr);
    optimizer.step(runtime);
    const StepState state = optimizer.state();
    losses.push_back(state.last_loss);
    norms.push_back(state.gradient_norm);
  }
  Comparison adam_losses("Adam losses", tolerances.adam_losses);
  adam_losses.add("adam.losses", losses, to_f64(view.at("adam.losses")));
  Comparison adam_norms("gradient norms", tolerances.adam_norms);
  adam_norms.add("adam.grad_norms", norms, to_f64(view.at("adam.grad_norms")));
  Comparison parameters("parameters after Adam", tolerances.adam_parameters);
  compare_arena(stream, reference, reference.model.parameters.values(), "adam.param.", 1.0, parameters);
  report.groups.push_back(adam_losses.finish());
  if (std::isinf(tolerances.adam_norms)) return;
  report.groups.push_back(adam_norms.finish());
  // Rounded parameters move by the learning rate a step: that is the scale a deviation is to be seen on.
  report.groups.push_back(
      parameters.finish(report.precision == DType::f64 ? 0.0 : metadata_number(view, "lr")));
}

}  // namespace

bool VerifyReport::passed() const {
  return std::all_of(groups.begin(), groups.end(), [](const VerifyGroup& group) { return group.passed(); });
}

VerifyReport verify(Runtime& runtime, const std::string& file, DType precision, bool fused,
                    bool keep_hidden) {
  check_precision(runtime.device(), precision);
  const SafetensorsFile safetensors(file);
  check_layout(safetensors.view());
  const MeshGraphNetOptions options = options_from(safetensors.view(), fused, keep_hidden);
  Reference reference{
      safetensors, make_mesh_graph_net(options, sizes_from(safetensors.view())), {}, {}, {}, {}, {}, {}};
  load_batch(runtime, precision, reference);
  load_parameters(runtime, precision, reference);
  reference.nodes = Variable(reference.batch.node_features, true);
  reference.edges = Variable(reference.batch.edges(kMeshEdges).features, true);

  VerifyReport report;
  report.file = file;
  report.precision = precision;
  report.width = options.width;
  report.blocks = options.blocks;
  report.nodes = reference.batch.nodes;
  report.edges = reference.batch.edges(kMeshEdges).graph.edges;
  report.graphs = reference.graphs;
  report.steps = static_cast<int64_t>(safetensors.at("adam.losses").elements());
  const Tolerances tolerances = tolerances_for(precision);
  LatentTrace trace;
  {
    const Optimizer optimizer = make_optimizer(runtime, reference, precision);
    const Tensor prediction = run_step(runtime, optimizer, reference, &trace);
    const StepState state = optimizer.state();
    compare_forward(runtime.stream(), reference, prediction, state.window_loss / state.window_weight, trace,
                    tolerances, report);
    compare_gradients(runtime.stream(), reference, state.loss_scale, tolerances, report);
  }
  compare_adam(runtime, reference, tolerances, report);
  return report;
}

}  // namespace meshgrad
