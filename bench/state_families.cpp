// SPDX-License-Identifier: Apache-2.0
// Rows of the families of training and embedding: dropout, biases, the state error of unrolled predictions,
// the optimizer, and the arrays of a host application.
#include <meshgrad/kernels/elementwise.h>
#include <meshgrad/kernels/optimizer.h>
#include <meshgrad/kernels/solver_arrays.h>
#include <meshgrad/kernels/state_error.h>

#include <fmt/format.h>

#include <cmath>

#include "families.h"
#include "reference/training.h"

namespace meshgrad::bench {
namespace {

std::string described(const RowSizes& n, int64_t columns) {
  return fmt::format("{} rows of {}", n.rows, columns);
}

/// Two of three rows count.
struct Mask {
  std::vector<uint8_t> base;
  Tensor tensor;
  Mask(const Case& c, const RowSizes& n) : base(static_cast<size_t>(n.base)) {
    for (size_t i = 0; i < base.size(); ++i) base[i] = i % 3 != 0 ? 1 : 0;
    std::vector<uint8_t> all;
    for (int64_t copy = 0; copy < c.scale().copies; ++copy) all.insert(all.end(), base.begin(), base.end());
    tensor = Tensor::from<uint8_t>(c.runtime(), all, {n.rows}, Tag::data);
  }
};

Workload accumulate_error_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const DType sums = c->accumulator();
  const Input before = c->rows(n.base, kOutputs, sums), target = c->rows(n.base, kOutputs, sums);
  const Input prediction = c->rows(n.base, kOutputs);
  const Mask mask(*c, n);
  const AccumulateErrorForward args{.rows = n.rows,
                                    .before = before.tensor,
                                    .prediction = prediction.tensor,
                                    .target = target.tensor,
                                    .mask = mask.tensor,
                                    .after = c->written({n.rows, kOutputs}, sums)};
  const Stream& stream = c->stream();
  Workload work = row_workload(
      c, work_of(args), [&stream, args] { kernels::accumulate_error_forward(args, stream); },
      [=](Case& checked) {
        checked.expect("after", args.after,
                       reference::accumulate_error(before.base, prediction.base, target.base, mask.base), 3);
      });
  work.description = described(n, kOutputs);
  return work;
}

Workload accumulate_error_backward_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const DType sums = c->accumulator();
  const Input d_after = c->rows(n.base, kOutputs, sums);
  const Mask mask(*c, n);
  const AccumulateErrorBackward args{.rows = n.rows,
                                     .d_after = d_after.tensor,
                                     .mask = mask.tensor,
                                     .d_before = c->written({n.rows, kOutputs}, sums),
                                     .d_prediction = c->written({n.rows, kOutputs}, c->storage())};
  const Stream& stream = c->stream();
  Workload work = row_workload(
      c, work_of(args), [&stream, args] { kernels::accumulate_error_backward(args, stream); },
      [=](Case& checked) {
        const Matrix expected = reference::masked(d_after.base, mask.base);
        checked.expect("d_before", args.d_before, expected, 1);
        checked.expect("d_prediction", args.d_prediction, expected, 1);
      });
  work.description = described(n, kOutputs);
  return work;
}

/// A model's node inputs: the components of a prediction, then one column for each of nine node types.
constexpr int64_t kColumns = kOutputs + 9;
std::vector<int32_t> source_of_columns() {
  std::vector<int32_t> source(static_cast<size_t>(kColumns), -1);
  for (int32_t column = 0; column < kOutputs; ++column) source[static_cast<size_t>(column)] = column;
  return source;
}

