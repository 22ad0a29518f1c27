// SPDX-License-Identifier: Apache-2.0
// What tests ask of the simulated device beyond engine/gpu.h.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace simt {

/// The work of one launch. Requested bytes count every access; of unique bytes each address counts once per
/// launch. Global memory only; atomic operations read and write.
struct LaunchReport {
  std::string name;
  int64_t blocks = 0;
  int threads = 0;
  int shared_bytes = 0;  ///< dynamic and fixed
  int64_t bytes_read = 0;
  int64_t bytes_written = 0;
  int64_t unique_bytes_read = 0;
  int64_t unique_bytes_written = 0;
  int64_t tensor_flops = 0;     ///< of multiply_add
  int64_t warp_operations = 0;  ///< shuffles, votes, fragments, __syncwarp; once a lane
  int64_t barriers = 0;         ///< once a thread
  int64_t longest_warp = 0;     ///< warp operations of the warp with the most
};

/// Those of the launches that ended without an error since the last call, in the order they ran.
std::vector<LaunchReport> take_reports();

/// A kernel that fails makes its device unusable, as on a GPU: every later call fails and names that kernel.
/// A process with a GPU must end then; tests repair the device and go on.
void repair_devices();

/// Shared memory that a thread block may have from now on, in bytes; 0: as on an H200. For tests of smaller
/// GPUs.
void set_shared_bytes(int bytes);

/// The compute capability of all devices from now on, or of one, as gpu::compute_capability; 0: 9.0 again.
void set_compute_capability(int capability, int device = -1);

/// What gpu::architectures says from now on; empty: "native" again.
void set_architectures(const std::string& architectures);

/// Whether the devices have virtual memory management from now on.
void set_virtual_memory(bool supported);

/// What the simulated cuBLASLt has from now on: algorithms for all products that are aligned for it, none, or
/// some that it declines when they are to run.
enum class GemmAlgorithms : uint8_t { all, none, declined };
void set_gemm_algorithms(GemmAlgorithms offered);

/// Restarts the random order of threads, blocks and streams.
void set_seed(uint64_t seed);

}  // namespace simt
