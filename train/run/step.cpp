// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/run/step.h>
#include <meshgrad/train/task/unrolled_loss.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

namespace meshgrad {

void run_batch(Runtime& runtime, const MeshGraphNet& model, const Optimizer& optimizer, const Batch& batch,
               const Tensor& window_weight, const Recomputation& recomputation, OffloadStore* store) {
  Tape tape(runtime);
  if (store != nullptr) tape.offload(*store);
  if (recomputation.check) tape.check_recomputation();
  const Variable loss = batch_loss(tape, model, batch, recomputation);
  tape.backward(loss, optimizer.note_loss(runtime, loss.value(), window_weight));
}

std::unique_ptr<OffloadStore> make_offload_store(const Runtime& runtime, const Config& config,
                                                 const Recomputation& recomputation) {
  if (recomputation.offload == OffloadTo::none || !has_segments(recomputation, config.unroll.steps))
    return nullptr;
  if (runtime.dry()) return make_counting_store();
  if (recomputation.offload == OffloadTo::host) return make_host_store(runtime.device());
  const bool named = !config.recompute.offload_dir.empty();
  std::filesystem::path folder = named ? config.recompute.offload_dir : config.run.dir;
  // A plan that is measured comes before the run's folder.
  while (!named && folder.has_parent_path() && !std::filesystem::exists(folder))
    folder = folder.parent_path();
  if (!named && !std::filesystem::exists(folder)) folder = ".";
  return make_file_store(folder, recomputation.offloaded, "recompute.offload_dir");
}

int BatchClasses::class_of(const BatchSizes& batch) const {
  int number = 0;
  const auto holds = [&](int candidate) {
    const BatchSizes most = capacity(candidate);
    return batch.nodes <= most.nodes && batch.edges <= most.edges;
  };
  while (number + 1 < kClasses && holds(number + 1)) ++number;
  return number;
}

BatchSizes BatchClasses::capacity(int number) const {
  const auto part = [number](int64_t whole) { return ((whole - 1) >> number) + 1; };
  BatchSizes sizes = largest_;
  sizes.nodes = part(sizes.nodes);
  sizes.edges = part(sizes.edges);
  return sizes;
}

BatchSizes largest_batch(const Config& config, const Dataset& dataset, const FrameFeatures& features) {
  const Dataset::MeshSizes mesh = dataset.largest_mesh(config.data.train_split);
  return {.nodes = std::max<int64_t>(1, config.train.batch * mesh.nodes),
          .edges = std::max<int64_t>(1, config.train.batch * mesh.edges),
          .node_inputs = features.node_inputs(),
          .edge_inputs = features.edge_inputs(),
          .outputs = features.outputs(),
          .steps = config.unroll.steps,
          .second_change = config.data.predict == Prediction::second_change};
}

namespace {

/// Putting a batch together takes longer than a GPU takes for it: several at once.
size_t batches_ahead(Runtime& runtime) {
  constexpr int kMostAhead = 8;
  if (!runtime.stream().on_gpu()) return 0;  // the CPU has no time to spare
  return static_cast<size_t>(std::clamp(runtime.threads().threads() - 1, 1, kMostAhead));
}

}  // namespace

TrainStep::TrainStep(Runtime& runtime, const Config& config, const Dataset& dataset,
                     const FrameFeatures& features, const MeshGraphNet& model, const Optimizer& optimizer,
                     Note note, size_t most_captured)
    : runtime_(runtime),
      config_(config),
      features_(features),
      model_(model),
      optimizer_(optimizer),
      recomputation_(choose_recomputation(runtime, config, largest_batch(config, dataset, features), model)),
      store_(make_offload_store(runtime, config, recomputation_)),
      note_(std::move(note)),
      most_captured_(most_captured),
      ahead_(batches_ahead(runtime)),
      uploader_(runtime, ahead_ + 2,
                BatchMemory(largest_batch(config, dataset, features), config.precision,
                            BatchMemory::Sizes::capacity)
                    .bytes()),
      classes_(largest_batch(config, dataset, features)) {
  if (const std::string text = describe(recomputation_, model, config.unroll.steps); !text.empty()) {
    note_(text);
  } else if (config.recompute.mode != RecomputeMode::off) {
    note_("the backward pass computes nothing again: recompute.* leaves nothing to, or memory is enough");
  }
  if (config.recompute.offload != recomputation_.offload) {
    note_(
        "recompute.offload = \"host\" moves nothing on the CPU: values are in the host's memory already; "
        "\"file\" does");
  }
  if (config.graphs != GraphsMode::capture) return;
  if (!runtime.stream().on_gpu()) {
    note_("graphs = \"capture\" needs a GPU: kernels run one by one");
    return;
  }
  captured_update_ = std::make_unique<CapturedWork>(runtime, "optimizer step",
                                                    [this](Runtime& own) { optimizer_.step(own); });
}

TrainStep::Staged TrainStep::stage(const std::vector<Sample>& samples, bool observe) {
  const BatchSizes sizes = features_.training_sizes(config_.data.train_split, samples, config_.unroll.steps);
  const int number = captured_update_ != nullptr && !observe ? classes_.class_of(sizes) : -1;
  const BatchMemory memory =
      number < 0 ? BatchMemory(sizes, config_.precision, BatchMemory::Sizes::exact)
                 : BatchMemory(classes_.capacity(number), config_.precision, BatchMemory::Sizes::capacity);
  return {{}, number, memory, uploader_.stage(memory.bytes()), {}};
}

void TrainStep::write(const Staged& staged, const std::vector<Sample>& samples, const Window& window,
                      Normalizers& normalizers, SampleScratch& scratch) const {
  features_.write_training_batch(staged.memory.batch(staged.host), config_.data.train_split, samples,
                                 window.noise, normalizers, window.learn, scratch);
  *staged.memory.window_weight(staged.host).data<double>() = window.weight;
}

void TrainStep::expect(const std::vector<Sample>& samples, const Window& window, Normalizers& normalizers) {
  check_internal(!window.learn && !window.observe && expected_.size() <= ahead_, "a batch not to expect");
  Staged& staged = expected_.emplace_back(stage(samples, false));
  staged.samples = samples;
  staged.written = std::async(std::launch::async, [this, &staged, window, &normalizers] {
    SampleScratch scratch;
    write(staged, staged.samples, window, normalizers, scratch);
  });
}

TrainStep::Staged TrainStep::take(const std::vector<Sample>& samples, const Window& window,
                                  Normalizers& normalizers) {
  if (expected_.empty()) {
    Staged staged = stage(samples, window.observe);
    write(staged, samples, window, normalizers, scratch_);
    return staged;
  }
  check_internal(expected_.front().samples == samples, "another batch than the expected one");
  expected_.front().written.get();
  Staged staged = std::move(expected_.front());
  expected_.pop_front();
  return staged;
}

void TrainStep::batch(const std::vector<Sample>& samples, const Window& window, Normalizers& normalizers) {
  const auto begin = std::chrono::steady_clock::now();
  const Staged staged = take(samples, window, normalizers);
  data_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (window.observe) return;
  const int64_t bytes = staged.memory.bytes();
  if (staged.number >= 0) {
    Captured& captured = captured_for(staged.number);
    uploader_.upload(staged.host, bytes, captured.piece);
    run(captured);
  } else {
    const StoragePtr piece = uploader_.upload(staged.host, bytes);
    const auto work = [&] {
      run_batch(runtime_, model_, optimizer_, staged.memory.batch(piece), staged.memory.window_weight(piece),
                recomputation_, store_.get());
    };
    StepPlan* const plan = config_.memory.plan_steps ? plan_for(staged.memory.sizes()) : nullptr;
    if (plan == nullptr) return work();
    PlannedStep step(runtime_.allocator(), *plan, runtime_.stream());
    work();
    step.done();
  }
}

/// A recording gives memory back and waits for the device, so sizes that may never come again get none.
StepPlan* TrainStep::plan_for(const BatchSizes& sizes) {
  const auto of_sizes = [&](const auto& plan) { return plan.first == sizes; };
  const auto planned = std::find_if(plans_.begin(), plans_.end(), of_sizes);
  if (planned != plans_.end()) return &planned->second;
  if (plans_.size() >= kMostPlans) return nullptr;
  const auto seen = std::find(seen_once_.begin(), seen_once_.end(), sizes);
  if (seen == seen_once_.end()) {
    if (seen_once_.size() >= kMostPlans) seen_once_.pop_front();
    seen_once_.push_back(sizes);
    return nullptr;
  }
  seen_once_.erase(seen);
  return &plans_.emplace_back(sizes, StepPlan()).second;
}

TrainStep::Captured& TrainStep::captured_for(int number) {
  const auto known = std::find_if(captured_.begin(), captured_.end(),
                                  [&](const Captured& captured) { return captured.number == number; });
  if (known != captured_.end()) {
    captured_.splice(captured_.begin(), captured_, known);
    return captured_.front();
  }
  while (captured_.size() >= most_captured_) {
    // A replay may still copy from and to the store's memory.
    if (captured_.back().store != nullptr) runtime_.stream().synchronize();
    captured_.pop_back();
  }
  const BatchMemory memory(classes_.capacity(number), config_.precision, BatchMemory::Sizes::capacity);
  Captured& captured = captured_.emplace_front(Captured{number, memory, {}, {}, nullptr, nullptr});
  captured.piece = device_batch_memory(runtime_, memory.bytes());
  captured.batch = memory.batch(captured.piece);
  captured.store = make_offload_store(runtime_, config_, recomputation_);
  captured.work = std::make_unique<CapturedWork>(runtime_, "captured step", [this, &captured](Runtime& own) {
    run_batch(own, model_, optimizer_, captured.batch, captured.memory.window_weight(captured.piece),
              recomputation_, captured.store.get());
  });
  return captured;
}

void TrainStep::run(Captured& captured) {
  captured.work->run();
  if (captured.told) return;
  if (!captured.work->refusal().empty()) {
    captured.told = true;
    note_("a step cannot be captured, its kernels run one by one: " + captured.work->refusal());
  }
  if (!captured.work->recorded()) return;
  captured.told = true;
  const BatchSizes& most = captured.memory.sizes();
  note_(fmt::format("captured the step of batches of up to {} nodes and {} edges, which keeps {:.1f} MiB",
                    most.nodes, most.edges, mebibytes(captured.work->bytes() + captured.memory.bytes())));
}

int64_t TrainStep::offloaded_bytes() const {
  int64_t bytes = store_ != nullptr ? store_->peak_bytes() : 0;
  for (const Captured& captured : captured_)
    bytes += captured.store != nullptr ? captured.store->peak_bytes() : 0;
  return bytes;
}

void TrainStep::finish_window() {
  if (captured_update_ != nullptr) {
    captured_update_->run();
  } else {
    optimizer_.step(runtime_);
  }
}

}  // namespace meshgrad
