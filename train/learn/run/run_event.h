// SPDX-License-Identifier: Apache-2.0
// What a run did and found: the lines of events.jsonl. log.txt shows their texts.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

/// In brackets: fields.
enum class RunEventKind : uint8_t {
  log,           ///< a line of the runtime
  warning,       ///< what the run does not stop for
  error,         ///< what ended it [error: the kind of error]
  batch,         ///< the choice of train.batch = "auto" [batch]
  settings,      ///< an option that differs from its usual value, and what it does
  recompute,     ///< what is recomputed, or why nothing is [segments]
  ranks,         ///< how processes share the work [ranks, samples]
  parts,         ///< how meshes are cut [parts, rows_by: nccl, ranks or host]
  reduction,     ///< who adds gradients between GPUs [by: nccl or host]
  teacher,       ///< the file of distill.cache is written, or waited for [file, samples]
  weights,       ///< the run starts with those of another [keeps_normalizers]
  resumed,       ///< [checkpoint]
  begins,        ///< the steps begin; the text is their schedule [steps]
  captured,      ///< a step became a CUDA graph [nodes, edges, bytes]
  not_captured,  ///< graphs = "capture" has no effect [reason]
  validation,    ///< the figures of the line in metrics.jsonl, and [best]
  scores,  ///< of training samples, made or on the way [epoch, samples, least, median, most, file, scored]
  memory,  ///< the memory of an epoch, as in metrics.jsonl
  memory_waste,  ///< fragmentation has grown [epoch, memory_waste]
  trace,         ///< [file]
  patience,      ///< train.patience ends the run [validations]
  complete,      ///< a resumed run has nothing left to do [steps]
  stopped,       ///< a signal or the end of the job's time: with a checkpoint
  time_limit,    ///< when the run stops for the end of its job [seconds]
  bytes_sent,    ///< by rank 0 to other ranks [bytes_per_step]
  verdict,       ///< whether the run has learned, at its end [verdict: name_of(RunVerdict::Kind), ratio]
};
std::string_view name_of(RunEventKind kind);

struct RunEvent {
  using Fields = std::vector<std::pair<std::string, std::variant<bool, std::int64_t, double, std::string>>>;

  RunEventKind kind = RunEventKind::log;
  std::string text;  ///< for people, and free to be reworded: programs read the kind and the fields
  Fields fields;
  int64_t step = 0;  ///< completed optimizer steps

  /// A field's text; empty without such a field, or if it is no text.
  std::string field(std::string_view name) const;
};

/// {"step": 12, "kind": "validation", "fields": {...}, "text": "..."} without a newline.
std::string event_line(const RunEvent& event);

/// The events of a file in their order. Lines that are no events, as that of a process that was killed, and
/// events of kinds that this version does not know, are left out. Throws DataError when it cannot be read.
std::vector<RunEvent> read_events(const std::filesystem::path& path);

}  // namespace meshgrad
#pragma GCC visibility pop
