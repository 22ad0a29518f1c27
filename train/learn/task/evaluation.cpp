// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/learn/task/captured_prediction.h>
#include <meshgrad/train/learn/task/displacements.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/mesh_parts.h>
#include <meshgrad/train/learn/task/nearest_case.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

ModelOutput output_of(const TrainedModel& trained, const MeshView& mesh, const Batch& batch) {
  if (trained.parts != nullptr) return {trained.parts->predict(trained.model, mesh, batch.graph), {}};
  const ModelOutput output = trained.captured != nullptr
                                 ? trained.captured->run(batch)
                                 : run_model(trained.runtime, trained.model, batch.graph);
  const Stream& stream = trained.runtime.stream();
  return {to_host(output.rows, stream), output.graphs.defined() ? to_host(output.graphs, stream) : Tensor()};
}

}  // namespace

std::vector<float> predict_next(const TrainedModel& trained, const MeshTask& task,
                                const TrajectoryView& trajectory, int64_t t, const FieldState& state,
                                std::vector<float>* graphs) {
  const Batch batch = task.prediction_batch(trained.runtime, trained.precision, trajectory, t, state,
                                            trained.normalizers, trained.captured);
  FieldState next = state;
  SampleScratch scratch;
  const ModelOutput output = output_of(trained, trajectory.mesh(), batch);
  task.advance(trajectory.mesh(), output.rows, trained.normalizers, scratch, next);
  if (graphs != nullptr && output.graphs.defined()) {
    const std::vector<double> row =
        TargetFields::in_units(trained.normalizers.graph_targets, values_of(output.graphs));
    graphs->assign(row.begin(), row.end());
  }
  return std::move(next.current);
}

int64_t rollout_frames(const MeshTask& task, const TrajectoryView& trajectory,
                       const RolloutOptions& options) {
  const int64_t frames = task.for_validation().sample_frames(trajectory.frames()).size();
  return frames == 0 || options.steps == 0 ? frames : options.steps;
}

void roll_out(const TrainedModel& trained, const MeshTask& task, const TrajectoryView& trajectory,
              const RolloutOptions& options, const std::function<void(const RolloutFrame&)>& one_frame) {
  const int64_t count = rollout_frames(task, trajectory, options);
  if (count == 0) return;
  const int64_t first = task.for_validation().sample_frames(trajectory.frames()).first;
  const int64_t last = trajectory.frames() - 1;
  const std::vector<uint8_t> mask = task.fields.predicted_mask(trajectory.mesh());
  const auto width = static_cast<size_t>(task.fields.outputs);
  const std::vector<float> none;
  FieldState state = task.state_at(trajectory, first);
  for (int64_t t = first; t < first + count; ++t) {
    std::vector<float> graphs;
    std::vector<float> next = predict_next(trained, task, trajectory, std::min(t, last), state, &graphs);
    const std::vector<float> data = task.fields.target_values(trajectory, std::min(t + 1, last));
    const std::vector<float> graph_data = task.fields.graph_targets.row(trajectory, std::min(t + 1, last));
    for (size_t i = 0; i < next.size(); ++i) {
      const bool kinematic = task.fields.is_kinematic(trajectory.mesh().node_type[i / width]) &&
                             task.fields.is_known_change(static_cast<int64_t>(i % width));
      const bool given = options.boundary == RolloutBoundary::data || kinematic;
      if (mask[i / width] == 0 && given) next[i] = data[i];
    }
    const bool known = t + 1 <= last;
    one_frame({t + 1, next, known ? data : none, graphs, known ? graph_data : none});
    state.advance(std::move(next));
  }
}

std::string baseline_name(const MeshTask& task) {
  if (task.fields.over_time) return "nothing changes";
  const std::string& split = task.dataset.statistics_split();
  if (task.fields.targets.empty()) return fmt::format("the mean of split {} of these data", split);
  return fmt::format("the mean over the nodes of a type{} in split {} of these data",
                     task.fields.graph_targets.empty() ? "" : ", of fields on graphs over the graphs,",
                     split);
}

std::vector<double> centres_of(const FieldInfo& target, const FieldStatistics& stats) {
  constexpr double kFar = 3.0;
  double mean = 0.0, deviation = 0.0;
  for (size_t c = 0; c < stats.mean.size(); ++c) {
    mean = std::hypot(mean, stats.mean[c]);
    deviation = std::hypot(deviation, stats.std[c]);
  }
  const bool far = stats.count > 0 && mean > kFar * deviation && deviation > 0.0;
  return far ? stats.mean : std::vector<double>(static_cast<size_t>(target.components), 0.0);
}

