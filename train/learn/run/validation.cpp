// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/learn/run/part_step.h>
#include <meshgrad/train/learn/run/validation.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/largest_batch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

namespace meshgrad {

namespace {

double value_of(const Variable& loss, const Stream& stream) {
  return *to_host(loss.value(), stream).data<double>();
}

/// Which rows of a batch are a sample's.
struct SampleRows {
  int64_t graph = 0, first_node = 0, end_node = 0;

  Tensor of(const Tensor& tensor, TensorRows rows) const {
    if (rows == TensorRows::nodes) return tensor.row_range(first_node, end_node);
    return rows == TensorRows::graphs ? tensor.row_range(graph, graph + 1) : tensor;
  }
};

/// A sample's rows of a batch, as what a loss reads beside the prediction.
Batch rows_of_sample(const Batch& batch, const SampleRows& rows) {
  Batch own;
  own.graph.nodes = rows.end_node - rows.first_node;
  own.graph.node_features = rows.of(batch.graph.node_features, TensorRows::nodes);
  for (const NamedTensor& named : batch.tensors)
    own.tensors.push_back({named.name, rows.of(named.tensor, named.rows), named.rows});
  return own;
}

/// Thrown where a batch is to stop within.
struct ValidationStopped {};

/// Of one sample.
struct SampleErrors {
  double loss = 0.0;
  ComparedErrors compared;
};

/// What is validated, and its sums: they are added in the order of samples.
struct Validated {
  Runtime& runtime;
  Ranks& ranks;
  const Task task;
  const Model& model;
  Normalizers& normalizers;
  const Config& config;
  const std::function<bool()>& stop;
  const std::chrono::milliseconds long_batch;
  const std::string& split;
  std::vector<double>* losses = nullptr;  // of each sample; then nothing is compared
  double loss = 0.0, weight = 0.0;
  ComparedErrors compared;

