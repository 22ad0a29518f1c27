// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/tools/program/presets.h>

#include <algorithm>

namespace meshgrad {
namespace {

constexpr std::string_view kSmall[] = {"model.width=32", "model.blocks=6", "optimizer.lr=1e-3"};
// Pfaff et al. (2021), appendix A.1 and A.2.
constexpr std::string_view kReference[] = {
    "precision=f32",          "model.width=128", "model.blocks=15",   "model.hidden_layers=2",
    "model.activation=relu",  "train.batch=2",   "optimizer.lr=1e-4", "schedule.name=exponential",
    "schedule.final_lr=1e-6", "graphs=off",      "recompute.mode=off"};
constexpr std::string_view kFull[] = {"precision=bf16",   "model.width=128", "model.blocks=15",
                                      "model.path=fused", "graphs=capture",  "autotune=true"};
constexpr std::string_view kLowMemory[] = {"recompute.mode=block", "model.keep_hidden=false", "train.batch=1",
                                           "graphs=off", "memory.plan_steps=true"};

constexpr std::string_view kRecompute[] = {"recompute.mode=block", "graphs=capture"};

constexpr Preset kPresets[] = {
    {"small", "A small network that learns in minutes on a CPU: for a first look at new data", kSmall},
    {"reference", "The network and the schedule of the MeshGraphNets paper in f32: for comparisons",
     kReference},
    {"full", "The network of the paper in 16 bits with captured steps: for speed on a GPU", kFull},
    {"low-memory", "Recomputed activations and single samples: the same network in less memory", kLowMemory},
    {"recompute", "Recomputed activations in captured steps: less memory on a GPU at the same batch size",
     kRecompute},
};

std::vector<std::string> preset_texts(const Preset& preset) {
  return {preset.settings.begin(), preset.settings.end()};
}

}  // namespace

std::span<const Preset> presets() { return kPresets; }

std::vector<Preset> presets_named(std::string_view names) {
  std::vector<std::string> known;
  for (const Preset& preset : kPresets) known.emplace_back(preset.name);
  std::vector<Preset> chosen;
  while (!names.empty()) {
    const size_t end = std::min(names.find(','), names.size());
    const std::string name(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
    const auto at = std::ranges::find(kPresets, name, &Preset::name);
    if (at == std::end(kPresets)) {
      const std::string near = nearest_name(name, known);
      throw config_error("preset", listed(known), fmt::format("\"{}\"", name),
                         near.empty() ? "name one of them, or several with commas between them"
                                      : fmt::format("did you mean \"{}\"?", near));
    }
    chosen.push_back(*at);
  }
  return chosen;
}

Config with_presets(const Config& config, const std::vector<Preset>& chosen) {
  Config result = config;
  for (const Preset& preset : chosen)
    result = parse_config(to_toml(result), "preset " + std::string(preset.name), preset_texts(preset));
  return result;
}

std::string presets_toml(const std::vector<Preset>& chosen) {
  const Config config = with_presets(Config(), chosen);
  std::string text;
  for (const Preset& preset : chosen) text += fmt::format("# {}: {}.\n", preset.name, preset.help);
  std::string_view section;
  for (const ConfigKey& key : config_keys()) {
    const auto sets = [&](std::string_view setting) { return setting.starts_with(full_name(key) + "="); };
    const bool named = std::ranges::any_of(
        chosen, [&](const Preset& preset) { return std::ranges::any_of(preset.settings, sets); });
    if (!named) continue;
    if (key.section != section) {
      section = key.section;
      text += fmt::format("\n[{}]\n", section);
    }
    text += fmt::format("{} = {}  # {}\n", key.name, toml_literal(key, config), key.help);
  }
  return text;
}

std::string preset_advice(int64_t gpu_bytes) {
  constexpr int64_t kGibibyte = int64_t{1} << 30;
  if (gpu_bytes == 0)
    return "on a CPU begin with --preset small; use --preset reference to compare with others";
  if (gpu_bytes >= 32 * kGibibyte)
    return "this GPU holds --preset full (speed) and --preset reference (to compare with others)";
  if (gpu_bytes >= 8 * kGibibyte)
    return "on this GPU begin with --preset full; use low-memory,full for large meshes";
  return "on this GPU begin with --preset full,low-memory, or --preset small for a first look";
}

}  // namespace meshgrad
