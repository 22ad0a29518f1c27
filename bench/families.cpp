// SPDX-License-Identifier: Apache-2.0
#include "families.h"

#include <meshgrad/kernels/tables.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad::bench {

std::vector<Benchmark> benchmarks_of(const std::vector<Family>& families, const Selection& selection) {
  std::vector<Benchmark> list;
  for (const Family& family : families) {
    for (const SizeClass& size : size_classes(selection.quick)) {
      for (const DType dtype : timed_types()) {
        if (family.f32_only && dtype != DType::f32) continue;
        const std::string name = row_name(family.name, size, dtype);
        list.push_back({name, [=, make = family.make](Runtime& runtime) {
                          return make(std::make_shared<Case>(runtime, size.scale, dtype, name));
                        }});
      }
    }
  }
  return list;
}

std::vector<Benchmark> kernel_benchmarks(const Selection& selection) {
  std::vector<Family> families = matrix_families();
  for (const std::vector<Family>& more :
       {row_families(), attention_families(), slice_families(), latent_families(), state_families()})
    families.insert(families.end(), more.begin(), more.end());
  check_every_kernel_is_timed(families);
  return benchmarks_of(families, selection);
}

void check_every_kernel_is_timed(const std::vector<Family>& families) {
  const auto is_timed = [&](std::string_view kernel) {
    return std::any_of(families.begin(), families.end(), [&](const Family& f) { return f.kernel == kernel; });
  };
  kernels::visit_kernels(kernels::cpu_tables(), [&](std::string_view family, std::string_view kernel, auto) {
    constexpr std::string_view kQuery = "saves_hidden";  // answers on the host and runs nothing
    if (kernel == kQuery || is_timed(kernel)) return;
    throw internal_error(fmt::format("meshgrad-bench has no row for {} of the family {}", kernel, family));
  });
}

RowSizes::RowSizes(const Case& c)
    : base(6 * c.scale().period),
      rows(c.scale().edges()),
      width(c.scale().width),
      text(fmt::format("{} rows of {}", rows, width)) {}

Workload row_workload(const std::shared_ptr<Case>& c, const Work& work, const std::function<void()>& run,
                      const std::function<void(Case&)>& reference) {
  return {.run = run,
          .flops = work.flops,
          .bytes = work.bytes,
          .description = RowSizes(*c).text,
          .cold = true,
          .check = [=] { return c->check({}, run, reference); },
          .randomise = [=] { c->randomise(); }};
}

}  // namespace meshgrad::bench
