// SPDX-License-Identifier: Apache-2.0
// CPU affinity of threads. To pin threads, start the program under taskset, numactl or a batch system's
// launcher: meshgrad uses the CPUs that it finds allowed.
#pragma once
#include <vector>

namespace meshgrad {

/// Numbers of the CPUs that the calling thread may run on, ascending; empty where the system does not tell.
std::vector<int> allowed_cpus();

}  // namespace meshgrad
