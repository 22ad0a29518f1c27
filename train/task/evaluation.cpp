// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/task/evaluation.h>
#include <meshgrad/train/task/rollout.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {

FieldErrors::FieldErrors(const std::vector<FieldInfo>& targets) : targets_(targets), sums_(targets.size()) {}

void FieldErrors::add(const std::vector<float>& ours, const std::vector<float>& truth,
                      const std::vector<uint8_t>& mask) {
  const size_t width = mask.empty() ? 1 : truth.size() / mask.size();
  for (size_t node = 0; node < mask.size(); ++node) {
    if (mask[node] == 0) continue;
    size_t at = node * width;
    for (size_t field = 0; field < targets_.size(); ++field) {
      Sums& sums = sums_[field];
      for (int c = 0; c < targets_[field].components; ++c, ++at) {
        const double error = static_cast<double>(ours[at]) - static_cast<double>(truth[at]);
        const double value =
            static_cast<double>(truth[at]) + targets_[field].offset_of(static_cast<size_t>(c));
        sums.squares += error * error;
        sums.absolute += std::abs(error);
        sums.truth_squares += value * value;
        sums.count += 1.0;
      }
    }
  }
}

std::vector<FieldError> FieldErrors::fields() const {
  std::vector<FieldError> fields;
  for (size_t i = 0; i < targets_.size(); ++i) {
    const Sums& sums = sums_[i];
    const double none = std::nan("");
    fields.push_back({targets_[i].name, targets_[i].unit,
                      sums.count > 0.0 ? std::sqrt(sums.squares / sums.count) : none,
                      sums.count > 0.0 ? sums.absolute / sums.count : none,
                      sums.truth_squares > 0.0 ? std::sqrt(sums.squares / sums.truth_squares) : none});
  }
  return fields;
}

namespace {

constexpr int64_t kHorizons[] = {1, 10, 50};

/// Errors over the steps of rollouts, as they come.
class RolloutSums {
 public:
  explicit RolloutSums(const std::vector<FieldInfo>& targets)
      : all_(targets), horizons_(std::size(kHorizons), all_) {}

  void begin(int64_t steps) {
    lengths_.push_back(steps);
    step_ = 0;
  }
  void add(const RolloutFrame& frame, const std::vector<uint8_t>& mask) {
    ++step_;
    all_.add(frame.ours, frame.truth, mask);
    for (size_t i = 0; i < horizons_.size(); ++i) {
      if (step_ <= kHorizons[i] && kHorizons[i] <= lengths_.back())
        horizons_[i].add(frame.ours, frame.truth, mask);
    }
  }
  std::vector<RolloutErrors> errors() const {
    std::vector<RolloutErrors> errors;
    const int64_t longest = *std::max_element(lengths_.begin(), lengths_.end());
    const auto rollouts = [&](int64_t steps) {
      return std::count_if(lengths_.begin(), lengths_.end(), [&](int64_t length) { return length >= steps; });
    };
    for (size_t i = 0; i < horizons_.size(); ++i) {
      if (kHorizons[i] < longest)
        errors.push_back({kHorizons[i], rollouts(kHorizons[i]), horizons_[i].fields()});
    }
    errors.push_back({longest, rollouts(longest), all_.fields()});
    return errors;
  }

