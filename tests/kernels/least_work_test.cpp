// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu_card.h>

#include <concepts>
#include <set>
#include <string>

#include "gradcheck.h"
#include "support.h"

namespace meshgrad::test {
namespace {

template <class Args>
constexpr bool kHasWork = requires(const Args& args) {
  { work_of(args) } -> std::same_as<Work>;
};
template <class Args, class... More>
bool has_work(void (*)(const Args&, More...)) {
  return kHasWork<Args>;
}
/// A question that the host answers.
template <class Args>
bool has_work(bool (*)(const Args&)) {
  return true;
}

TEST_CASE("every kernel has a work function") {
  struct NoWork {};
  CHECK_FALSE(has_work(static_cast<void (*)(const NoWork&, const Stream&)>(nullptr)));
  kernels::visit_kernels(kernels::cpu_tables(), [](std::string_view, std::string_view kernel, auto entry) {
    CAPTURE(kernel);
    CHECK(has_work(entry));
  });
}

/// Calls the kernels that no op runs.
void call_kernels_of_a_step(Runtime& runtime) {
  const Stream& stream = runtime.stream();
  const auto zeros = [&](const Shape& shape, DType dtype) {
    return Tensor::zeros(runtime, shape, dtype, Tag::data, "test");
  };
  const Tensor state = zeros({kStepStateBytes}, DType::u8), scalar = zeros({1}, DType::f64);
  const Tensor flag = zeros({1}, DType::i32);
  const auto values = [&] { return zeros({4}, DType::f32); };
  kernels::note_loss({.state = state, .sum = scalar, .window_weight = scalar, .seed = scalar}, stream);
  kernels::optimizer_decide({.settings = {}, .state = state, .squared_norm = scalar, .non_finite = flag},
                            stream);
  kernels::optimizer_update({.settings = {},
                             .state = state,
                             .parameters = values(),
                             .gradients = values(),
                             .first_moment = values(),
                             .second_moment = values(),
                             .storage = {},
                             .average = {}},
                            stream);
  kernels::sum_of_squares({.x = values(), .sum = scalar, .non_finite = flag}, runtime, stream);
  kernels::cast({.from = values(), .to = zeros({4}, DType::bf16)}, stream);
  kernels::activation_forward({.x = values(), .y = values()}, stream);
  Graph found = build_graph(runtime, 2, std::vector<int32_t>{0}, std::vector<int32_t>{1});
  const Graph mesh = build_graph(runtime, 2, {}, {});
  found.counts = zeros({3}, DType::i64);
  kernels::find_world_edges({.mesh = mesh,
                             .positions = zeros({2, 2}, DType::f32),
                             .labels = zeros({3, 2}, DType::i32),
                             .radius = 1.0,
                             .scale = zeros({2, 3}, DType::f64),
                             .found = found,
                             .features = zeros({1, 3}, DType::f32),
                             .missing = zeros({1}, DType::i64)},
                            runtime, stream);
  const Tensor fields = zeros({2, 2}, DType::f32), two = zeros({2}, DType::u8);
  kernels::map_columns({.rows = 2, .columns = 2, .from = fields, .to = fields}, stream);
  kernels::advance_state({.rows = 2,
                          .prediction = fields,
                          .scale = zeros({2, 2}, DType::f64),
                          .values = two,
                          .mask = two,
                          .current = fields,
                          .before = {},
                          .next = fields},
                         stream);
  kernels::edge_displacements({.edges = 1,
                               .senders = zeros({1}, DType::i32),
                               .receivers = zeros({1}, DType::i32),
                               .positions = fields,
                               .scale = zeros({3, 2}, DType::f64),
                               .features = zeros({1, 3}, DType::f32)},
                              stream);
}

TEST_CASE("every kernel call is in the work trace, and none without one") {
  Runtime runtime = make_runtime();
  CHECK(WorkTrace::current() == nullptr);
  std::set<std::string> called;
  {
    const WorkTrace trace;
    CHECK(WorkTrace::current() == &trace);
    for (const OpSample& sample : all_op_samples(runtime, 1)) gradients_of(runtime, sample, 1);
    call_kernels_of_a_step(runtime);
    for (const WorkTrace::Call& call : trace.calls()) {
      CAPTURE(call.kernel);
      called.emplace(call.kernel);
      const bool scalars = call.kernel == "note_loss" || call.kernel == "optimizer_decide";
      CHECK((call.work.bytes > 0.0) == !scalars);
    }
  }
  CHECK(WorkTrace::current() == nullptr);
  size_t kernels = 0;
  kernels::visit_kernels(kernels::cpu_tables(), [&](std::string_view, std::string_view kernel, auto) {
    CAPTURE(kernel);
    if (kernel == "saves_hidden") return;  // a question that the host answers
    CHECK(called.contains(std::string(kernel)));
    ++kernels;
  });
  CHECK(called.size() == kernels);
}

constexpr int64_t kWorkWidth = 16;
constexpr double kProduct = 2.0 * kWorkWidth * kWorkWidth;  // FLOPs of a row through a weight
constexpr double kRow = 2.0 * kWorkWidth;                   // bytes, in 16 bits
constexpr double kWeight = 2.0 * kWorkWidth * kWorkWidth;   // bytes
constexpr double kVector = 4.0 * kWorkWidth;                // of the accumulation dtype

/// Three layers with a LayerNorm, in 16 bits; tensors are not filled.
struct WorkCase {
  Runtime runtime = make_runtime();
  Tensor rows(int64_t count) { return tensor({count, kWorkWidth}, DType::bf16); }
  Tensor weight() { return tensor({kWorkWidth, kWorkWidth}, DType::bf16); }
  Tensor vector() { return tensor({kWorkWidth}, DType::f32); }
  Tensor d_weight() { return tensor({kWorkWidth, kWorkWidth}, DType::f32); }
  MlpWeights weights() {
    return {.first_bias = vector(),
            .weights = {weight(), weight()},
            .biases = {vector(), vector()},
            .norm = Norm::layer,
            .gain = vector(),
            .norm_bias = vector()};
  }
  MlpWeightGradients gradients() {
    return {.first_bias = vector(),
            .weights = {d_weight(), d_weight()},
            .biases = {vector(), vector()},
            .gain = vector(),
            .norm_bias = vector()};
  }

