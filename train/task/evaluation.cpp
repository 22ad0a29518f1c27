// SPDX-License-Identifier: Apache-2.0
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
        sums.squares += error * error;
        sums.absolute += std::abs(error);
        sums.truth_squares += static_cast<double>(truth[at]) * static_cast<double>(truth[at]);
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

double mean_squared_error(const std::vector<float>& ours, const std::vector<float>& truth,
                          const std::vector<uint8_t>& mask) {
  const size_t width = mask.empty() ? 1 : truth.size() / mask.size();
  double sum = 0.0;
  double count = 0.0;
  for (size_t i = 0; i < truth.size(); ++i) {
    if (mask[i / width] == 0) continue;
    const double error = static_cast<double>(ours[i]) - static_cast<double>(truth[i]);
    sum += error * error;
    count += 1.0;
  }
  return count > 0.0 ? sum / count : std::nan("");
}

namespace {

/// Mean squared errors of frames, over predicted nodes and components; every frame counts the same.
struct SquaredError {
  double sum = 0.0;
  double frames = 0.0;
  void add(const std::vector<float>& ours, const std::vector<float>& truth,
           const std::vector<uint8_t>& mask) {
    const double error = mean_squared_error(ours, truth, mask);
    if (std::isnan(error)) return;
    sum += error;
    frames += 1.0;
  }
  double root_mean() const { return frames > 0.0 ? std::sqrt(sum / frames) : std::nan(""); }
};

std::string common_unit(const std::vector<FieldInfo>& targets) {
  const std::string& unit = targets.front().unit;
  const bool same =
      std::all_of(targets.begin(), targets.end(), [&](const FieldInfo& field) { return field.unit == unit; });
  return same ? unit : std::string();
}

void compare_dynamics(const TrainedModel& trained, const MeshDynamics& task, const EvaluateOptions& options,
                      Evaluation& result) {
  const std::vector<FieldInfo>& targets = task.inputs().targets();
  FieldErrors fields(targets), rollout_fields(targets);
  DynamicsErrors& errors = result.dynamics.emplace();
  errors.unit = common_unit(targets);
  SquaredError one_step, hold;
  const std::map<std::string, int64_t> horizons{{"1", 1}, {"10", 10}, {"50", 50}, {"all", 0}};
  std::map<std::string, SquaredError> rollouts;
  for (const auto& [name, horizon] : horizons) rollouts[name] = {};
  for (int64_t i = 0; i < result.trajectories; ++i) {
    if (options.progress) options.progress(fmt::format("trajectory {} of {}", i + 1, result.trajectories));
    const TrajectoryView trajectory = task.inputs().dataset().trajectory(options.split, i);
    const std::vector<uint8_t> mask = task.inputs().predicted_mask(trajectory.mesh());
    const FrameRange range = task.for_validation().sample_frames(trajectory.frames());
    for (int64_t t = range.first; t < range.end; t += std::max<int64_t>(1, options.stride)) {
      const FieldState state = task.state_at(trajectory, t);
      const std::vector<float> truth = task.inputs().target_values(trajectory, t + 1);
      const std::vector<float> ours = predict_next(trained, task, trajectory, t, state);
      one_step.add(ours, truth, mask);
      fields.add(ours, truth, mask);
      hold.add(state.current, truth, mask);
    }
    int64_t step = 0;
    roll_out(trained, task, trajectory, {.boundary = options.boundary.value_or(RolloutBoundary::data)},
             [&](const RolloutFrame& frame) {
               ++step;
               rollout_fields.add(frame.ours, frame.truth, mask);
               for (const auto& [name, horizon] : horizons) {
                 if (horizon == 0 || step <= horizon) rollouts[name].add(frame.ours, frame.truth, mask);
               }
             });
    errors.rollout_steps = std::max(errors.rollout_steps, step);
  }
  errors.one_step_rmse = one_step.root_mean();
  errors.hold_rmse = hold.root_mean();
  for (const auto& [name, error] : rollouts) errors.rollout_rmse[name] = error.root_mean();
  errors.rollout = rollout_fields.fields();
  result.fields = fields.fields();
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
  }
  result.fields = fields.fields();
}

}  // namespace

Evaluation evaluate(const TrainedModel& trained, const EvaluateOptions& options) {
  Evaluation result{.split = options.split,
                    .trajectories = trained.task.dataset().size(options.split),
                    .targets = trained.task.inputs().target_names()};
  if (const auto* dynamics = trained.task.as<MeshDynamics>())
    compare_dynamics(trained, *dynamics, options, result);
  if (const auto* steady = trained.task.as<SteadyField>()) compare_steady(trained, *steady, options, result);
  return result;
}

}  // namespace meshgrad
