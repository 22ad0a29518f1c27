// SPDX-License-Identifier: Apache-2.0
// Trainer: the trace of one step.
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/learn/run/trainer.h>

#include <fmt/format.h>

#include <filesystem>
#include <string>

namespace meshgrad {

void Trainer::check_trace() const {
  const int64_t asked = options_.trace_step;
  if (asked == 0 || (asked > state_.step && asked <= loader_.total_steps())) return;
  throw config_error("--trace",
                     fmt::format("a step behind step {} and up to {}", state_.step, loader_.total_steps()),
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
    message(fmt::format("trace of step {}: {}, for https://ui.perfetto.dev", state_.step, path.string()));
  } catch (const Error& error) {
    message(fmt::format("warning: no trace: {}", error.what()));
  }
}

}  // namespace meshgrad
