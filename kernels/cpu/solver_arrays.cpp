// SPDX-License-Identifier: Apache-2.0
// Plain loops: the reference for the GPU version. On the CPU the host writes batches itself.
#include <meshgrad/kernels/tables.h>
#include <meshgrad/kernels/world_grid.h>

#include <algorithm>
#include <cmath>

namespace meshgrad::cpu {
namespace {

using world_grid::nearest_image;
using world_grid::times_plus;

/// Calls body(row) for every real row, kSlab rows to a task.
template <class Body>
void for_solver_rows(const Stream& stream, const Rows& rows, Body&& body) {
  constexpr int64_t kSlab = 4096;
  const int64_t real = rows.value();
  stream.parallel_for((real + kSlab - 1) / kSlab, [&](int64_t slab) {
    for (int64_t row = slab * kSlab; row < std::min(real, (slab + 1) * kSlab); ++row) body(row);
  });
}

/// (x - scale[column, 0]) * scale[column, 1] as it is stored.
template <class To>
To scaled(double x, const double* scale, int64_t column) {
  if (scale != nullptr) x = (x - scale[2 * column]) * scale[2 * column + 1];
  return To(static_cast<Accumulator<To>>(x));
}

template <class From, class To>
void map_columns_of(const MapColumns& args, const Stream& stream) {
  const From* from = args.from.data<From>() + args.from_column;
  const From* minus = args.minus.data_or_null<From>();
  const auto* scale = args.scale.data_or_null<double>();
  const auto* kept = args.kept.data_or_null<uint8_t>();
  To* to = args.to.data<To>() + args.to_column;
  const int64_t from_step = args.from.rows() == 1 ? 0 : args.from.width(), to_step = args.to.width();
  for_solver_rows(stream, args.rows, [&](int64_t row) {
    if (kept != nullptr && kept[row] != 0) return;
    for (int64_t c = 0; c < args.columns; ++c) {
      auto x = static_cast<double>(from[row * from_step + c]);
      if (minus != nullptr) {
        x -= static_cast<double>(minus[row * args.minus.width() + args.minus_column + c]);
        x = static_cast<double>(static_cast<Accumulator<To>>(x));
      }
      to[row * to_step + c] = scaled<To>(x, scale, c);
    }
  });
}

template <class S>
void advance_state_of(const AdvanceState& args, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t width = args.prediction.width();
  const S* prediction = args.prediction.data<S>();
  const auto* scale = args.scale.data<double>();
  const auto* values = args.values.data<uint8_t>();
  const auto* mask = args.mask.data<uint8_t>();
  const auto* current = args.current.data<float>();
  const auto* before = args.before.data_or_null<float>();
  auto* next = args.next.data<float>();
  for_solver_rows(stream, args.rows, [&](int64_t row) {
    for (int64_t c = 0, i = row * width; c < width; ++c, ++i) {
      if (mask[row] == 0) {
        next[i] = current[i];
        continue;
      }
      const auto given = static_cast<double>(static_cast<A>(prediction[i]));
      const auto change =
          static_cast<double>(static_cast<A>(times_plus(given, scale[2 * c + 1], scale[2 * c])));
      auto base = static_cast<double>(current[i]);
      if (before != nullptr) base = 2.0 * base - static_cast<double>(before[i]);
      if (values[c] != 0) base = 0.0;
      next[i] = static_cast<float>(base + change);
    }
  });
}

template <class S>
void edge_displacements_of(const EdgeDisplacements& args, const Stream& stream) {
  const int64_t dim = args.positions.width(), width = args.features.width();
  const auto* positions = args.positions.data<float>();
  const auto* senders = args.senders.data<int32_t>();
  const auto* receivers = args.receivers.data<int32_t>();
  const auto* scale = args.scale.data<double>();
  S* features = args.features.data<S>();
  for_solver_rows(stream, args.edges, [&](int64_t edge) {
    const float* sender = positions + senders[edge] * dim;
    const float* receiver = positions + receivers[edge] * dim;
    S* const row = features + edge * width + args.column;
    double squares = 0.0;
    for (int64_t axis = 0; axis <= dim; ++axis) {
      double d = std::sqrt(squares);
      if (axis < dim) {
        d = nearest_image(static_cast<double>(sender[axis]) - static_cast<double>(receiver[axis]),
                          args.period[static_cast<size_t>(axis)]);
      }
      squares = times_plus(d, d, squares);
      row[axis] = scaled<S>(static_cast<double>(static_cast<Accumulator<S>>(d)), scale, axis);
    }
  });
}

}  // namespace

const SolverArrayKernels solver_array_kernels{
    .map_columns =
        [](const MapColumns& args, const Stream& stream) {
          dispatch_storage(args.from.dtype(), [&]<class From>() {
            dispatch_cpu_storage(args.to.dtype(),
                                 [&]<class To>() { map_columns_of<From, To>(args, stream); });
          });
        },
    .advance_state =
        [](const AdvanceState& args, const Stream& stream) {
          dispatch_cpu_storage(args.prediction.dtype(),
                               [&]<class S>() { advance_state_of<S>(args, stream); });
        },
    .edge_displacements =
        [](const EdgeDisplacements& args, const Stream& stream) {
          dispatch_cpu_storage(args.features.dtype(),
                               [&]<class S>() { edge_displacements_of<S>(args, stream); });
        },
};

}  // namespace meshgrad::cpu
