// SPDX-License-Identifier: Apache-2.0
// Trainer: what it agrees on with other ranks, and says of them and of a teacher; the trace of one step; the
// result.
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/run/cached_teacher.h>
#include <meshgrad/train/learn/run/same_config.h>
#include <meshgrad/train/learn/run/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace meshgrad {

/// Otherwise they would add gradients of different things, or wait for each other for ever.
void Trainer::check_same_on_all_ranks() {
  if (ranks_.single()) return;
  Config config = config_;
  config.run.device.clear();
  config.run.threads = 0;
  constexpr const char* kFix = "start all ranks with the same command and the same files";
  check_same_config(ranks_, config, kFix);
  const auto check = [&](const char* where, uint64_t mine, const auto& text) {
    const std::vector<uint64_t> all = all_gather(ranks_, mine, "comparison of runs");
    const auto other = std::ranges::find_if(all, [&](uint64_t there) { return there != all.front(); });
    if (other == all.end()) return;
    throw config_error(
        where, "the same on all ranks",
        fmt::format("{} on rank 0 and {} on rank {}", text(all.front()), text(*other), other - all.begin()),
        kFix);
  };
  check("data.path", task_.dataset().fingerprint(),
        [](uint64_t print) { return fmt::format("data with the fingerprint {:016x}", print); });
  check("distill.teacher", task_.teacher() != nullptr ? hash_of(task_.teacher()->hash()) : 0,
        [](uint64_t hash) { return fmt::format("a checkpoint of hash {:016x}", hash); });
  check("curriculum.model", scoring_model_ ? hash_of(scoring_model_->hash) : 0,
        [](uint64_t hash) { return fmt::format("a checkpoint of hash {:016x}", hash); });
  check("--resume", options_.resume ? 1 : 0,
        [](uint64_t resumes) { return resumes == 1 ? "set" : "not set"; });
}

void Trainer::describe_parts() const {
  const std::string method = config_.ranks.partition == MeshPartition::metis ? "METIS"
                             : config_.ranks.partition == MeshPartition::file
                                 ? config_.ranks.partition_file
                                 : "recursive coordinate bisection";
  if (parts_->in_turn()) {
    tell(RunEventKind::parts,
         fmt::format("each mesh is computed in {} parts in turn, cut by {}; their values wait in host memory",
                     parts_->count(), method),
         {{"parts", parts_->count()}, {"rows_by", "host"}});
  } else {
    const bool nccl = sum_.between_gpus() != nullptr;
    tell(RunEventKind::parts,
         fmt::format("{} ranks compute each mesh together, in parts cut by {}{}", ranks_.size(), method,
                     nccl ? "; NCCL exchanges the rows at their borders" : ""),
         {{"parts", int64_t{ranks_.size()}}, {"rows_by", nccl ? "nccl" : "ranks"}});
  }
}

/// False when the observer stopped it.
bool Trainer::prepare_teacher() {
  const Teacher* teacher = task_.teacher();
  if (teacher == nullptr) return true;
  tell(
      RunEventKind::settings,
      fmt::format("learns from {} (hash {}) with a share of {} in the loss: {} parameters, {} of the teacher",
                  config_.distill.teacher, teacher->hash(), config_.distill.alpha, model_.parameters.count(),
                  teacher->parameters().count()));
  if (config_.distill.offload == OffloadTo::host && !runtime_.stream().on_gpu()) {
    tell(RunEventKind::settings,
         "distill.offload = \"host\" has no effect on the CPU, whose tensors are in host memory already");
  }
  if (config_.distill.cache.empty()) return true;
  auto cache = open_teacher_cache(runtime_, ranks_, config_, task_, options_.observer.stop,
                                  [this](std::string text, RunEvent::Fields fields) {
                                    tell(RunEventKind::teacher, std::move(text), std::move(fields));
                                  });
  if (cache == nullptr) return false;
  task_.set_teacher(std::make_shared<const Teacher>(teacher->reading(std::move(cache))));
  return true;
}

/// Which samples are drawn, and what of them counts.
void Trainer::describe_samples() {
  if (const Curriculum* const curriculum = loader_.curriculum())
    tell(RunEventKind::settings, curriculum->describe());
  const int64_t drawn = loader_.samples_until(loader_.total_steps());
  const std::string sampling =
      task_.describe_sampling(config_.data.train_split,
                              static_cast<double>(drawn) / static_cast<double>(loader_.sampler().samples()));
  if (!sampling.empty()) tell(RunEventKind::settings, sampling);
}