 private:
  Tensor tensor(const Shape& shape, DType dtype) {
    return Tensor::empty(runtime, shape, dtype, Tag::data, "test");
  }
};

TEST_CASE("the work of an MLP, counted by hand") {
  WorkCase c;
  const int64_t rows = 100;
  const Tensor x = c.rows(rows), z = c.rows(rows);
  MlpForward forward{.rows = rows,
                     .inputs = {{x, c.weight()}, {z, c.weight()}},
                     .weights = c.weights(),
                     .residual = x,
                     .out = c.rows(rows),
                     .saved = {}};
  // Four weights; five vectors. The residual is an input, which is read once.
  CHECK(work_of(forward).flops == 4 * rows * kProduct);
  CHECK(work_of(forward).bytes == 3 * rows * kRow + 4 * kWeight + 5 * kVector);
  forward.residual = c.rows(rows);
  CHECK(work_of(forward).bytes == 4 * rows * kRow + 4 * kWeight + 5 * kVector);
  NodeTermsAhead terms{c.weight(), c.weight(), {}, {}, {}};
  forward.node_terms = &terms;
  CHECK(work_of(forward).flops == 4 * rows * kProduct);  // asked for, but not made
  terms.sender = c.rows(rows), terms.receiver = c.rows(rows);
  CHECK(work_of(forward).flops == 6 * rows * kProduct);
  CHECK(work_of(forward).bytes == 6 * rows * kRow + 6 * kWeight + 5 * kVector);

  const Tensor d_out = c.rows(rows);
  MlpBackward backward{.rows = rows,
                       .inputs = forward.inputs,
                       .weights = forward.weights,
                       .saved = {},
                       .d_out = d_out,
                       .d_inputs = {d_out, c.rows(rows)},
                       .accumulate = {true, false},
                       .d_first_weights = {c.d_weight(), c.d_weight()},
                       .d_weights = c.gradients()};
  // Recomputed, then gradients of inputs and of weights. The first input's is added to what was read.
  const double d_weights = 2 * (4 * 2 * kWeight + 5 * kVector);
  CHECK(work_of(backward).flops == 3 * 4 * rows * kProduct);
  CHECK(work_of(backward).bytes == 5 * rows * kRow + 4 * kWeight + 5 * kVector + d_weights);
  backward.saved = {{c.rows(rows), c.rows(rows)}, c.rows(rows)};
  CHECK(work_of(backward).flops == 2 * 4 * rows * kProduct);
  CHECK(work_of(backward).bytes == 8 * rows * kRow + 4 * kWeight + 5 * kVector + d_weights);
  backward.d_inputs = {Tensor(), Tensor()};
  CHECK(work_of(backward).flops == 6 * rows * kProduct);
}

TEST_CASE("the work of an edge update, counted by hand") {
  WorkCase c;
  const std::vector<int32_t> senders{0, 1, 2, 3, 0, 0}, receivers{1, 0, 1, 2, 2, 2};
  Graph graph = build_graph(c.runtime, 4, senders, receivers);
  graph.owned_nodes = 3;
  const double edges = 6, nodes = 4, owned = 3;
  EdgeUpdateForward forward{.graph = &graph,
                            .terms = {c.rows(4), c.weight(), c.weight()},
                            .edges = {c.rows(6), c.weight()},
                            .weights = c.weights(),
                            .edges_out = c.rows(6),
                            .aggregate = c.rows(3),
                            .saved = {}};
  CHECK(work_of(forward).flops == (3 * edges + nodes + owned) * kProduct);
  CHECK(work_of(forward).bytes ==
        2 * edges * kRow + (nodes + owned) * kRow + 8 * edges + 5 * kWeight + 5 * kVector);
  NodeTermsAhead terms;
  forward.node_terms = &terms;
  CHECK(work_of(forward).flops == (3 * edges + nodes + owned) * kProduct);
  terms.sender = c.rows(4), terms.receiver = c.rows(3);
  CHECK(work_of(forward).flops == 3 * edges * kProduct);
  CHECK(work_of(forward).bytes ==
        2 * edges * kRow + (nodes + 2 * owned) * kRow + 8 * edges + 3 * kWeight + 5 * kVector);
  const EdgeUpdateBackward backward{.graph = &graph,
                                    .terms = forward.terms,
                                    .edges = forward.edges,
                                    .weights = forward.weights,
                                    .saved = {},
                                    .d_edges_out = c.rows(6),
                                    .d_aggregate = c.rows(3),
                                    .d_edges = c.rows(6),
                                    .d_nodes = c.rows(4),
                                    .d_sender_weight = c.d_weight(),
                                    .d_receiver_weight = c.d_weight(),
                                    .d_edge_weight = c.d_weight(),
                                    .d_weights = c.gradients()};
  CHECK(work_of(backward).flops == 3 * (3 * edges + nodes + owned) * kProduct);
  CHECK(work_of(backward).bytes == 3 * edges * kRow + (2 * nodes + owned) * kRow + 8 * edges + 5 * kWeight +
                                       5 * kVector + 2 * (5 * 2 * kWeight + 5 * kVector));
}

TEST_CASE("the least time is at the peak that binds") {
  const gpu::Card& h200 = gpu::card("h200");
  CHECK(least_seconds({.flops = 989e9, .bytes = 1.0}, h200, DType::bf16) == doctest::Approx(1e-3));
  CHECK(least_seconds({.flops = 67e9, .bytes = 1.0}, h200, DType::f32) == doctest::Approx(1e-3));
  CHECK(least_seconds({.flops = 494e9, .bytes = 1.0}, h200, DType::f32, true) == doctest::Approx(1e-3));
  CHECK(least_seconds({.flops = 1.0, .bytes = 4.8e9}, h200, DType::f16) == doctest::Approx(1e-3));
  CHECK(least_seconds({.flops = 1.0, .bytes = 2.039e9}, gpu::card("a100"), DType::f16) ==
        doctest::Approx(1e-3));
  CHECK(invalid_argument_text([] { gpu::card("b300"); }) ==
        "[GPU] needed \"t4\", \"rtx4070\", \"rtx4090\", \"l40s\", \"a100\", \"h100\", \"h200\", \"b200\", "
        "got \"b300\"; fix: name one of these");
}

}  // namespace
}  // namespace meshgrad::test
