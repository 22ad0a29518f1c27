// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/number.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>

namespace meshgrad {
namespace {

constexpr const char* kUseAnother = "use another checkpoint of the run (--checkpoint FILE)";
constexpr const char* kChecksumKey = "checksum";

/// Reads numbers of the metadata and refuses those outside a range.
class Counters {
 public:
  explicit Counters(const SafetensorsView& view) : view_(view) {}

  bool contains(const std::string& key) const { return view_.metadata.contains(key); }

  int64_t whole(const std::string& key, int64_t least, int64_t most) const {
    const std::string& text = view_.metadata_at(key);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool valid = error == std::errc() && end == text.data() + text.size();
    if (!valid || value < least || value > most) {
      throw data_error(view_.file + ": " + key, fmt::format("a whole number from {} to {}", least, most),
                       "\"" + text + "\"", kUseAnother);
    }
    return value;
  }

  double real(const std::string& key) const {
    const std::optional<double> value = parse_number(view_.metadata_at(key));
    require(key, value.has_value(), "a number");
    return *value;
  }

  void require(const std::string& key, bool valid, std::string_view needed) const {
    if (!valid)
      throw data_error(view_.file + ": " + key, needed, "\"" + view_.metadata_at(key) + "\"", kUseAnother);
  }

 private:
  const SafetensorsView& view_;
};

void read_losses(const Counters& counters, RunState& s) {
  s.last_valid_loss = counters.real("last_valid_loss");
  s.best_valid_loss = counters.real("best_valid_loss");
  counters.require("best_valid_loss",
                   s.best_step < 0 ? s.best_valid_loss == HUGE_VAL : std::isfinite(s.best_valid_loss),
                   s.best_step < 0 ? "inf before the first validation" : "a finite loss");
  s.optimizer.window_loss = counters.real("window_loss");
  s.optimizer.loss_sum = counters.real("loss_sum");
  counters.require("loss_sum", std::isfinite(s.optimizer.loss_sum), "a finite sum");
  s.optimizer.last_loss = counters.real("last_loss");
  if (counters.contains("penalty_sum")) {
    s.optimizer.window_penalty = counters.real("window_penalty");
    s.optimizer.penalty_sum = counters.real("penalty_sum");
    counters.require("penalty_sum", std::isfinite(s.optimizer.penalty_sum), "a finite sum");
  }
  if (counters.contains("best_valid_rollout")) {
    s.last_valid_rollout = counters.real("last_valid_rollout");
    s.best_valid_rollout = counters.real("best_valid_rollout");
    counters.require("best_valid_rollout", s.best_valid_rollout >= 0.0, "a number of at least 0");
  }
  if (!counters.contains("loss_scale")) return;
  s.optimizer.loss_scale = counters.real("loss_scale");
  s.optimizer.last_skipped_scale = counters.real("bad_scale");
  s.optimizer.clean_steps = counters.whole("clean_steps", 0, s.optimizer.steps);
  for (const char* key : {"loss_scale", "bad_scale"})
    counters.require(key, counters.real(key) > 0.0 && std::isfinite(counters.real(key)),
                     "a finite number above 0");
}

}  // namespace

std::string checkpoint_checksum(std::span<const SafetensorsTensor> tensors,
                                const std::map<std::string, std::string>& metadata) {
  XXH64_hash_t hash = 0;
  const auto add = [&](const void* data, size_t bytes) { hash = XXH3_64bits_withSeed(data, bytes, hash); };
  const auto add_text = [&](std::string_view text) { add(text.data(), text.size()); };
  for (const auto& [key, value] : metadata) {
    if (key == kChecksumKey) continue;
    add_text(key);
    add_text(value);
  }
  std::map<std::string_view, const SafetensorsTensor*> by_name;
  for (const SafetensorsTensor& tensor : tensors) by_name.emplace(tensor.name, &tensor);
  for (const auto& [name, tensor] : by_name) {
    add_text(name);
    add_text(dtype_name(tensor->dtype));
    add(tensor->shape.data(), tensor->shape.size() * sizeof(int64_t));
    add(tensor->bytes.data(), tensor->bytes.size());
  }
  return fmt::format("{:016x}", hash);
}

SafetensorsFile open_checkpoint(const std::filesystem::path& path) {
  SafetensorsFile file(path);
  const SafetensorsView& view = file.view();
  const auto format = view.metadata.find("format");
  const std::string name = format == view.metadata.end() ? "" : format->second;
  if (name != "meshgrad checkpoint 1" && name != "meshgrad checkpoint 2") {
    throw data_error(view.file, "a checkpoint written by meshgrad train",
                     name.empty() ? "a safetensors file without \"format\"" : name,
                     "name a file from a run's checkpoints folder");
  }
  if (name.back() == '1' && !view.metadata.contains(kChecksumKey)) return file;
  if (view.metadata_at(kChecksumKey) != checkpoint_checksum(view.tensors, view.metadata)) {
    throw data_error(view.file, "the checksum " + view.metadata_at(kChecksumKey),
                     checkpoint_checksum(view.tensors, view.metadata) + ": the file is damaged", kUseAnother);
  }
  return file;
}

RunState read_run_state(const SafetensorsView& view, const Config& config) {
  const Counters counters(view);
  // Positions in the sequence of samples are products of these, and must fit 64 bits.
  const int64_t window = std::max<int64_t>(1, config.train.batch) * config.train.accumulate;
  const int64_t most = (int64_t{1} << 62) / std::max<int64_t>(1, window) - 1;
  RunState s;
  s.step = counters.whole("step", 0, most);
  s.micro = counters.whole("micro", 0, config.train.accumulate - 1);
  s.learned = counters.whole("learned", 0, (s.step + 1) * window);
  s.best_step = counters.whole("best_step", -1, s.step);
  s.validation_due = counters.contains("validation_due");
  if (counters.contains("first_square")) s.first_square = counters.real("first_square");
  StepState& o = s.optimizer;
  o.steps = counters.whole("optimizer_steps", 0, s.step);
  o.skipped = counters.whole("skipped", 0, s.step - o.steps);
  o.consecutive_skips = counters.whole("skipped_in_a_row", 0, o.skipped);
  o.non_finite_losses = counters.whole("bad_losses", 0, (s.step + 1) * config.train.accumulate);
  o.last_skipped_step = counters.whole("bad_window", -1, s.step);
  o.loss_count = counters.whole("loss_count", 0, s.step);
  read_losses(counters, s);
  return s;
}

uint64_t read_data_fingerprint(const SafetensorsView& view) {
  const std::string& text = view.metadata_at("data_fingerprint");
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size())
    throw data_error(view.file + ": data_fingerprint", "16 hexadecimal digits", "\"" + text + "\"",
                     kUseAnother);
  return value;
}

}  // namespace meshgrad
