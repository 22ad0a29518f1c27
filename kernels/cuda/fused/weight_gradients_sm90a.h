// SPDX-License-Identifier: Apache-2.0
// The weight gradients' second implementation, with products of warpgroups (wgmma.h): the same units,
// partials and order of slices as in weight_gradients.cu. Its source is compiled for sm_90a alone, in builds
// whose architectures name 90; in others weight_gradients_sm90a_none.cpp takes its place.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/stream.h>

namespace meshgrad::cuda::gradients {

struct PreparedLaunch;

/// The compute capability that sm_90a's code runs on, as gpu::compute_capability has it.
inline constexpr int kWarpgroupCapability = 90;
/// Whether this build has the kernel.
bool warpgroups_built();
/// Launches the kernel for jobs of a 16-bit dtype, at least one.
void start_on_warpgroups(const PreparedLaunch& prepared, DType dtype, const Stream& stream);

}  // namespace meshgrad::cuda::gradients
