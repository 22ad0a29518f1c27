// SPDX-License-Identifier: Apache-2.0
// NCCL between the ranks of a test, which are threads, on the simulated device: calls wait in their streams
// as kernels do, and take the values that are there when the stream gets to them.
#pragma once
#include <cstdint>
#include <string>

namespace simt {

/// The device of the calling thread has this PCI address from now on: another GPU of the host, which alone
/// its process sees. Empty: its own again.
void see_only(const std::string& address);

/// Whether communicators of the calling thread report an error from now on, as where NCCL notices the end of
/// another rank.
void report_remote_error(bool on);

/// Of all communicators so far.
struct NcclCounts {
  int sums = 0;       ///< calls of ncclAllReduce
  int exchanges = 0;  ///< groups of ncclSend and ncclRecv
  int destroyed = 0;
  int aborted = 0;
};
NcclCounts nccl_counts();
/// In messages of the calling thread's ranks so far.
int64_t nccl_bytes_sent();

}  // namespace simt
