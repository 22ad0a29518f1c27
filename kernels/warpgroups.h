// SPDX-License-Identifier: Apache-2.0
// What RuntimeOptions::wgmma does: the weight gradients of MLPs in 16 bits have a second kernel with products
// of warpgroups, which only GPUs of compute capability 9.0 can run.
#pragma once
#include <string>

namespace meshgrad::kernels {

/// Why the option has no effect on a GPU, for messages; empty where it has.
std::string why_no_warpgroups(int device);

}  // namespace meshgrad::kernels