Workload add_columns_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input given = c->rows(n.base, kColumns), shift = c->rows(n.base, kOutputs, c->accumulator());
  const Input ratio = c->vector(kColumns, 1.0);
  const std::vector<int32_t> source = source_of_columns();
  const AddColumnsForward args{.rows = n.rows,
                               .given = given.tensor,
                               .shift = shift.tensor,
                               .source = Tensor::from<int32_t>(c->runtime(), source, {kColumns}, Tag::data),
                               .ratio = ratio.tensor,
                               .shifted = c->written({n.rows, kColumns}, c->storage())};
  const Stream& stream = c->stream();
  Workload work = row_workload(
      c, work_of(args), [&stream, args] { kernels::add_columns_forward(args, stream); },
      [=](Case& checked) {
        checked.expect("shifted", args.shifted,
                       reference::add_columns(given.base, shift.base, source, ratio.base), 2);
      });
  work.description = described(n, kColumns);
  return work;
}

/// Of d_shifted only the columns with a source need to be read.
Workload add_columns_backward_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input d_shifted = c->rows(n.base, kColumns), ratio = c->vector(kColumns, 1.0);
  const std::vector<int32_t> source = source_of_columns();
  const AddColumnsBackward args{.rows = n.rows,
                                .d_shifted = d_shifted.tensor,
                                .source = Tensor::from<int32_t>(c->runtime(), source, {kColumns}, Tag::data),
                                .ratio = ratio.tensor,
                                .d_shift = c->written({n.rows, kOutputs}, c->accumulator())};
  const Stream& stream = c->stream();
  Workload work = row_workload(
      c, work_of(args), [&stream, args] { kernels::add_columns_backward(args, stream); },
      [=](Case& checked) {
        checked.expect("d_shift", args.d_shift,
                       reference::add_columns_backward(d_shifted.base, kOutputs, source, ratio.base), 2);
      });
  work.description = described(n, kColumns);
  return work;
}

Tensor state_tensor(const Case& c, const StepState& state) {
  const auto* const first = reinterpret_cast<const uint8_t*>(&state);
  const std::vector<uint8_t> bytes(first, first + kStepStateBytes);
  return Tensor::from<uint8_t>(c.runtime(), bytes, {kStepStateBytes}, Tag::optimizer);
}
Tensor scalar(const Case& c, double value) {
  return Tensor::from<double>(c.runtime(), std::vector<double>{value}, {1}, Tag::data);
}

/// One Adam update of as many parameters as a row tensor has elements. The first run clears the gradients, so
/// timed runs update by zero, with the same reads and writes; decay rates of 1 keep the moments from becoming
/// denormal.
Workload adam_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const DType dtype = c->accumulator();
  const Input parameters = c->rows(n.base, n.width, dtype), gradients = c->rows(n.base, n.width, dtype);
  const Shape flat{n.rows * n.width};
  const Tensor first = Tensor::zeros(c->runtime(), flat, dtype, Tag::optimizer);
  const Tensor second = Tensor::zeros(c->runtime(), flat, dtype, Tag::optimizer);
  StepState state;
  state.gradient_factor = 0.5;
  state.step_size = 0.125;
  state.second_correction = 2.0;
  OptimizerUpdate args{.settings = {},
                       .state = state_tensor(*c, state),
                       .parameters = parameters.tensor.reshaped(flat),
                       .gradients = gradients.tensor.reshaped(flat),
                       .first_moment = first,
                       .second_moment = second,
                       .storage = {}};
  const Stream& stream = c->stream();
  const auto checked_run = [&stream, args] { kernels::optimizer_update(args, stream); };
  const auto ref = [=, settings = args.settings](Case& checked) {
    Matrix p = parameters.base, m = gradients.base, v = gradients.base;
    for (size_t i = 0; i < p.v.size(); ++i) {
      const double g = state.gradient_factor * gradients.base.v[i];
      m.v[i] = (1.0 - settings.beta1) * g;
      v.v[i] = (1.0 - settings.beta2) * g * g;
      p.v[i] -= state.step_size * m.v[i] / (std::sqrt(v.v[i]) * state.second_correction + settings.epsilon);
    }
    checked.expect("parameters", parameters.tensor, p, 8);
    checked.expect("first_moment", first.reshaped({n.rows, n.width}), m, 2);
    checked.expect("second_moment", second.reshaped({n.rows, n.width}), v, 2);
    checked.expect("gradients", gradients.tensor, Matrix(n.base, n.width), 1);
  };
  args.settings.beta1 = args.settings.beta2 = 1.0;
  Workload work = row_workload(
      c, work_of(args), [&stream, args] { kernels::optimizer_update(args, stream); }, ref);
  work.check = [=] { return c->check({}, checked_run, ref); };
  return work;
}

