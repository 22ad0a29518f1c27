// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/span.h>
#include <meshgrad/train/learn/run/step_cache.h>
#include <meshgrad/train/learn/task/largest_batch.h>
#include <meshgrad/train/learn/task/upload.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {

void run_batch(Runtime& runtime, const BatchLoss& batch_loss, const Model& model, const Optimizer& optimizer,
               const Batch& batch, const Recomputation& recomputation, OffloadStore* store,
               const GradientsReady& ready, const std::function<void()>& check_op) {
  Tape tape(runtime, Tape::Mode::train);
  if (check_op) tape.check_each_op(check_op);
  if (ready) tape.on_weight_gradients(ready);
  if (store != nullptr) tape.offload(*store);
  if (recomputation.check) tape.check_recomputation();
  const LossTerms loss = [&] {
    const Span span("forward");
    return batch_loss(tape, model, batch, recomputation);
  }();
  tape.backward(loss.sum, optimizer.note_loss(runtime, loss, batch.tensor(kWindowWeight)));
}

std::unique_ptr<OffloadStore> make_offload_store(const Runtime& runtime, const Config& config,
                                                 const Recomputation& recomputation) {
  if (recomputation.offload == OffloadTo::none || !has_segments(recomputation, config.unroll.steps))
    return nullptr;
  if (runtime.dry()) return make_counting_store();
  if (recomputation.offload == OffloadTo::host) return make_host_store(runtime.device());
  const bool named = !config.recompute.offload_dir.empty();
  std::filesystem::path folder = named ? config.recompute.offload_dir : config.run.dir;
  // A plan is measured before the run's folder exists.
  while (!named && folder.has_parent_path() && !std::filesystem::exists(folder))
    folder = folder.parent_path();
  if (!named && !std::filesystem::exists(folder)) folder = ".";
  return make_file_store(folder, recomputation.offloaded_bytes, "recompute.offload_dir");
}

int BatchClasses::class_of(const BatchShape& batch) const {
  check_internal(largest_.holds(batch), "a batch within the largest of its configuration");
  int number = 0;
  while (number + 1 < kClasses && capacity(number + 1).holds(batch)) ++number;
  return number;
}

BatchShape BatchClasses::capacity(int number) const {
  const auto part = [number](int64_t whole) { return ((whole - 1) >> number) + 1; };
  return {.nodes = part(largest_.nodes),
          .edges = part(largest_.edges),
          .world_edges = largest_.world_edges == 0 ? 0 : part(largest_.world_edges),
          .graphs = largest_.graphs};
}

StepCache::StepCache(Runtime& runtime, const Config& config, const Task& task, const Model& model,
                     const Optimizer& optimizer, Recomputation recomputation, Tell tell)
    : runtime_(runtime),
      config_(config),
      task_(task),
      model_(model),
      optimizer_(optimizer),
      recomputation_(std::move(recomputation)),
      store_(make_offload_store(runtime, config, recomputation_)),
      tell_(tell ? std::move(tell) : [](auto&&...) {}),
      classes_(largest_batch(config, task)) {
  if (config.graphs != GraphsMode::capture) return;
  if (!runtime.stream().on_gpu()) {
    tell_(RunEventKind::not_captured, "graphs = \"capture\" needs a GPU: kernels run one by one",
          {{"reason", "cpu"}});
    return;
  }
  captured_update_ = std::make_unique<CapturedWork>(runtime, "optimizer step",
                                                    [this](Runtime& own) { optimizer_.step(own); });
}

BatchLayout StepCache::layout(const BatchShape& shape) const {
  BatchLayout layout = captures() ? task_.layout(classes_.capacity(classes_.class_of(shape)),
                                                 config_.precision, BatchLayout::Sizes::capacity)
                                  : task_.layout(shape, config_.precision, BatchLayout::Sizes::exact);
  if (runtime_.stream().on_gpu() && shape.ghosts == 0) task_.add_device_inputs(layout);
  return layout;
}

