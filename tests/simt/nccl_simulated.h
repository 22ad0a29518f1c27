// SPDX-License-Identifier: Apache-2.0
// NCCL between the ranks of a test, which are threads, on the simulated device: calls wait in their streams
// as kernels do, and take the values that are there when the stream gets to them.
#pragma once

namespace simt {

/// Of all communicators so far.
struct NcclCounts {
  int sums = 0;  ///< calls of ncclAllReduce
  int destroyed = 0;
  int aborted = 0;
};
NcclCounts nccl_counts();

}  // namespace simt