FieldErrors::FieldErrors(const std::vector<FieldInfo>& targets, std::vector<double> centres)
    : targets_(targets), centres_(std::move(centres)), sums_(targets.size()) {
  size_t width = 0;
  for (const FieldInfo& field : targets_) width += static_cast<size_t>(field.components);
  centres_.resize(width, 0.0);
}

void FieldErrors::add(const std::vector<float>& ours, const std::vector<float>& truth,
                      const std::vector<uint8_t>& mask, const std::vector<float>& baseline,
                      const std::vector<float>& nearest) {
  const size_t width = mask.empty() ? 1 : truth.size() / mask.size();
  for (size_t node = 0; node < mask.size(); ++node) {
    if (mask[node] == 0) continue;
    size_t at = node * width, column = 0;
    for (size_t field = 0; field < targets_.size(); ++field) {
      Sums& sums = sums_[field];
      for (int c = 0; c < targets_[field].components; ++c, ++at, ++column) {
        const auto value = static_cast<double>(truth[at]);
        const double error = static_cast<double>(ours[at]) - value;
        const double missed = static_cast<double>(baseline[at]) - value;
        const double varied = value - centres_[column];
        sums.squares += error * error;
        sums.absolute += std::abs(error);
        sums.truth_squares += varied * varied;
        sums.baseline_squares += missed * missed;
        sums.count += 1.0;
        if (nearest.empty()) continue;
        sums.nearest_squares += std::pow(static_cast<double>(nearest[at]) - value, 2);
        sums.nearest_count += 1.0;
      }
    }
  }
}

std::vector<FieldError> FieldErrors::fields() const {
  std::vector<FieldError> fields;
  size_t column = 0;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Sums& sums = sums_[i];
    const auto root = [](double squares, double of) {
      return of > 0.0 ? std::sqrt(squares / of) : std::nan("");
    };
    bool centred = !targets_[i].offset.empty();
    for (int c = 0; c < targets_[i].components; ++c, ++column) centred = centred || centres_[column] != 0.0;
    fields.push_back({.name = targets_[i].name,
                      .unit = targets_[i].unit,
                      .rmse = root(sums.squares, sums.count),
                      .mae = sums.count > 0.0 ? sums.absolute / sums.count : std::nan(""),
                      .relative_l2 = root(sums.squares, sums.truth_squares),
                      .baseline_rmse = root(sums.baseline_squares, sums.count),
                      .baseline_relative_l2 = root(sums.baseline_squares, sums.truth_squares),
                      .nearest_rmse = root(sums.nearest_squares, sums.nearest_count),
                      .centred = centred});
  }
  return fields;
}

std::vector<double> FieldErrors::sums() const {
  std::vector<double> values;
  for (const Sums& sums : sums_)
    values.insert(values.end(), {sums.squares, sums.absolute, sums.truth_squares, sums.baseline_squares,
                                 sums.count, sums.nearest_squares, sums.nearest_count});
  return values;
}

void FieldErrors::add_sums(std::span<const double> sums) {
  size_t at = 0;
  for (Sums& own : sums_)
    for (double* const sum : {&own.squares, &own.absolute, &own.truth_squares, &own.baseline_squares,
                              &own.count, &own.nearest_squares, &own.nearest_count})
      *sum += sums[at++];
}

TargetErrors::TargetErrors(const MeshTask& task)
    : nodes(task.fields.targets.fields, task.centres()),
      graphs(task.fields.graph_targets.errors(task.dataset)) {}

void TargetErrors::add_graph(const std::vector<float>& ours, const std::vector<float>& truth,
                             const std::vector<float>& baseline) {
  if (!truth.empty()) graphs.add(ours, truth, {1}, baseline);
}

std::vector<FieldError> TargetErrors::fields() const {
  std::vector<FieldError> all = nodes.fields();
  for (FieldError& field : graphs.fields()) all.push_back(std::move(field));
  return all;
}

std::vector<double> TargetErrors::sums() const {
  std::vector<double> all = nodes.sums();
  for (const double sum : graphs.sums()) all.push_back(sum);
  return all;
}

void TargetErrors::add_sums(std::span<const double> sums) {
  const size_t of_nodes = nodes.sums().size();
  nodes.add_sums(sums.first(of_nodes));
  graphs.add_sums(sums.subspan(of_nodes));
}

