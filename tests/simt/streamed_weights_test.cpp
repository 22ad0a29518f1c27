// SPDX-License-Identifier: Apache-2.0
// A model of width 128 on GPUs with less shared memory than an H100: the same kernels, whose weights are
// streamed where they do not fit, and the same bits.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "model_run.h"

namespace meshgrad::test {
namespace {

/// A training step on a device whose thread blocks may have `kibibytes` of shared memory.
ModelRun run(int kibibytes, DType dtype, Activation activation) {
  ModelCase shape = model_case(4, 2, 128, 1);
  shape.activation = activation;
  simt::set_shared_bytes(1024 * kibibytes);
  ModelRun done = run_model(shape, dtype, [](Runtime& runtime) {
    RandomMatrices random(7);
    return to_graph(runtime, random_edges(random, 33, 401));
  });
  simt::set_shared_bytes(0);
  return done;
}
std::map<std::string, int> most_shared_bytes(const ModelRun& run) {
  std::map<std::string, int> most;
  for (const simt::LaunchReport& report : run.launches)
    most[report.name] = std::max(most[report.name], report.shared_bytes);
  return most;
}
std::set<std::string> names(const ModelRun& run) {
  std::set<std::string> all;
  for (const simt::LaunchReport& report : run.launches) all.insert(report.name);
  return all;
}

TEST_CASE("streamed weights of width 128 give the bits of resident ones") {
  for (const auto& [dtype, activation] :
       {std::pair{DType::f16, Activation::relu}, std::pair{DType::bf16, Activation::silu}}) {
    CAPTURE(name_of(dtype));
    CAPTURE(name_of(activation));
    const ModelRun usual = run(227, dtype, activation);
    CHECK(magnitude(to_matrix(usual.gradients)) > 0.0);
    CHECK(most_shared_bytes(usual).at("edge_forward") == 134'656);
    for (const int kibibytes : {163, 99}) {
      CAPTURE(kibibytes);
      const ModelRun less = run(kibibytes, dtype, activation);
      CHECK(names(less) == names(usual));
      CHECK(equal_bits(less.gradients, usual.gradients));
      const int masks = activation == Activation::relu ? 4096 : 0, streamed = kibibytes == 99 ? 81'920 : 0;
      const std::map<std::string, int> bytes = most_shared_bytes(less);
      CHECK(bytes.at("edge_forward") == 134'656 - streamed);
      CHECK(bytes.at("edge_backward") == 159'232 + masks - streamed);
    }
  }
}

}  // namespace
}  // namespace meshgrad::test
