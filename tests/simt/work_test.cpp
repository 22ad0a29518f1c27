// SPDX-License-Identifier: Apache-2.0
// A loop that runs once too often changes no result, and still costs time. So the work of kernels on small
// problems is recorded in work.txt: warp operations, barriers, and the bytes that are read and written. With
// MESHGRAD_RECORD_WORK set the file is rewritten: review what changed. MESHGRAD_WORK_TABLE names another
// file, that of the very same machine code (scripts/kernel-mutants): then reads are compared exactly, too.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "model_run.h"
#include "paths.h"

namespace meshgrad::test {
namespace {

const char* const own_table = std::getenv("MESHGRAD_WORK_TABLE");
const std::string kFile = own_table != nullptr ? own_table : test::source_file("tests/simt/work.txt");

struct Work {
  int64_t launches = 0, warp_operations = 0, barriers = 0, bytes_read = 0, bytes_written = 0;
};
using WorkTable = std::map<std::string, Work>;  // by "problem kernel"

struct Problem {
  const char* name;
  DType dtype;
  int64_t width, nodes, edges;
  ComputePath path;
};
constexpr Problem kProblems[] = {
    {"fused_64_f16", DType::f16, 64, 64, 4800, ComputePath::fused},
    {"fused_128_bf16", DType::bf16, 128, 96, 512, ComputePath::fused},
    {"fused_256_f16", DType::f16, 256, 48, 256, ComputePath::fused},
    {"general_33_f32", DType::f32, 33, 64, 4800, ComputePath::fused},
    {"general_96_f16", DType::f16, 96, 96, 512, ComputePath::fused},
    {"op_by_op_40_f32", DType::f32, 40, 64, 512, ComputePath::op_by_op},
};

/// Which of these run depends on whether there is a header of cuBLASLt, whose stand-in counts no work.
bool of_a_gemm(std::string_view kernel) {
  return kernel.starts_with("cuBLASLt") || kernel == "plain_gemm" || kernel == "start_with_bias";
}

/// Forward and backward of a model of two blocks.
void add_work(const Problem& problem, WorkTable& table) {
  ModelCase shape = model_case(4, 2, problem.width, 2);
  shape.path = problem.path;
  const ModelRun run = run_model(shape, problem.dtype, [&](Runtime& runtime) {
    RandomMatrices random(7);
    return to_graph(runtime, random_edges(random, problem.nodes, problem.edges));
  });
  for (const simt::LaunchReport& report : run.launches) {
    if (of_a_gemm(report.name)) continue;
    Work& work = table[fmt::format("{} {}", problem.name, report.name)];
    ++work.launches;
    work.warp_operations += report.warp_operations;
    work.barriers += report.barriers;
    work.bytes_read += report.unique_bytes_read;
    work.bytes_written += report.unique_bytes_written;
  }
}

WorkTable read_table() {
  WorkTable table;
  std::ifstream file(kFile);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string problem, kernel;
    Work work;
    if (line.starts_with('#') || !(words >> problem >> kernel)) continue;
    words >> work.launches >> work.warp_operations >> work.barriers >> work.bytes_read >> work.bytes_written;
    table[problem + " " + kernel] = work;
  }
  return table;
}

void write_table(const WorkTable& table) {
  std::ofstream file(kFile);
  file << "# What the kernels do in forward and backward of two blocks (work_test.cpp):\n"
          "# problem kernel launches warp_operations barriers bytes_read bytes_written\n";
  for (const auto& [name, work] : table) {
    file << fmt::format("{} {} {} {} {} {}\n", name, work.launches, work.warp_operations, work.barriers,
                        work.bytes_read, work.bytes_written);
  }
}

TEST_CASE("kernels do no more than they did") {
  WorkTable found;
  for (const Problem& problem : kProblems) add_work(problem, found);
  if (std::getenv("MESHGRAD_RECORD_WORK") != nullptr) write_table(found);
  const WorkTable recorded = read_table();
  CHECK(found.size() == recorded.size());
  for (const auto& [name, work] : recorded) {
    CAPTURE(name);
    const Work& now = found[name];
    CHECK(now.launches == work.launches);
    CHECK(now.warp_operations == work.warp_operations);
    CHECK(now.barriers == work.barriers);
    // A compiler may leave out reads of what is not used.
    CHECK(now.bytes_read <= work.bytes_read);
    if (own_table != nullptr) CHECK(now.bytes_read == work.bytes_read);
    CHECK(now.bytes_written == work.bytes_written);
  }
}

/// Of 3200 edges, all of one receiver or as many of each of 64.
int64_t longest_warp(std::string_view kernel, bool hub) {
  ModelCase shape = model_case(4, 1, 64, 1);
  const ModelRun run = run_model(shape, DType::f16, [&](Runtime& runtime) {
    RandomMatrices random(7);
    reference::Edges edges = random_edges(random, 64, 3200);
    for (size_t e = 0; e < edges.receivers.size(); ++e)
      edges.receivers[e] = hub ? 17 : static_cast<int32_t>(e / 50);
    return to_graph(runtime, edges);
  });
  int64_t longest = 0;
  for (const simt::LaunchReport& report : run.launches) {
    if (report.name == kernel) longest = std::max(longest, report.longest_warp);
  }
  return longest;
}

TEST_CASE("edges of a single receiver are divided among warps") {
  for (const std::string_view kernel : {"edge_forward", "edge_backward"}) {
    CAPTURE(kernel);
    const int64_t even = longest_warp(kernel, false), hub = longest_warp(kernel, true);
    REQUIRE(even > 0);
    CHECK(static_cast<double>(hub) <= 1.2 * static_cast<double>(even));
  }
}

}  // namespace
}  // namespace meshgrad::test
