// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/io/host_memory_error.h>
#include <meshgrad/train/run/evaluate.h>
#include <meshgrad/train/run/precision.h>
#include <meshgrad/train/run/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
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

}  // namespace

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

Predictor::Predictor(Runtime& runtime, const std::filesystem::path& checkpoint, const std::string& data_path)
    : runtime_(runtime),
      config_(checkpoint_config(checkpoint)),
      dataset_(Dataset::open(data_path.empty() ? config_.data.path : data_path)),
      features_(std::make_unique<FrameFeatures>(dataset_, config_.data)),
      model_(std::make_unique<MeshGraphNet>(model_options(config_.model, *features_))),
      normalizers_(features_->online_normalizers()) {
  check_precision(runtime.device(), config_.precision);
  model_->allocate(runtime, config_.precision, 0);
  state_ = load_checkpoint(checkpoint, runtime.stream(), model_->parameters(), nullptr, normalizers_);
}

std::vector<float> Predictor::predict(const TrajectoryView& trajectory, int64_t t,
                                      const FieldState& state) const {
  const Batch batch =
      features_->prediction_batch(runtime_, config_.precision, trajectory, t, state, normalizers_);
  Tape tape(runtime_, Tape::Mode::evaluate);
  const Tensor prediction = to_host(model_->forward(tape, batch).value(), runtime_.stream());
  return features_->advance(trajectory, state, prediction, normalizers_);
}

void roll_out(
    const Predictor& predictor, const TrajectoryView& trajectory, int64_t steps, RolloutBoundary boundary,
    const std::function<void(int64_t, const std::vector<float>&, const std::vector<float>&)>& one_frame) {
  const FrameFeatures& features = predictor.features();
  const FrameRange range = usable_frames(predictor.config().data.predict, trajectory.frames());
  const std::vector<uint8_t> mask = features.predicted_mask(trajectory.mesh());
  const auto width = static_cast<size_t>(features.outputs());
  const int64_t end = steps > 0 ? std::min(range.end, range.first + steps) : range.end;
  FieldState state = range.end > range.first ? features.state_at(trajectory, range.first) : FieldState{};
  for (int64_t t = range.first; t < end; ++t) {
    std::vector<float> next = predictor.predict(trajectory, t, state);
    const std::vector<float> truth = features.target_values(trajectory, t + 1);
    if (boundary == RolloutBoundary::data) {
      for (size_t i = 0; i < next.size(); ++i) {
        if (mask[i / width] == 0) next[i] = truth[i];
      }
    }
    one_frame(t + 1, next, truth);
    if (!state.previous.empty()) state.previous = std::move(state.current);
    state.current = std::move(next);
  }
}

namespace {

Evaluation errors_of(const Predictor& predictor, const EvaluateOptions& options) {
  const FrameFeatures& features = predictor.features();
  const Dataset& dataset = predictor.dataset();
  Evaluation result;
  result.split = options.split;
  result.trajectories = dataset.size(options.split);
  result.step = predictor.step();
  result.fields = features.target_names();
  result.unit = features.targets().front().unit;
  for (const FieldInfo& field : features.targets()) {
    if (field.unit != result.unit) result.unit.clear();
  }
  SquaredError one_step, hold;
  const std::map<std::string, int64_t> horizons{{"1", 1}, {"10", 10}, {"50", 50}, {"all", 0}};
  std::map<std::string, SquaredError> rollouts;
  for (const auto& [name, horizon] : horizons) rollouts[name] = {};
  for (int64_t i = 0; i < result.trajectories; ++i) {
    if (options.progress) options.progress(fmt::format("trajectory {} of {}", i + 1, result.trajectories));
    const TrajectoryView trajectory = dataset.trajectory(options.split, i);
    const std::vector<uint8_t> mask = features.predicted_mask(trajectory.mesh());
    const FrameRange range = usable_frames(predictor.config().data.predict, trajectory.frames());
    for (int64_t t = range.first; t < range.end; t += std::max<int64_t>(1, options.stride)) {
      const FieldState state = features.state_at(trajectory, t);
      const std::vector<float> truth = features.target_values(trajectory, t + 1);
      one_step.add(predictor.predict(trajectory, t, state), truth, mask);
      hold.add(state.current, truth, mask);
    }
    int64_t step = 0;
    roll_out(predictor, trajectory, 0, options.boundary.value_or(predictor.config().rollout.boundary),
             [&](int64_t, const std::vector<float>& ours, const std::vector<float>& truth) {
               ++step;
               for (const auto& [name, horizon] : horizons) {
                 if (horizon == 0 || step <= horizon) rollouts[name].add(ours, truth, mask);
               }
             });
    result.rollout_steps = std::max(result.rollout_steps, step);
  }
  result.one_step_rmse = one_step.root_mean();
  result.hold_rmse = hold.root_mean();
  for (const auto& [name, error] : rollouts) result.rollout_rmse[name] = error.root_mean();
  return result;
}

}  // namespace

Evaluation evaluate(const Predictor& predictor, const EvaluateOptions& options) {
  return with_host_memory_named(predictor.dataset().path(), !predictor.runtime().stream().on_gpu(),
                                "to evaluate", [&] { return errors_of(predictor, options); });
}

}  // namespace meshgrad