/// Recomputed segments exchange rows: ranks that chose differently would wait for each other.
Recomputation Trainer::same_on_all_ranks(Recomputation chosen) {
  if (!parts_ || ranks_.single()) return chosen;
  const auto spread = [&](auto& value) {
    broadcast(ranks_, std::as_writable_bytes(std::span(&value, 1)), 0, "choice of recomputation");
  };
  auto stages = static_cast<int64_t>(chosen.stages.size());
  spread(stages);
  chosen.stages.resize(static_cast<size_t>(stages));
  for (RecomputedStages& segment : chosen.stages) spread(segment);
  spread(chosen.segments);
  return chosen;
}

/// By this rank so far, in messages and by NCCL.
int64_t Trainer::bytes_sent() const {
  return ranks_.bytes_sent() + (sum_.between_gpus() != nullptr ? sum_.between_gpus()->bytes_sent() : 0);
}

void Trainer::describe_ranks() {
  if (const std::string path = sum_.choose_path(); !path.empty())
    tell(RunEventKind::reduction, path, {{"by", sum_.between_gpus() != nullptr ? "nccl" : "host"}});
  if (parts_) {
    parts_->use(sum_.between_gpus());
    return describe_parts();
  }
  if (ranks_.single()) return;
  const int64_t window = loader_.window_samples(state_.step);
  const TrainConfig& train = config_.train;
  const std::string most = config_.ranks.reduction == RankReduction::ordered ? "1"
                           : train.batch_nodes > 0 ? counted(train.batch_nodes, "node")
                                                   : std::to_string(train.batch);
  std::string text = fmt::format("{} ranks: {} a step, at most {} at once on a rank", ranks_.size(),
                                 counted(window, "sample"), most);
  if (loader_.is_split(state_.step) && loader_.knows(state_.step)) {
    const std::vector<int64_t> edges = loader_.edges_of_window(state_.step);
    text += fmt::format("; in the first step the rank with most edges has {:.3g} times the mean",
                        imbalance(edges, loader_.assignment(state_.step)));
  }
  tell(RunEventKind::ranks, text, {{"ranks", int64_t{ranks_.size()}}, {"samples", window}});
  if (window < ranks_.size()) {
    tell(
        RunEventKind::warning,
        fmt::format(
            "warning: {} samples a step do not give {} ranks one each; raise train.batch or train.accumulate",
            window, ranks_.size()));
  }
}

void Trainer::check_trace() const {
  const int64_t asked = options_.trace_step;
  if (asked == 0 || (asked > state_.step && asked <= loader_.total_steps())) return;
  throw config_error("--trace",
                     fmt::format("a step after step {} and up to {}", state_.step, loader_.total_steps()),
                     fmt::format("{}", asked), "name a step that this run makes");
}

void Trainer::begin_trace() {
  if (options_.trace_step == 0 || state_.step + 1 != options_.trace_step) return;
  trace_.emplace(runtime_, options_.trace_step);
  loader_.record_spans(trace_->recorder());
}

/// A trace that cannot be written does not end the run.
void Trainer::end_trace() {
  if (!trace_) return;
  loader_.record_spans(nullptr);
  const std::string text = trace_->finish(ranks_);
  const std::filesystem::path path = folder_.path() / fmt::format("trace-{}.json", trace_->step());
  trace_.reset();
  if (!ranks_.first()) return;
  try {
    write_file_atomically(path, text);
    tell(RunEventKind::trace,
         fmt::format("trace of step {}: {}, for https://ui.perfetto.dev", state_.step, path.string()),
         {{"file", path.string()}});
  } catch (const Error& error) {
    tell(RunEventKind::warning, fmt::format("warning: no trace: {}", error.what()));
  }
}

TrainResult Trainer::result(bool was_stopped) const {
  if (!ranks_.single() && !step_seconds_.empty()) {
    const auto bytes = static_cast<double>(bytes_sent_) / static_cast<double>(step_seconds_.size());
    tell(RunEventKind::bytes_sent,
         fmt::format("rank 0 sent {:.3f} MB a step to the other ranks", bytes / 1e6),
         {{"bytes_per_step", bytes}});
  }
  TrainResult result{was_stopped, state_, folder_.last(), model_.parameters.count(), loader_.total_steps()};
  if (steps_) result.offloaded_bytes = steps_->offloaded_bytes();
  if (step_seconds_.empty()) return result;
  result.first_step_seconds = step_seconds_.front();
  std::vector<float> others(step_seconds_.begin() + (step_seconds_.size() > 1 ? 1 : 0), step_seconds_.end());
  const auto middle = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 2);
  std::nth_element(others.begin(), middle, others.end());
  result.median_step_seconds = *middle;
  double training = 0.0;
  for (const float seconds : step_seconds_) training += static_cast<double>(seconds);
  result.validation_share = validation_seconds_ / (training + validation_seconds_);
  result.data_wait_seconds = loader_.data_seconds() / static_cast<double>(step_seconds_.size());
  return result;
}

}  // namespace meshgrad