/// A few scalars: this times a launch.
Workload scalar_workload(const std::shared_ptr<Case>& c, const Work& work, const std::function<void()>& run,
                         const std::function<void(Case&)>& reference) {
  Workload workload = row_workload(c, work, run, reference);
  workload.description = "one step's scalars";
  return workload;
}

Workload note_loss_work(const std::shared_ptr<Case>& c) {
  StepState state;
  state.loss_scale = 4.0;
  const NoteLoss args{.state = state_tensor(*c, state),
                      .sum = scalar(*c, 3.0),
                      .window_weight = scalar(*c, 8.0),
                      .seed = c->written({1}, DType::f64)};
  const Stream& stream = c->stream();
  return scalar_workload(
      c, work_of(args), [&stream, args] { kernels::note_loss(args, stream); },
      [=](Case& checked) { checked.expect("seed", args.seed, Matrix(1, 1, 4.0 / 8.0), 1); });
}

Workload optimizer_decide_work(const std::shared_ptr<Case>& c) {
  StepState state;
  state.window_loss = 2.0;
  state.window_weight = 8.0;
  const OptimizerDecision args{.settings = {.rate = {.peak = 1e-3}},
                               .state = state_tensor(*c, state),
                               .squared_norm = scalar(*c, 4.0),
                               .non_finite = Tensor::zeros(c->runtime(), {1}, DType::i32, Tag::data)};
  const Stream& stream = c->stream();
  return scalar_workload(
      c, work_of(args), [&stream, args] { kernels::optimizer_decide(args, stream); },
      [=](Case& checked) {
        const Tensor host = to_host(args.state, stream);
        const StepState& after = *static_cast<const StepState*>(host.raw());
        const Tensor decided = scalar(checked, after.gradient_norm + after.last_loss);
        checked.expect("gradient norm + loss", decided, Matrix(1, 1, 2.0 + 2.0 / 8.0), 1);
        checked.expect("squared_norm", args.squared_norm, Matrix(1, 1), 1);
      });
}

/// Node features of a solver's field.
Workload map_columns_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input from = c->rows(n.base, kOutputs, DType::f32);
  const std::vector<double> scale = {0.5, 2.0, 0.25, 4.0};
  const MapColumns args{.rows = n.rows,
                        .columns = kOutputs,
                        .from = from.tensor,
                        .scale = Tensor::from<double>(c->runtime(), scale, {kOutputs, 2}, Tag::data),
                        .to = c->written({n.rows, kOutputs}, c->storage())};
  const Stream& stream = c->stream();
  return row_workload(
      c, work_of(args), [&stream, args] { kernels::map_columns(args, stream); },
      [=](Case& checked) {
        Matrix expected = from.base;
        for (size_t i = 0; i < expected.v.size(); ++i)
          expected.v[i] = (expected.v[i] - scale[2 * (i % kOutputs)]) * scale[2 * (i % kOutputs) + 1];
        checked.expect("to", args.to, expected, 2);
      });
}

