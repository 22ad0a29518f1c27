// SPDX-License-Identifier: Apache-2.0
// The CPUs of a machine, shared by the ranks on it.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>

namespace meshgrad {

/// CPU threads for this rank: each CPU that it may run on counts for its part among the local ranks that may
/// run there, too; of a control group's quota each takes the same part. So ranks that a launcher bound to
/// CPUs of their own use all of these. At least 1. Collective.
int threads_of_rank(Ranks& ranks);

/// The same from what is known: the CPUs of each local rank, and the CPUs of the quota (0: none).
int threads_of_rank(const std::vector<std::vector<int>>& local_cpus, int local_rank, double quota);

}  // namespace meshgrad
