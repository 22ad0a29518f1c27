// SPDX-License-Identifier: Apache-2.0
// The weight gradients' second implementation, with products of warpgroups (wgmma.h) of rows that copies
// bring (bulk_copy.h): the same units, partials and order of slices as in weight_gradients.cu. The sources
// *_sm90a.cu are compiled for sm_90a alone, in builds whose architectures name 90; in others
// weight_gradients_sm90a_none.cpp takes their place.
#pragma once
#include <meshgrad/engine/dtype.h>
#include <meshgrad/engine/stream.h>

namespace meshgrad {
class Runtime;
}

namespace meshgrad::cuda {

template <class T>
struct NodeTermsBackwardArgs;

namespace gradients {

struct PreparedLaunch;

/// The compute capability that sm_90a's code runs on, as gpu::compute_capability has it.
inline constexpr int kWarpgroupCapability = 90;
/// Whether this build has the kernels.
bool warpgroups_built();
/// Whether products of warpgroups are asked for and there; if they are not there, the log says once why.
bool uses_warpgroups(Runtime& runtime, const Stream& stream);
/// Launches the kernel for jobs of a 16-bit dtype, at least one.
void start_on_warpgroups(const PreparedLaunch& prepared, DType dtype, Runtime& runtime, const Stream& stream);
/// Launches that of node_terms_backward, for half or bfloat16 and a width of 128 or 256.
template <class T>
void start_node_terms_on_warpgroups(const NodeTermsBackwardArgs<T>& args, int width, int64_t blocks,
                                    Runtime& runtime, const Stream& stream);

}  // namespace gradients
}  // namespace meshgrad::cuda