namespace {

/// Several TargetErrors that are summed together: of one trajectory, then of all of them.
using ErrorSums = std::vector<TargetErrors>;

/// Calls `errors_of` for each trajectory, and adds what it returns in their order: sums then do not depend on
/// which rank computed them. Every rank calls it, and gets all sums.
ErrorSums sum_over_trajectories(const TrainedModel& trained, const EvaluateOptions& options,
                                int64_t trajectories, const ErrorSums& zeros,
                                const std::function<ErrorSums(int64_t)>& errors_of) {
  Ranks alone;
  Ranks& ranks = options.ranks != nullptr ? *options.ranks : alone;
  const auto size = static_cast<size_t>(ranks.size());
  const size_t width = zeros.front().sums().size();
  ErrorSums all = zeros;
  for (int64_t begin = 0; begin < trajectories; begin += ranks.size()) {
    std::vector<std::vector<double>> sums(size, std::vector<double>(zeros.size() * width));
    if (begin + ranks.rank() < trajectories) {
      std::vector<double>& mine = sums[static_cast<size_t>(ranks.rank())];
      mine.clear();
      for (const TargetErrors& errors : errors_of(begin + ranks.rank())) {
        const std::vector<double> values = errors.sums();
        mine.insert(mine.end(), values.begin(), values.end());
      }
      trained.task.dataset().check_unchanged();
    }
    std::vector<std::span<std::byte>> parts;
    for (std::vector<double>& part : sums) parts.push_back(std::as_writable_bytes(std::span(part)));
    all_gather_bytes(ranks, parts, "evaluation");
    for (const std::vector<double>& part : sums)
      for (size_t i = 0; i < all.size(); ++i) all[i].add_sums(std::span(part).subspan(i * width, width));
  }
  return all;
}

// The places in ErrorSums of dynamics: of one step, of all steps of rollouts, of the horizons.
constexpr size_t kOneStep = 0, kAllSteps = 1, kFirstHorizon = 2;

/// EvaluateOptions::stop.
struct RolloutStopped {};

/// Steps of a trajectory's rollout.
int64_t compared_steps(const MeshTask& task, const TrajectoryView& trajectory,
                       const EvaluateOptions& options) {
  const int64_t steps = rollout_frames(task, trajectory, {});
  return options.steps > 0 ? std::min(options.steps, steps) : steps;
}

ErrorSums dynamics_errors_of(const TrainedModel& trained, const MeshTask& task,
                             const EvaluateOptions& options, RolloutBoundary boundary, int64_t number,
                             const ErrorSums& zeros) {
  ErrorSums errors = zeros;
  const TrajectoryView trajectory = task.dataset.trajectory(options.split, number);
  const std::vector<uint8_t> mask = task.fields.predicted_mask(trajectory.mesh());
  const TargetFields& on_graphs = task.fields.graph_targets;
  const FrameRange range = task.sample_frames(trajectory.frames());
  for (int64_t t = range.first; t < range.end; t += std::max<int64_t>(1, options.stride)) {
    const FieldState state = task.state_at(trajectory, t);
    std::vector<float> graphs;
    errors[kOneStep].nodes.add(predict_next(trained, task, trajectory, t, state, &graphs),
                               task.fields.target_values(trajectory, t + 1), mask, state.current);
    errors[kOneStep].add_graph(graphs, on_graphs.row(trajectory, t + 1), on_graphs.row(trajectory, t));
  }
  const int64_t steps = compared_steps(task, trajectory, options);
  if (steps == 0) return errors;
  const std::vector<float> start = task.fields.target_values(trajectory, range.first);
  const std::vector<float> graph_start = on_graphs.row(trajectory, range.first);
  int64_t step = 0;
  const auto compare = [&](const RolloutFrame& frame) {
    ++step;
    const auto add = [&](TargetErrors& to) {
      to.nodes.add(frame.ours, frame.truth, mask, start);
      to.add_graph(frame.graphs, frame.graph_truth, graph_start);
    };
    add(errors[kAllSteps]);
    if (options.rollout_step) options.rollout_step(number, step, frame.ours, frame.truth);
    for (size_t i = 0; i < options.horizons.size(); ++i)
      if (step <= options.horizons[i] && options.horizons[i] <= steps) add(errors[kFirstHorizon + i]);
  };
  try {
    roll_out(trained, task, trajectory, {.steps = steps, .boundary = boundary},
             [&](const RolloutFrame& frame) {
               if (options.stop && options.stop()) throw RolloutStopped();
               compare(frame);
             });
  } catch (const TooManyWorldEdges& error) {
    if (step == 0) throw;  // of the data
    // The prediction has moved the nodes to one place: what follows is as wrong as a state that is not
    // finite.
    if (options.progress) options.progress(fmt::format("a rollout has diverged: {}", error.what()));
    const std::vector<float> none(start.size(), std::nanf("")), no_graph(graph_start.size(), std::nanf(""));
    while (step < steps) compare({range.first + step + 1, none, none, no_graph, no_graph});
  }
  return errors;
}

/// Checks that there is something to compare.
Evaluation begin_evaluation(const MeshTask& task, const EvaluateOptions& options) {
  const int64_t size = task.dataset.size(options.split);
  task.check_something_to_predict(options.split);
  return {.split = options.split,
          .trajectories = options.trajectories > 0 ? std::min(options.trajectories, size) : size,
          .targets = task.fields.target_names(),
          .fields = {},
          .dynamics = {}};
}

}  // namespace

