// SPDX-License-Identifier: Apache-2.0
// The kernel/ rows: one call of a kernel, at every size and in every storage type.
#pragma once
#include <meshgrad/kernels/work.h>

#include "inputs.h"

namespace meshgrad::bench {

/// A workload at any size and type. Its rows are called kernel/NAME[/SIZE]/DTYPE.
struct Family {
  std::string name;
  std::string kernel;  ///< what it times, as visit_kernels of kernels/tables.h names it
  std::function<Workload(const std::shared_ptr<Case>&)> make;
  bool f32_only = false;  ///< the work does not depend on the storage type
};
std::vector<Benchmark> benchmarks_of(const std::vector<Family>& families, const Selection& selection);

/// Matrix multiplications; row operations; attention; slices; latent values and pairs; the state error, the
/// optimizer and solver arrays.
std::vector<Family> matrix_families();
std::vector<Family> row_families();
std::vector<Family> attention_families();
std::vector<Family> slice_families();
std::vector<Family> latent_families();
std::vector<Family> state_families();

/// Throws InternalError naming a kernel that no family times.
void check_every_kernel_is_timed(const std::vector<Family>& families);

/// The sizes of a row workload: as many rows as the mesh has edges.
struct RowSizes {
  int64_t base, rows, width;
  std::string text;
  explicit RowSizes(const Case& c);
};

/// A workload that is timed with flushed caches and checked against the reference implementation.
Workload row_workload(const std::shared_ptr<Case>& c, const Work& work, const std::function<void()>& run,
                      const std::function<void(Case&)>& reference);

}  // namespace meshgrad::bench
