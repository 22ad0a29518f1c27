// SPDX-License-Identifier: Apache-2.0
// Copies between the host and the simulated device.
#pragma once
#include <cstdint>

namespace simt {

struct Transfers {
  int64_t to_device = 0, to_host = 0;              ///< copies
  int64_t bytes_to_device = 0, bytes_to_host = 0;  ///< of all of them
  bool operator==(const Transfers&) const = default;
};

/// Since the last call.
Transfers take_transfers();

}  // namespace simt