void StepCache::run(const BatchLayout& layout, const Upload& upload, const GradientsReady& ready) {
  if (captures()) {
    Captured& captured = captured_for(classes_.class_of(layout.shape()));
    upload(captured.memory);
    const Span span("captured step");
    captured.work->run();
    tell_outcome(captured);
    return;
  }
  const StoragePtr memory = upload(nullptr);
  const auto work = [&] {
    run_batch(runtime_, task_.batch_loss(), model_, optimizer_,
              layout.batch(memory, !runtime_.dry() || runtime_.stream().on_gpu()), recomputation_,
              store_.get(), ready, check_op_);
  };
  StepPlan* const plan = config_.memory.plan_steps ? plan_for(layout.shape()) : nullptr;
  if (plan == nullptr) return work();
  PlannedStep step(runtime_.allocator(), *plan, runtime_.stream());
  work();
  step.done();
}

/// A recording releases cached memory and waits for the device, so it is made when sizes occur again.
StepPlan* StepCache::plan_for(const BatchShape& shape) {
  const auto of_shape = [&](const auto& plan) { return plan.first == shape; };
  const auto planned = std::find_if(plans_.begin(), plans_.end(), of_shape);
  if (planned != plans_.end()) return &planned->second;
  if (plans_.size() >= kMostPlans) return nullptr;
  const auto seen = std::find(seen_once_.begin(), seen_once_.end(), shape);
  if (seen == seen_once_.end()) {
    if (seen_once_.size() >= kMostPlans) seen_once_.pop_front();
    seen_once_.push_back(shape);
    return nullptr;
  }
  seen_once_.erase(seen);
  return &plans_.emplace_back(shape, StepPlan()).second;
}

StepCache::Captured& StepCache::captured_for(int number) {
  const auto known = std::find_if(captured_.begin(), captured_.end(),
                                  [&](const Captured& captured) { return captured.number == number; });
  if (known != captured_.end()) return *known;
  Captured& captured =
      captured_.emplace_front(Captured{number, layout(classes_.capacity(number)), {}, {}, nullptr, nullptr});
  captured.memory = device_batch_memory(runtime_, captured.layout.bytes());
  captured.batch = captured.layout.batch(captured.memory);
  captured.store = make_offload_store(runtime_, config_, recomputation_);
  captured.work = std::make_unique<CapturedWork>(runtime_, "captured step", [this, &captured](Runtime& own) {
    run_batch(own, task_.batch_loss(), model_, optimizer_, captured.batch, recomputation_,
              captured.store.get());
  });
  return captured;
}

void StepCache::tell_outcome(Captured& captured) {
  if (captured.told) return;
  if (!captured.work->refusal().empty()) {
    captured.told = true;
    tell_(RunEventKind::not_captured,
          "a step cannot be captured, its kernels run one by one: " + captured.work->refusal(),
          {{"reason", captured.work->refusal()}});
  }
  if (!captured.work->recorded()) return;
  captured.told = true;
  const BatchShape& most = captured.layout.shape();
  const auto bytes = static_cast<int64_t>(captured.work->bytes() + captured.layout.bytes());
  tell_(RunEventKind::captured,
        fmt::format("captured the step of batches of up to {} nodes and {} edges, which holds {:.1f} MiB",
                    most.nodes, most.edges, mebibytes(bytes)),
        {{"nodes", most.nodes}, {"edges", most.edges}, {"bytes", bytes}});
}

int64_t StepCache::offloaded_bytes() const {
  int64_t bytes = store_ != nullptr ? store_->peak_bytes() : 0;
  for (const Captured& captured : captured_)
    bytes += captured.store != nullptr ? captured.store->peak_bytes() : 0;
  return bytes;
}

void StepCache::update() {
  const Span span("optimizer");
  if (captured_update_ != nullptr) {
    captured_update_->run();
  } else {
    optimizer_.step(runtime_);
  }
}

}  // namespace meshgrad