Evaluation MeshDynamics::evaluate(const TrainedModel& trained, const EvaluateOptions& options) const {
  const MeshTask task = mesh_.for_validation();
  Evaluation result = begin_evaluation(task, options);
  DynamicsErrors& errors = result.dynamics.emplace();
  errors.boundary = options.boundary.value_or(RolloutBoundary::data);
  errors.inputs_from_data = task.fields.given_inputs();
  errors.held_types = task.fields.held_types_of(task.dataset);
  const ErrorSums zeros(kFirstHorizon + options.horizons.size(), TargetErrors(task));
  bool stopped = false;
  const ErrorSums sums =
      sum_over_trajectories(trained, options, result.trajectories, zeros, [&](int64_t number) {
        if (options.progress)
          options.progress(fmt::format("trajectory {} of {}", number + 1, result.trajectories));
        try {
          return dynamics_errors_of(trained, task, options, errors.boundary, number, zeros);
        } catch (const RolloutStopped&) {
          stopped = true;
          return zeros;
        }
      });
  Ranks alone;
  result.stopped = agree(options.ranks != nullptr ? *options.ranks : alone, stopped, "evaluation");
  result.fields = sums[kOneStep].fields();
  result.baseline = baseline_name(task);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < result.trajectories; ++i)
    lengths.push_back(compared_steps(task, task.dataset.trajectory(options.split, i), options));
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const auto rollouts = [&](int64_t steps) {
    return std::count_if(lengths.begin(), lengths.end(), [&](int64_t length) { return length >= steps; });
  };
  for (size_t i = 0; i < options.horizons.size(); ++i) {
    const int64_t steps = options.horizons[i];
    if (steps < longest)
      errors.rollouts.push_back({steps, rollouts(steps), sums[kFirstHorizon + i].fields()});
  }
  std::ranges::sort(errors.rollouts, {}, &RolloutErrors::steps);
  errors.rollouts.push_back({longest, rollouts(longest), sums[kAllSteps].fields()});
  return result;
}

Evaluation SteadyField::evaluate(const TrainedModel& trained, const EvaluateOptions& options) const {
  const MeshTask& task = mesh_;
  Evaluation result = begin_evaluation(task, options);
  const ErrorSums zeros(1, TargetErrors(task));
  const TargetFields& on_graphs = task.fields.graph_targets;
  const std::vector<float> graph_means = on_graphs.means(task.dataset);
  std::optional<NearestCase> nearest;
  if (options.nearest_case) nearest.emplace(task);
  bool stopped = false;
  const ErrorSums sums = sum_over_trajectories(trained, options, result.trajectories, zeros, [&](int64_t i) {
    if (options.progress && i % 100 == 0)
      options.progress(fmt::format("mesh {} of {}", i + 1, result.trajectories));
    stopped = stopped || (options.stop && options.stop());
    ErrorSums errors = zeros;
    if (stopped) return errors;
    const TrajectoryView trajectory = task.dataset.trajectory(options.split, i);
    const std::vector<uint8_t> mask = task.fields.predicted_mask(trajectory.mesh());
    const std::vector<float> mean = task.mean_values(trajectory.mesh());
    for (int64_t t = 0; t < trajectory.frames(); ++t) {
      const FieldState truth = task.state_at(trajectory, t);
      std::vector<float> graphs;
      errors.front().nodes.add(predict_next(trained, task, trajectory, t, truth, &graphs), truth.current,
                               mask, mean, nearest ? nearest->values(trajectory, t) : std::vector<float>());
      errors.front().add_graph(graphs, on_graphs.row(trajectory, t), graph_means);
    }
    return errors;
  });
  Ranks alone;
  result.stopped = agree(options.ranks != nullptr ? *options.ranks : alone, stopped, "evaluation");
  result.fields = sums.front().fields();
  result.baseline = baseline_name(task);
  return result;
}

}  // namespace meshgrad
