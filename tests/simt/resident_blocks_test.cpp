// SPDX-License-Identifier: Apache-2.0
// Fused kernels launch as many thread blocks as the device holds at the same time: on smaller GPUs, those
// that the shared memory of a multiprocessor has room for. A further block would load all weights again.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>

#include <algorithm>
#include <map>

#include "model_run.h"

namespace meshgrad::test {
namespace {

constexpr int kMultiprocessors = 3;

/// Of a device whose blocks may have `kibibytes` of shared memory, at width 64: the fewest blocks that each
/// kernel was launched with, and the gradients of all parameters.
struct Outcome {
  std::map<std::string, int64_t> blocks;
  Matrix gradients;
};
Outcome run(int kibibytes, Activation activation) {
  ModelCase shape = model_case(4, 2, 64, 2);
  shape.activation = activation;
  simt::set_shared_bytes(kibibytes * 1024);
  const ModelRun run = run_model(shape, DType::f16, [](Runtime& runtime) {
    RandomMatrices random(7);
    return to_graph(runtime, random_edges(random, 64, 1201));
  });
  simt::set_shared_bytes(0);
  Outcome outcome;
  for (const simt::LaunchReport& report : run.launches) {
    int64_t& least = outcome.blocks.try_emplace(report.name, report.blocks).first->second;
    least = std::min(least, report.blocks);
  }
  outcome.gradients = to_matrix(run.gradients);
  return outcome;
}

TEST_CASE("a fused kernel has as many blocks as fit" *
          doctest::skip(gpu::multiprocessors(0) != kMultiprocessors)) {
  for (const Activation activation : {Activation::relu, Activation::silu}) {
    CAPTURE(name_of(activation));
    const Outcome usual = run(227, activation);
    for (const char* name : {"mlp_forward", "mlp_backward", "edge_forward", "edge_backward"}) {
      CAPTURE(name);
      CHECK(usual.blocks.at(name) == 2 * kMultiprocessors);
    }
    // Compute capability 8.6 and 8.9: 100 KiB a multiprocessor, so two blocks of 50,176 bytes. edge_backward
    // takes 55,296, with relu 59,392; mlp_backward 44,544, with relu 48,640.
    const Outcome narrow = run(99, activation);
    CHECK(narrow.blocks.at("mlp_forward") == 2 * kMultiprocessors);
    CHECK(narrow.blocks.at("mlp_backward") == 2 * kMultiprocessors);
    CHECK(narrow.blocks.at("edge_forward") == 2 * kMultiprocessors);
    CHECK(narrow.blocks.at("edge_backward") == kMultiprocessors);
    // The same sums in another order of tiles.
    CHECK(magnitude(usual.gradients) > 0.0);
    Matrix difference = usual.gradients;
    for (size_t i = 0; i < difference.v.size(); ++i) difference.v[i] -= narrow.gradients.v[i];
    CHECK(magnitude(difference) <= tolerance(DType::f32, 1201, magnitude(usual.gradients)));
  }
}

}  // namespace
}  // namespace meshgrad::test