Workload advance_state_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input prediction = c->rows(n.base, kOutputs), current = c->rows(n.base, kOutputs, DType::f32);
  const std::vector<double> scale(size_t{2} * kOutputs, 0.5);
  const std::vector<uint8_t> all(static_cast<size_t>(n.rows), 1);
  Runtime& runtime = c->runtime();
  const AdvanceState args{.rows = n.rows,
                          .prediction = prediction.tensor,
                          .scale = Tensor::from<double>(runtime, scale, {kOutputs, 2}, Tag::data),
                          .values = Tensor::zeros(runtime, {kOutputs}, DType::u8, Tag::data),
                          .mask = Tensor::from<uint8_t>(runtime, all, {n.rows}, Tag::data),
                          .current = current.tensor,
                          .before = {},
                          .next = c->written({n.rows, kOutputs}, DType::f32)};
  return row_workload(
      c, work_of(args), [&runtime, args] { kernels::advance_state(args, runtime.stream()); },
      [=](Case& checked) {
        Matrix expected = current.base;
        for (size_t i = 0; i < expected.v.size(); ++i) expected.v[i] += 0.5 * prediction.base.v[i] + 0.5;
        checked.expect("next", args.next, expected, 3);
      });
}

Workload edge_displacements_work(const std::shared_ptr<Case>& c) {
  Runtime& runtime = c->runtime();
  const Mesh mesh = make_mesh(runtime, c->scale());
  const int64_t nodes = c->scale().nodes(), edges = mesh.graph.edges;
  std::vector<float> positions;
  for (int64_t node = 0; node < nodes; ++node)
    positions.insert(positions.end(), {static_cast<float>(node % 61), static_cast<float>(node % 7)});
  const std::vector<double> scale = {0.0, 1.0, 0.0, 1.0, 0.0, 1.0};
  const EdgeDisplacements args{.edges = edges,
                               .senders = mesh.graph.senders,
                               .receivers = mesh.graph.receivers,
                               .positions = Tensor::from<float>(runtime, positions, {nodes, 2}, Tag::data),
                               .scale = Tensor::from<double>(runtime, scale, {3, 2}, Tag::data),
                               .features = c->written({edges, 3}, c->storage())};
  Workload work = row_workload(
      c, work_of(args), [&runtime, args] { kernels::edge_displacements(args, runtime.stream()); },
      [=](Case& checked) {
        Matrix expected(edges, 3);
        for (size_t edge = 0; edge < static_cast<size_t>(edges); ++edge) {
          const int32_t from = mesh.whole.senders[edge], to = mesh.whole.receivers[edge];
          const double x = from % 61 - to % 61, y = from % 7 - to % 7;
          expected.v[3 * edge] = x, expected.v[3 * edge + 1] = y;
          expected.v[3 * edge + 2] = std::sqrt(x * x + y * y);
        }
        checked.expect("features", args.features, expected, 1);
      });
  work.description = fmt::format("{} edges", edges);
  return work;
}

/// Of rows of a step: half of the values are dropped.
Workload dropout_work(const std::shared_ptr<Case>& c) {
  const RowSizes n(*c);
  const Input x = c->rows(n.base, n.width);
  std::vector<int64_t> keys(static_cast<size_t>(n.rows));
  for (int64_t i = 0; i < n.rows; ++i) keys[static_cast<size_t>(i)] = i % n.base;
  Runtime& runtime = c->runtime();
  const Dropout args{
      .rows = n.rows,
      .key = {.rate = 0.5, .row_keys = Tensor::from<int64_t>(runtime, keys, {n.rows}, Tag::data)},
      .x = x.tensor,
      .y = c->written({n.rows, n.width}, c->storage())};
  const Stream& stream = c->stream();
  return row_workload(
      c, work_of(args), [&stream, args] { kernels::dropout(args, stream); },
      [=](Case& checked) {
        const DropoutMask mask = meshgrad::mask_of({.rate = 0.5});
        Matrix expected = x.base;
        for (int64_t i = 0; i < n.base; ++i)
          for (int64_t j = 0; j < n.width; ++j) expected.at(i, j) *= keep(mask, i, j) ? 2.0 : 0.0;
        checked.expect("y", args.y, expected, 1);
      });
}

