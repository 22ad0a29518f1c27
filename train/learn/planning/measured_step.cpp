// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/planning/measured_step.h>
#include <meshgrad/train/learn/task/largest_batch.h>

#include <algorithm>
#include <chrono>
#include <limits>

namespace meshgrad {
namespace {

RuntimeOptions measuring_options(const Config& config, Device device) {
  RuntimeOptions options = dry_options(config, device);
  options.dry = false;
  options.allocator = config.memory;
  options.allocator.history = 0;
  return options;
}

struct TimeIsOver {};

}  // namespace

MeasuredStep::MeasuredStep(const StepProbe& probe, const Config& config)
    : config_(config),
      step_(measuring_options(config, probe.device()), config, probe.dataset()),
      samples_(largest_samples(config, step_.task)),
      normalizers_(step_.task.online_normalizers()),
      layout_(step_.steps.layout(step_.task.shape(config.data.train_split, samples_))),
      uploader_(step_.runtime, 2, layout_.bytes()) {}

void MeasuredStep::run() {
  const StoragePtr staged = uploader_.stage(layout_.bytes());
  const Batch batch = layout_.batch(staged);
  step_.task.write(batch, config_.data.train_split, samples_, {}, normalizers_, false, scratch_);
  *batch.tensor(kWindowWeight).data<double>() = static_cast<double>(samples_.size());
  step_.steps.run(layout_,
                  [&](const StoragePtr& to) { return uploader_.upload(staged, layout_.bytes(), to); });
  step_.steps.update();
  step_.runtime.stream().synchronize();
}

double MeasuredStep::seconds(int steps, double limit) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const Clock::time_point begin = Clock::now();
  if (!step_.runtime.stream().on_gpu()) {
    step_.steps.check_each_op([&] {
      if (since(begin) > limit) throw TimeIsOver();
    });
  }
  std::vector<double> each;
  try {
    for (int i = 0; i <= steps; ++i) {
      const Clock::time_point start = Clock::now();
      run();
      each.push_back(since(start));
      if (since(begin) > limit) break;
    }
  } catch (const TimeIsOver&) {
    if (each.empty()) return std::numeric_limits<double>::infinity();
  }
  step_.steps.check_each_op({});
  if (each.size() > 1) each.erase(each.begin());  // it plans, and touches its memory first
  const auto middle = each.begin() + static_cast<std::ptrdiff_t>(each.size() / 2);
  std::nth_element(each.begin(), middle, each.end());
  return *middle * static_cast<double>(config_.train.accumulate);
}

}  // namespace meshgrad
