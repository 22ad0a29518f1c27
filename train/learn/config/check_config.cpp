// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/config/config_table.h>

#include <vector>

namespace meshgrad {

const Config& check_config(const Config& config) {
  const std::vector<Contradiction> found = contradictions(config);
  if (found.empty()) return config;
  const Contradiction& first = found.front();
  throw config_error(first.keys.front(), first.needed, first.got, first.fix);
}

}  // namespace meshgrad
