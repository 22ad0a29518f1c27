// SPDX-License-Identifier: Apache-2.0
#include "bound.h"

#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu_card.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

namespace meshgrad::bench {
namespace {

/// A row's name ends with its storage type.
DType storage_of(const Benchmark& benchmark) {
  for (const DType dtype : timed_types())
    if (benchmark.prepare && !benchmark.on_host && !benchmark.other &&
        benchmark.name.ends_with(fmt::format("/{}", name_of(dtype))))
      return dtype;
  throw invalid_argument("meshgrad-bench bound", "a workload in f32, f16 or bf16", benchmark.name,
                         "name a kernel/ or step/ row");
}

}  // namespace

Bound bound_of(const Benchmark& benchmark, const gpu::Card& card) {
  const DType storage = storage_of(benchmark);
  const gpu::PlannedCard planned(&card);
  Runtime runtime({.device = {DeviceKind::cuda, 0}, .threads = 1, .dry = true});
  const Workload workload = benchmark.prepare(runtime);
  Bound bound{.name = benchmark.name,
              .description = workload.description,
              .gpu = std::string(card.name),
              .kernels = {}};
  const WorkTrace trace;
  workload.run();
  for (const WorkTrace::Call& call : trace.calls()) {
    auto kernel = std::find_if(bound.kernels.begin(), bound.kernels.end(),
                               [&](const BoundKernel& one) { return one.name == call.kernel; });
    if (kernel == bound.kernels.end())
      kernel = bound.kernels.insert(kernel, BoundKernel{.name = std::string(call.kernel), .work = {}});
    const double ms = 1e3 * least_seconds(call.work, card, storage);
    ++kernel->calls;
    kernel->work += call.work;
    kernel->ms += ms;
    bound.ms += ms;
  }
  return bound;
}

std::string to_text(const Bound& bound) {
  std::string text = fmt::format("{}: {}\n  {:<26} {:>6} {:>11} {:>10} {:>14}\n", bound.name,
                                 bound.description, "kernel", "calls", "GFLOP", "GB", "at least, ms");
  for (const BoundKernel& kernel : bound.kernels) {
    text += fmt::format("  {:<26} {:>6} {:>11.3f} {:>10.4f} {:>14.4f}\n", kernel.name, kernel.calls,
                        kernel.work.flops / 1e9, kernel.work.bytes / 1e9, kernel.ms);
  }
  return text + fmt::format("  at least {:.4f} ms at the stated peaks of one {}\n", bound.ms, bound.gpu);
}

void write_bounds(const std::vector<Bound>& bounds, const std::string& path) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Bound& bound : bounds) {
    nlohmann::ordered_json kernels = nlohmann::ordered_json::array();
    for (const BoundKernel& kernel : bound.kernels)
      kernels.push_back({{"name", kernel.name},
                         {"calls", kernel.calls},
                         {"flops", kernel.work.flops},
                         {"bytes", kernel.work.bytes},
                         {"bound_ms", kernel.ms}});
    list.push_back({{"name", bound.name},
                    {"description", bound.description},
                    {"gpu", bound.gpu},
                    {"bound_ms", bound.ms},
                    {"kernels", kernels}});
  }
  std::ofstream file(path);
  file << list.dump(1) << '\n';
  if (!file.flush()) throw data_error(path, "a file that can be written", "none", "choose another --json");
}

}  // namespace meshgrad::bench
