// SPDX-License-Identifier: Apache-2.0
// A configuration for data that was never trained on, guessed from the data.
#pragma once
#include <meshgrad/train/tools/program/memory_plan.h>
#include <meshgrad/train/tools/program/presets.h>

#include <map>
#include <string>
#include <vector>

namespace meshgrad {

struct FirstConfig {
  Config config;
  std::map<std::string, std::string> reasons;  ///< full name of a key -> why it has this value
  std::vector<std::string> notes;              ///< what the user should decide
};

/// A configuration that trains on `dataset` as it stands. Data with several frames are mesh_dynamics: all f32
/// fields on nodes that change over time are inputs and targets, static ones and those on graphs that
/// `targets` does not name are inputs. Other data are a steady_field: static fields are inputs; where that
/// tells nothing, what the data and names of fields tell (field_roles.h). `targets`, unless empty, names
/// them. Noise is a third of the smallest target's change. Width and steps follow from the amount of data,
/// the batch from the memory that is planned on the device. Presets replace what they set. Throws ConfigError
/// when there is nothing to learn: no such fields, or too few; and naming the candidates where nothing tells
/// which are to be predicted. Data of graphs: first_graph_config.h.
FirstConfig first_config(const Dataset& dataset, const std::vector<Preset>& chosen = {},
                         const std::vector<std::string>& targets = {});

/// What suits the device.
void choose_precision(FirstConfig& first);
/// The presets as the reasons of what they set.
void mark_presets(FirstConfig& first, const std::vector<Preset>& chosen);

/// As TOML: keys with a reason, and keys that differ from their defaults; reasons and notes are comments.
std::string to_toml(const FirstConfig& first);

}  // namespace meshgrad