  Batch batch_of(const std::vector<Sample>& samples) const {
    return training_batch(task, runtime, config.precision, split, samples, {}, normalizers);
  }
  /// `graphs`: a row of targets on graphs, or undefined.
  ComparedErrors compare(const Sample& sample, const Tensor& prediction, const Batch& rows,
                         const Tensor& graphs = {}) const {
    if (losses != nullptr) return {};
    ComparedErrors errors = task.compare(runtime.stream(), split, sample, prediction, rows, normalizers);
    if (graphs.defined()) errors += task.mesh().compare_graph(split, sample, graphs, normalizers);
    return errors;
  }
  void add(const Sample& sample, const SampleErrors& errors) {
    const double terms = task.loss_weight(split, {sample});
    if (losses != nullptr) losses->push_back(terms > 0.0 ? errors.loss / terms : 0.0);
    loss += errors.loss;
    weight += terms;
    compared += errors.compared;
  }
  Validation result() const {
    const auto mean = [](double sum, double count) { return count > 0.0 ? sum / count : std::nan(""); };
    return {.loss = mean(loss, weight),
            .error = task.error_of(mean(compared.model, compared.weight)),
            .baseline = task.error_of(mean(compared.baseline, compared.weight))};
  }
};

/// Of samples that are computed together, each over its own rows.
std::vector<SampleErrors> errors_of(const Validated& all, const Batch& batch,
                                    const std::vector<Sample>& samples) {
  Tape tape(all.runtime, Tape::Mode::evaluate);
  if (all.stop && all.ranks.single() && !all.runtime.stream().on_gpu()) {
    tape.check_each_op([&, begin = std::chrono::steady_clock::now()] {
      if (std::chrono::steady_clock::now() - begin > all.long_batch && all.stop()) throw ValidationStopped();
    });
  }
  Variable prediction, of_graphs;
  Model observed = all.model;
  observed.stages.push_back(
      {"prediction", false, [&](Tape&, const ParameterSet&, const GraphBatch&, const Values& values) {
         prediction = values.front();
         if (all.task.sizes().graph_outputs > 0) of_graphs = values[1];
         return values;
       }});
  const LossTerms terms = all.task.loss(tape, observed, batch, {});
  const Stream& stream = all.runtime.stream();
  const Tensor rows = to_host(prediction.value(), stream);
  const Tensor graphs = of_graphs ? to_host(of_graphs.value(), stream) : Tensor();
  if (samples.size() == 1)
    return {{value_of(terms.sum, stream), all.compare(samples.front(), rows, batch, graphs)}};
  std::vector<SampleErrors> errors;
  const TensorRows predicted = all.task.sizes().pool ? TensorRows::graphs : TensorRows::nodes;
  SampleRows own_rows;
  for (const Sample& sample : samples) {
    own_rows.end_node += all.task.dataset().mesh_sizes(all.split, sample.trajectory).nodes;
    const Batch own = rows_of_sample(batch, own_rows);
    Values given{Variable(own_rows.of(prediction.value(), predicted), false)};
    if (of_graphs) given.push_back(Variable(own_rows.of(of_graphs.value(), TensorRows::graphs), false));
    const Model giving = model_giving(all.model, given);
    const double loss = value_of(all.task.loss(tape, giving, own, {}).sum, stream);
    errors.push_back({loss, all.compare(sample, own_rows.of(rows, predicted), own,
                                        of_graphs ? own_rows.of(graphs, TensorRows::graphs) : Tensor())});
    own_rows = {.graph = own_rows.graph + 1, .first_node = own_rows.end_node, .end_node = own_rows.end_node};
  }
  return errors;
}

std::vector<Sample> samples_of(const Task& task, const Config& config) {
  const SplitSamples all = task.samples(config.data.valid_split);
  if (all.size() == 0) throw task.no_samples(config.data.valid_split);
  const int64_t asked = config.train.validate_samples;
  const int64_t wanted = asked > 0 ? std::min(asked, all.size()) : all.size();
  std::vector<Sample> samples;
  for (int64_t i = 0; i < wanted; ++i) samples.push_back(all.at(i * all.size() / wanted));
  return samples;
}

/// All ranks compute each sample. False: stopped.
bool add_in_parts(const std::vector<Sample>& samples, MeshParts& parts, Validated& all) {
  for (const Sample& sample : samples) {
    if (agree(all.ranks, all.stop && all.stop(), "validation")) return false;
    const MeshView mesh = meshes_of(all.task.dataset(), all.split, {sample}).front();
    const Batch batch = all.batch_of({sample});
    const PartsLoss found = loss_in_parts(all.runtime, all.task, all.model, batch, mesh, parts);
    all.add(sample, {found.loss, all.compare(sample, found.prediction, batch)});
  }
  return true;
}

/// The ranks take the batches in turn, a batch each in a round. False: stopped.
bool add_batches(const std::vector<Sample>& samples, const BatchShape& room, Validated& all) {
  const std::vector<std::vector<Sample>> batches = batches_within(room, all.task, all.split, samples);
  const auto size = static_cast<size_t>(all.ranks.size());
  for (size_t begin = 0; begin < batches.size(); begin += size) {
    const auto round = std::span(batches).subspan(begin, std::min(size, batches.size() - begin));
    // Of each rank: whether it stops, as a loss, and its samples' errors.
    std::vector<std::vector<SampleErrors>> told(size, std::vector<SampleErrors>(1));
    for (size_t rank = 0; rank < round.size(); ++rank) told[rank].resize(1 + round[rank].size());
    std::vector<SampleErrors>& mine = told[static_cast<size_t>(all.ranks.rank())];
    if (all.stop && all.stop()) {
      mine.front().loss = 1.0;
    } else if (mine.size() > 1) {
      const std::vector<Sample>& own = round[static_cast<size_t>(all.ranks.rank())];
      try {
        std::ranges::copy(errors_of(all, all.batch_of(own), own), mine.begin() + 1);
      } catch (const ValidationStopped&) {
        mine.front().loss = 1.0;
      }
    }
    std::vector<std::span<std::byte>> bytes;
    for (std::vector<SampleErrors>& values : told) bytes.push_back(std::as_writable_bytes(std::span(values)));
    all_gather_bytes(all.ranks, bytes, "validation");
    if (std::ranges::any_of(told, [](const auto& values) { return values.front().loss != 0.0; }))
      return false;
    for (size_t rank = 0; rank < round.size(); ++rank)
      for (size_t i = 0; i < round[rank].size(); ++i) all.add(round[rank][i], told[rank][1 + i]);
  }
  return true;
}

/// Of batches of a task that is validated: those of one that is trained, or single graphs.
BatchShape room_of(const Config& config, const Task& trained, const Task& validated) {
  BatchShape room = largest_batch(config, trained);
  if (validated.loss_of_whole_graphs()) room.graphs = 1;
  return room;
}

/// Calls `use` while the model has the weights of `average`, if there is one.
template <class Use>
auto with_weights(const Runtime& runtime, const ParameterSet& parameters, const Tensor& average,
                  const Use& use) {
  if (!average.defined()) return use();
  const Tensor weights = host_tensor(average.shape(), average.dtype());
  copy(parameters.values(), weights, runtime.stream());
  runtime.stream().synchronize();  // 16-bit copies are rounded on the host
  parameters.set(parameters.values(), to_host(average, runtime.stream()), runtime.stream());
  const auto result = use();
  parameters.set(parameters.values(), weights, runtime.stream());
  return result;
}

}  // namespace

std::vector<std::vector<Sample>> batches_within(const BatchShape& room, const Task& task,
                                                std::string_view split, std::span<const Sample> samples) {
  std::vector<std::vector<Sample>> batches;
  BatchShape filled = room;
  for (const Sample& sample : samples) {
    // Where a batch holds one graph there is nothing to measure.
    const BatchShape one = room.graphs > 1 ? task.shape(split, {sample}) : room;
    filled = {.nodes = filled.nodes + one.nodes,
              .edges = filled.edges + one.edges,
              .world_edges = filled.world_edges + one.world_edges,
              .graphs = filled.graphs + 1};
    if (batches.empty() || !room.holds(filled)) {
      batches.emplace_back();
      filled = one;
      filled.graphs = 1;
    }
    batches.back().push_back(sample);
  }
  return batches;
}

std::optional<Validation> validate_model(Runtime& runtime, Ranks& ranks, const Task& task, const Model& model,
                                         const Tensor& average, Normalizers& normalizers,
                                         const Config& config, const std::function<bool()>& stop,
                                         std::chrono::milliseconds long_batch, MeshParts* parts) {
  return with_weights(runtime, model.parameters, average, [&]() -> std::optional<Validation> {
    Validated all{runtime, ranks,      task.for_validation(),  model, normalizers, config,
                  stop,    long_batch, config.data.valid_split};
    const std::vector<Sample> samples = samples_of(all.task, config);
    const bool done = parts != nullptr ? add_in_parts(samples, *parts, all)
                                       : add_batches(samples, room_of(config, task, all.task), all);
    return done ? std::optional(all.result()) : std::nullopt;
  });
}

std::optional<std::vector<double>> sample_losses(Runtime& runtime, Ranks& ranks, const Task& task,
                                                 const Model& model, Normalizers& normalizers,
                                                 const Config& config, const std::string& split,
                                                 int64_t chunk, const std::function<void(int64_t)>& done,
                                                 const std::function<bool()>& stop,
                                                 std::chrono::milliseconds long_batch, MeshParts* parts) {
  const SplitSamples samples = task.samples(split);
  std::vector<double> losses;
  losses.reserve(static_cast<size_t>(samples.size()));
  Validated all{runtime, ranks,  task.for_validation(), model, normalizers, config, stop, long_batch,
                split,   &losses};
  const BatchShape room = room_of(config, task, all.task);
  std::vector<Sample> some;
  while (std::ssize(losses) < samples.size()) {
    const int64_t end = std::min(samples.size(), std::ssize(losses) + chunk);
    some.clear();
    for (int64_t i = std::ssize(losses); i < end; ++i) some.push_back(samples.at(i));
    if (!(parts != nullptr ? add_in_parts(some, *parts, all) : add_batches(some, room, all)))
      return std::nullopt;
    done(end);
  }
  return losses;
}

double mean_relative_error(std::span<const FieldError> fields) {
  double first = std::nan(""), logarithms = 0.0, count = 0.0;
  for (const FieldError& field : fields) {
    if (!std::isfinite(field.rmse)) return std::nan("");
    if (std::isnan(field.relative_l2)) continue;
    constexpr double kRounding = std::numeric_limits<float>::epsilon();
    const double error = std::max(field.relative_l2, kRounding);
    if (count == 0.0) first = error;
    logarithms += std::log(error / first);  // the mean of one is then the same bits
    count += 1.0;
  }
  return first * std::exp(logarithms / count);
}

namespace {

/// Evaluates while the model has the weights of `average`, if there is one.
Evaluation evaluate_average(const TrainedModel& trained, const Tensor& average, Ranks& ranks,
                            EvaluateOptions options) {
  const std::function<bool()> stop = options.stop;
  if (trained.parts == nullptr) {
    options.ranks = &ranks;
  } else {  // all compute each mesh together
    options.stop = [&] { return agree(ranks, stop && stop(), "validation"); };
  }
  return with_weights(trained.runtime, trained.model.parameters, average,
                      [&] { return trained.task.evaluate(trained, options); });
}

}  // namespace

std::optional<ValidationMetric> validation_metric(Runtime& runtime, Ranks& ranks, const Task& task,
                                                  const Model& model, const Tensor& average,
                                                  const Normalizers& normalizers, const Config& config,
                                                  const std::string& key, const std::function<bool()>& stop,
                                                  MeshParts* parts) {
  const Evaluation result =
      evaluate_average({runtime, task, model, normalizers, config.precision, parts}, average, ranks,
                       {.split = config.data.valid_split, .stop = stop, .nearest_case = false});
  if (result.stopped) return std::nullopt;
  ValidationMetric metric{value_of(key, result.metrics, result.fields), {}};
  if (std::isnan(metric.value) && !result.notes.empty()) metric.why_nan = result.notes.front();
  return metric;
}

std::optional<ValidationRollouts> validation_rollouts(Runtime& runtime, Ranks& ranks, const Task& task,
                                                      const Model& model, const Tensor& average,
                                                      const Normalizers& normalizers, const Config& config,
                                                      int64_t steps, const std::function<bool()>& stop,
                                                      MeshParts* parts) {
  const Evaluation result =
      evaluate_average({runtime, task, model, normalizers, config.precision, parts}, average, ranks,
                       {.split = config.data.valid_split,
                        .stride = std::numeric_limits<int32_t>::max(),  // rollouts are asked for
                        .boundary = config.rollout.boundary,
                        .trajectories = config.train.validate_rollouts,
                        .steps = steps,
                        .stop = stop});
  if (result.stopped) return std::nullopt;
  const RolloutErrors& rollouts = result.dynamics.value().rollouts.back();
  std::vector<FieldError> fields = rollouts.fields;
  const double error = mean_relative_error(fields);
  for (FieldError& field : fields) {
    field.rmse = field.baseline_rmse;
    field.relative_l2 = field.baseline_relative_l2;
  }
  return ValidationRollouts{error, mean_relative_error(fields), rollouts.steps, rollouts.fields};
}

std::vector<int64_t> validated_lengths(const Task& task, const Config& config) {
  std::vector<int64_t> lengths;
  if (validated_rollouts(config) == 0) return lengths;
  const MeshTask& mesh = task.mesh();
  const std::string& split = config.data.valid_split;
  const int64_t count = std::min(config.train.validate_rollouts, mesh.dataset.size(split));
  for (int64_t i = 0; i < count; ++i)
    lengths.push_back(rollout_frames(mesh, mesh.dataset.trajectory(split, i), {}));
  return lengths;
}

ValidationPlan plan_validation(const ValidationTimes& seconds, std::span<const int64_t> lengths,
                               double share) {
  const double room = share * seconds.training;
  const auto takes = [&](int64_t most) {
    int64_t steps = 0;
    for (const int64_t length : lengths) steps += std::min(most, length);
    return seconds.samples + seconds.rollout_step * static_cast<double>(steps);
  };
  const int64_t longest = lengths.empty() ? 0 : *std::ranges::max_element(lengths);
  int64_t steps = longest;
  if (takes(longest) > room) {
    steps = kFewestRolloutSteps;
    while (2 * steps < longest && takes(2 * steps) <= room) steps *= 2;
    steps = std::min(steps, longest);
  }
  ValidationPlan plan{.interval = 1, .rollout_steps = steps < longest ? steps : 0};
  if (room > 0.0)
    plan.interval = std::clamp<int64_t>(std::llround(std::ceil(takes(steps) / room)), 1, 1'000'000);
  return plan;
}

}  // namespace meshgrad