Workload maximum_work(const std::shared_ptr<Case>& c, bool backward) {
  const RowSizes n(*c);
  const Input a = c->rows(n.base, n.width), b = c->rows(n.base, n.width), d_y = c->rows(n.base, n.width);
  const MaximumForward args{a.tensor, b.tensor, c->written({n.rows, n.width}, c->storage())};
  const MaximumBackward back{.a = a.tensor,
                             .b = b.tensor,
                             .d_y = d_y.tensor,
                             .d_a = args.y,
                             .d_b = c->written({n.rows, n.width}, c->storage())};
  const Stream& stream = c->stream();
  const auto run = [&stream, args, back, backward] {
    if (backward) {
      kernels::maximum_backward(back, stream);
    } else {
      kernels::maximum_forward(args, stream);
    }
  };
  return row_workload(c, backward ? work_of(back) : work_of(args), run, [=](Case& checked) {
    Matrix first = backward ? d_y.base : a.base, second(n.base, n.width);
    for (size_t i = 0; i < first.v.size(); ++i)
      if (b.base.v[i] > a.base.v[i]) first.v[i] = backward ? 0.0 : b.base.v[i], second.v[i] = d_y.base.v[i];
    checked.expect(backward ? "d_a" : "y", args.y, first, 1);
    if (backward) checked.expect("d_b", back.d_b, second, 1);
  });
}

Workload bias_work(const std::shared_ptr<Case>& c, bool backward) {
  const RowSizes n(*c);
  const Input x = c->rows(n.base, n.width), bias = c->vector(n.width);
  Runtime& runtime = c->runtime();
  if (backward) {
    const AddBiasBackward args{.rows = n.rows, .d_y = x.tensor, .d_bias = c->accumulated({n.width})};
    return row_workload(
        c, work_of(args), [&runtime, args] { kernels::add_bias_backward(args, runtime, runtime.stream()); },
        [=](Case& checked) {
          Matrix total(1, n.width);
          for (int64_t i = 0; i < n.base; ++i)
            for (int64_t j = 0; j < n.width; ++j) total.at(0, j) += x.base.at(i, j);
          checked.expect_total("d_bias", args.d_bias, total, n.base, 1.0);
        });
  }
  const AddBiasForward args{
      .x = x.tensor, .bias = bias.tensor, .y = c->written({n.rows, n.width}, c->storage())};
  return row_workload(
      c, work_of(args), [&runtime, args] { kernels::add_bias_forward(args, runtime.stream()); },
      [=](Case& checked) {
        Matrix expected = x.base;
        for (int64_t i = 0; i < n.base; ++i)
          for (int64_t j = 0; j < n.width; ++j) expected.at(i, j) += bias.base.at(0, j);
        checked.expect("y", args.y, expected, 2);
      });
}

}  // namespace

std::vector<Family> state_families() {
  return {{"dropout", "dropout", dropout_work},
          {"maximum/forward", "maximum_forward", [](const auto& c) { return maximum_work(c, false); }},
          {"maximum/backward", "maximum_backward", [](const auto& c) { return maximum_work(c, true); }},
          {"bias/forward", "add_bias_forward", [](const auto& c) { return bias_work(c, false); }},
          {"bias/backward", "add_bias_backward", [](const auto& c) { return bias_work(c, true); }},
          {"accumulate_error/forward", "accumulate_error_forward", accumulate_error_work},
          {"accumulate_error/backward", "accumulate_error_backward", accumulate_error_backward_work},
          {"add_columns/forward", "add_columns_forward", add_columns_work},
          {"add_columns/backward", "add_columns_backward", add_columns_backward_work},
          {"adam", "optimizer_update", adam_work, true},
          {"note_loss", "note_loss", note_loss_work, true},
          {"optimizer_decide", "optimizer_decide", optimizer_decide_work, true},
          {"map_columns", "map_columns", map_columns_work},
          {"advance_state", "advance_state", advance_state_work},
          {"edge_displacements", "edge_displacements", edge_displacements_work}};
}

}  // namespace meshgrad::bench
