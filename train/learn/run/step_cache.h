// SPDX-License-Identifier: Apache-2.0
// StepCache: how a batch is computed on the device: plainly, at offsets that were planned in an earlier step
// of the same sizes, or as a captured graph. Only queues work: nothing here waits for a result. Training and
// the planning of memory run steps through it, so that both take the same memory.
//
// With graphs = "capture" the work is recorded once for each of a few classes of batch sizes and replayed for
// every batch of the class, since kernels read the real sizes on the device. With memory.plan_steps, the
// second batch of a size records its allocations, and later ones reuse their offsets.
#pragma once
#include <meshgrad/autograd/offload/offload_store.h>
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/engine/memory/step_plan.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/run/run_event.h>
#include <meshgrad/train/learn/task/task.h>

#include <deque>
#include <functional>
#include <list>

namespace meshgrad {

/// Told in the backward pass from which element on the gradients' arena is final.
using GradientsReady = std::function<void(int64_t first)>;

/// Classes of batch sizes: the largest batch's sizes halved up to five times, but for its number of graphs,
/// which small meshes have as well as large ones. A function of configuration and data alone, because sums
/// may depend on capacities in their last bits.
class BatchClasses {
 public:
  static constexpr int kClasses = 6;
  explicit BatchClasses(const BatchShape& largest) : largest_(largest) {}
  /// The number of the smallest class that holds a batch.
  int class_of(const BatchShape& batch) const;
  BatchShape capacity(int number) const;

 private:
  BatchShape largest_;
};

class StepCache {
 public:
  using Tell = std::function<void(RunEventKind, std::string text, RunEvent::Fields)>;
  /// Moves a batch to the device: into `to`, or into new memory where that is null. Returns where it is.
  using Upload = std::function<StoragePtr(const StoragePtr& to)>;

  /// All references outlive it. `tell` gets captured and not_captured; none: they are dropped.
  StepCache(Runtime& runtime, const Config& config, const Task& task, const Model& model,
            const Optimizer& optimizer, Recomputation recomputation, Tell tell = {});

  const Recomputation& recomputation() const { return recomputation_; }
  const BatchClasses& classes() const { return classes_; }
  bool captures() const { return captured_update_ != nullptr; }
  /// The layout in which a batch of these sizes is computed: its own, or its class's capacity when captured.
  BatchLayout layout(const BatchShape& shape) const;
  /// Forward, loss and backward of a batch: adds its gradients, and its loss to the window's. `ready`: see
  /// Tape::on_weight_gradients; a captured step does not call it.
  void run(const BatchLayout& layout, const Upload& upload, const GradientsReady& ready = {});
  /// From the next batch on, of all that are not captured: Tape::check_each_op. Empty: no check.
  void check_each_op(std::function<void()> check) { check_op_ = std::move(check); }
  /// The optimizer's step at the end of a window.
  void update();
  /// Bytes offloaded from the device's memory at once, at most.
  int64_t offloaded_bytes() const;

 private:
  /// The step of one class of batches.
  struct Captured {
    int number = 0;
    BatchLayout layout;
    StoragePtr memory;  // of the batch, on the device
    Batch batch;
    std::unique_ptr<OffloadStore> store;  // its own, since the recording holds its addresses
    std::unique_ptr<CapturedWork> work;
    bool told = false;
  };
  Captured& captured_for(int number);
  StepPlan* plan_for(const BatchShape& shape);
  void tell_outcome(Captured& captured);

  Runtime& runtime_;
  const Config& config_;
  const Task& task_;
  const Model& model_;
  const Optimizer& optimizer_;
  Recomputation recomputation_;
  std::unique_ptr<OffloadStore> store_;
  Tell tell_;
  std::function<void()> check_op_;
  BatchClasses classes_;
  std::list<Captured> captured_;  // at most one of each class
  std::unique_ptr<CapturedWork> captured_update_;
  static constexpr size_t kMostPlans = 16;
  std::list<std::pair<BatchShape, StepPlan>> plans_;
  std::deque<BatchShape> seen_once_;  // most recent last
};

/// Forward, loss and backward of a batch, in the memory of `runtime`. The batch carries the window's weight.
void run_batch(Runtime& runtime, const BatchLoss& loss, const Model& model, const Optimizer& optimizer,
               const Batch& batch, const Recomputation& recomputation = {}, OffloadStore* store = nullptr,
               const GradientsReady& ready = {}, const std::function<void()>& check_op = {});

/// The store for offloaded inputs of segments, as `recomputation` says; null when nothing is offloaded.
/// Throws ConfigError for a folder that cannot hold it.
std::unique_ptr<OffloadStore> make_offload_store(const Runtime& runtime, const Config& config,
                                                 const Recomputation& recomputation);

}  // namespace meshgrad
