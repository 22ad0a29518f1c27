// SPDX-License-Identifier: Apache-2.0
// Named groups of settings. Several combine: a later one wins where two set the same key.
#pragma once
#include <meshgrad/train/learn/config/config.h>

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

struct Preset {
  std::string_view name;
  std::string_view help;                       ///< one sentence without a full stop
  std::span<const std::string_view> settings;  ///< "section.key=value", as --set takes them
};
std::span<const Preset> presets();

/// The presets of "NAME" or "NAME,NAME", in that order. Throws ConfigError for an unknown name.
std::vector<Preset> presets_named(std::string_view names);

/// `config` with the settings of these presets. Throws ConfigError where a result contradicts itself.
Config with_presets(const Config& config, const std::vector<Preset>& chosen);

/// Only the settings of these presets as TOML, each with its meaning.
std::string presets_toml(const std::vector<Preset>& chosen);

/// What to begin with on a GPU of so many bytes, or on the CPU (0): a line for a user.
std::string preset_advice(int64_t gpu_bytes);

}  // namespace meshgrad