 private:
  FieldErrors all_;
  std::vector<FieldErrors> horizons_;
  std::vector<int64_t> lengths_;
  int64_t step_ = 0;
};

void compare_dynamics(const TrainedModel& trained, const MeshDynamics& task, const EvaluateOptions& options,
                      Evaluation& result) {
  const std::vector<FieldInfo>& targets = task.inputs().targets();
  FieldErrors fields(targets), no_change(targets);
  RolloutSums rollouts(targets);
  DynamicsErrors& errors = result.dynamics.emplace();
  errors.boundary = options.boundary.value_or(RolloutBoundary::data);
  errors.inputs_from_data = given_inputs(task.inputs());
  for (int64_t i = 0; i < result.trajectories; ++i) {
    if (options.progress) options.progress(fmt::format("trajectory {} of {}", i + 1, result.trajectories));
    const TrajectoryView trajectory = task.inputs().dataset().trajectory(options.split, i);
    const std::vector<uint8_t> mask = task.inputs().predicted_mask(trajectory.mesh());
    const FrameRange range = task.for_validation().sample_frames(trajectory.frames());
    for (int64_t t = range.first; t < range.end; t += std::max<int64_t>(1, options.stride)) {
      const FieldState state = task.state_at(trajectory, t);
      const std::vector<float> truth = task.inputs().target_values(trajectory, t + 1);
      fields.add(predict_next(trained, task, trajectory, t, state), truth, mask);
      no_change.add(state.current, truth, mask);
    }
    rollouts.begin(rollout_frames(task, trajectory, {}));
    roll_out(trained, task, trajectory, {.boundary = errors.boundary},
             [&](const RolloutFrame& frame) { rollouts.add(frame, mask); });
    task.inputs().dataset().check_unchanged();
  }
  result.fields = fields.fields();
  errors.no_change = no_change.fields();
  errors.rollouts = rollouts.errors();
}

void compare_steady(const TrainedModel& trained, const SteadyField& task, const EvaluateOptions& options,
                    Evaluation& result) {
  FieldErrors fields(task.inputs().targets());
  for (int64_t i = 0; i < result.trajectories; ++i) {
    if (options.progress && i % 100 == 0)
      options.progress(fmt::format("mesh {} of {}", i + 1, result.trajectories));
    const TrajectoryView trajectory = task.inputs().dataset().trajectory(options.split, i);
    const std::vector<uint8_t> mask = task.inputs().predicted_mask(trajectory.mesh());
    for (int64_t t = 0; t < trajectory.frames(); ++t)
      fields.add(predict_steady(trained, task, trajectory, t), task.inputs().target_values(trajectory, t),
                 mask);
    task.inputs().dataset().check_unchanged();
  }
  result.fields = fields.fields();
}

}  // namespace

void check_something_to_predict(const Task& task, const std::string& split,
                                std::optional<int64_t> trajectory) {
  const std::string where =
      trajectory ? fmt::format("trajectory {} of split {}", *trajectory, split) : "split " + split;
  const int64_t first = trajectory.value_or(0);
  const int64_t end = trajectory ? first + 1 : task.dataset().size(split);
  int64_t nodes = 0, frames = 0;
  for (int64_t i = first; i < end; ++i) {
    const TrajectoryView view = task.dataset().trajectory(split, i);
    const int64_t predicted = task.inputs().predicted_nodes(view.mesh());
    nodes += predicted;
    if (predicted > 0) frames += task.for_validation().sample_frames(view.frames()).size();
  }
  if (nodes == 0) {
    throw config_error(
        "data.predicted_types", "types that nodes of " + where + " have",
        fmt::format("[{}]", fmt::join(task.inputs().config().predicted_types, ", ")),
        "choose another --split or --data; see meshgrad info " + task.dataset().path().string());
  }
  if (frames == 0) {
    throw config_error("--split", fmt::format("at least {} frames", task.for_validation().least_frames()),
                       "fewer in " + where, "choose another --split or --data");
  }
}

std::vector<std::string> given_inputs(const MeshInputs& inputs) {
  std::vector<std::string> names;
  for (const MeshInputs::Input& input : inputs.inputs()) {
    if (input.field.dynamic && input.target_column < 0) names.push_back(input.field.name);
  }
  return names;
}

std::vector<std::string> fields_worse_than(const std::vector<FieldError>& ours,
                                           const std::vector<FieldError>& reference) {
  std::vector<std::string> names;
  for (size_t i = 0; i < ours.size(); ++i) {
    if (!(ours[i].rmse <= reference[i].rmse)) names.push_back(ours[i].name);
  }
  return names;
}

Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options) {
  Evaluation result{.split = options.split,
                    .trajectories = trained.task.dataset().size(options.split),
                    .targets = trained.task.inputs().target_names()};
  check_something_to_predict(trained.task, options.split);
  if (const auto* dynamics = trained.task.as<MeshDynamics>())
    compare_dynamics(trained, *dynamics, options, result);
  if (const auto* steady = trained.task.as<SteadyField>()) compare_steady(trained, *steady, options, result);
  return result;
}

}  // namespace meshgrad
