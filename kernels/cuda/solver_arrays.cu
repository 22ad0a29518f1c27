// SPDX-License-Identifier: Apache-2.0
// One thread per element, or per edge: rows have a few columns. In f64, of which a consumer's GPU has little;
// these kernels wait for memory even so.
#include <meshgrad/kernels/cuda/row_access.h>
#include <meshgrad/kernels/tables.h>
#include <meshgrad/kernels/world_grid.h>

namespace meshgrad::cuda {
namespace {

using world_grid::nearest_image;
using world_grid::times_plus;

constexpr int kSolverThreads = 256;
constexpr int kSolverBlocksPerSm = 8;

/// Calls body(i) for the numbers below `count` of this thread.
template <class Body>
__device__ void for_each_number(int64_t count, const Body& body) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) body(i);
}

/// (x - scale[column, 0]) * scale[column, 1] as it is stored.
template <class To>
__device__ To scaled(double x, const double* scale, int64_t column) {
  if (scale != nullptr) x = (x - scale[2 * column]) * scale[2 * column + 1];
  if constexpr (sizeof(To) == sizeof(double)) {
    return x;
  } else {
    return to_storage<To>(static_cast<float>(x));
  }
}

template <class From, class To>
struct MapArgs {
  Rows rows;
  int64_t columns, from_step, minus_step, to_step;
  const From *from, *minus;  // the latter may be null, as the next two
  const double* scale;
  const uint8_t* kept;
  To* to;
};
template <class From, class To>
__global__ void map_columns_kernel(MapArgs<From, To> args) {
  for_each_number(real_rows(args.rows) * args.columns, [&](int64_t i) {
    const int64_t row = i / args.columns, c = i - row * args.columns;
    if (args.kept != nullptr && args.kept[row] != 0) return;
    auto x = static_cast<double>(args.from[row * args.from_step + c]);
    if (args.minus != nullptr) {
      x -= static_cast<double>(args.minus[row * args.minus_step + c]);
      if constexpr (sizeof(To) < sizeof(double)) x = static_cast<double>(static_cast<float>(x));
    }
    args.to[row * args.to_step + c] = scaled<To>(x, args.scale, c);
  });
}

template <class T>
struct AdvanceArgs {
  Rows rows;
  int64_t width;
  const T* prediction;
  const double* scale;
  const uint8_t *values, *mask;
  const float *current, *before;  // the latter may be null
  float* next;
};
template <class T>
__global__ void advance_state_kernel(AdvanceArgs<T> args) {
  for_each_number(real_rows(args.rows) * args.width, [&](int64_t i) {
    const int64_t row = i / args.width, c = i - row * args.width;
    if (args.mask[row] == 0) {
      args.next[i] = args.current[i];
      return;
    }
    const auto given = static_cast<double>(to_float(args.prediction[i]));
    const auto change = static_cast<float>(times_plus(given, args.scale[2 * c + 1], args.scale[2 * c]));
    auto base = static_cast<double>(args.current[i]);
    if (args.before != nullptr) base = 2.0 * base - static_cast<double>(args.before[i]);
    if (args.values[c] != 0) base = 0.0;
    args.next[i] = static_cast<float>(base + static_cast<double>(change));
  });
}

template <class T>
struct DisplacementArgs {
  Rows edges;
  int dim;
  int64_t step;
  const int32_t *senders, *receivers;
  const float* positions;
  double period[3];
  const double* scale;
  T* features;
};
template <class T>
__global__ void edge_displacements_kernel(DisplacementArgs<T> args) {
  for_each_number(real_rows(args.edges), [&](int64_t edge) {
    const float* sender = args.positions + int64_t{args.senders[edge]} * args.dim;
    const float* receiver = args.positions + int64_t{args.receivers[edge]} * args.dim;
    T* const row = args.features + edge * args.step;
    double squares = 0.0;
    for (int axis = 0; axis < args.dim; ++axis) {
      const double d = nearest_image(static_cast<double>(sender[axis]) - static_cast<double>(receiver[axis]),
                                     args.period[axis]);
      squares = times_plus(d, d, squares);
      row[axis] = scaled<T>(static_cast<double>(static_cast<float>(d)), args.scale, axis);
    }
    row[args.dim] = scaled<T>(static_cast<double>(static_cast<float>(sqrt(squares))), args.scale, args.dim);
  });
}

LaunchShape solver_shape(const Stream& stream, int64_t items) {
  return {.blocks = persistent_blocks(stream, items, kSolverThreads, kSolverBlocksPerSm),
          .threads = kSolverThreads};
}

/// What a solver's array, or a batch, has its numbers in.
template <class Body>
void dispatch_written(DType dtype, Body&& body) {
  if (dtype == DType::f64) return body.template operator()<double>();
  dispatch_gpu_storage(dtype, body);
}

void map_columns(const MapColumns& args, const Stream& stream) {
  dispatch_storage(args.from.dtype(), [&]<class From>() {
    dispatch_written(args.to.dtype(), [&]<class To>() {
      const From* minus = args.minus.data_or_null<From>();
      launch("map_columns", map_columns_kernel<From, To>,
             solver_shape(stream, args.rows.capacity * args.columns), stream,
             MapArgs<From, To>{args.rows, args.columns, args.from.rows() == 1 ? 0 : args.from.width(),
                               minus != nullptr ? args.minus.width() : 0, args.to.width(),
                               args.from.data<From>() + args.from_column,
                               minus != nullptr ? minus + args.minus_column : nullptr,
                               args.scale.data_or_null<double>(), args.kept.data_or_null<uint8_t>(),
                               args.to.data<To>() + args.to_column});
    });
  });
}

void advance_state(const AdvanceState& args, const Stream& stream) {
  dispatch_gpu_storage(args.prediction.dtype(), [&]<class T>() {
    launch("advance_state", advance_state_kernel<T>,
           solver_shape(stream, args.rows.capacity * args.prediction.width()), stream,
           AdvanceArgs<T>{args.rows, args.prediction.width(), args.prediction.data<T>(),
                          args.scale.data<double>(), args.values.data<uint8_t>(), args.mask.data<uint8_t>(),
                          args.current.data<float>(), args.before.data_or_null<float>(),
                          args.next.data<float>()});
  });
}

void edge_displacements(const EdgeDisplacements& args, const Stream& stream) {
  dispatch_gpu_storage(args.features.dtype(), [&]<class T>() {
    launch("edge_displacements", edge_displacements_kernel<T>, solver_shape(stream, args.edges.capacity),
           stream,
           DisplacementArgs<T>{args.edges,
                               static_cast<int>(args.positions.width()),
                               args.features.width(),
                               args.senders.data<int32_t>(),
                               args.receivers.data<int32_t>(),
                               args.positions.data<float>(),
                               {args.period[0], args.period[1], args.period[2]},
                               args.scale.data<double>(),
                               args.features.data<T>() + args.column});
  });
}

}  // namespace

const SolverArrayKernels solver_array_kernels{
    .map_columns = map_columns,
    .advance_state = advance_state,
    .edge_displacements = edge_displacements,
};

}  // namespace meshgrad::cuda
