// SPDX-License-Identifier: Apache-2.0
// What a checkpoint may hold beside the run's own state. Readers of checkpoints do not look at it.
#pragma once
#include <meshgrad/train/data/safetensors.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace meshgrad {

struct CheckpointExtra {
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata;
};

}  // namespace meshgrad
