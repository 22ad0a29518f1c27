// SPDX-License-Identifier: Apache-2.0
// A task takes 64 nodes, and with all pairs goes over the nodes of their graphs in tiles of 64, whose columns
// lie side by side, so that the compiler's vectors take several inner products at once.
#include <meshgrad/kernels/cpu/slab_sums.h>
#include <meshgrad/kernels/tables.h>

#include <algorithm>
#include <cmath>

namespace meshgrad::cpu {
namespace {

constexpr int64_t kPairTile = 64;     // nodes of a task, and of a tile
constexpr int64_t kPairColumns = 32;  // of z, that a tile holds at a time

/// log(1 + exp(x)).
template <class A>
A softplus(A x) {
  return std::log1p(std::exp(-std::abs(x))) + std::max(x, A(0));
}
template <class A>
A sigmoid(A x) {
  const A e = std::exp(-std::abs(x));
  return (x >= A(0) ? A(1) : e) / (A(1) + e);
}

template <class S>
struct PairTask {
  using A = Accumulator<S>;
  const NodePairs& pairs;
  const S* z;
  int64_t width;
  int64_t begin, end;  // nodes

  int64_t graph_of(int64_t node) const {
    const int32_t* starts = pairs.graph_starts.data<int32_t>();
    return std::upper_bound(starts, starts + pairs.graph_starts.rows(), node) - starts - 1;
  }
  int64_t start_of(int64_t graph) const { return pairs.graph_starts.data<int32_t>()[graph]; }
  /// Of a pair of the graph that is linked, or not.
  A weight(int64_t graph, bool linked) const {
    return static_cast<A>(pairs.weights.data<float>()[2 * graph + (linked ? 0 : 1)]);
  }

  /// Calls body(node, other, graph, linked, inner product) for the entries of the task's nodes.
  template <class Body>
  void each_entry(const Body& body) const {
    const int32_t* offsets = pairs.offsets.data<int32_t>();
    const int32_t* others = pairs.others.data<int32_t>();
    const uint8_t* linked = pairs.linked.data_or_null<uint8_t>();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t graph = graph_of(i);
      for (int64_t e = offsets[i]; e < offsets[i + 1]; ++e) {
        const int64_t j = others[e];
        A product = A(0);
        for (int64_t k = 0; k < width; ++k)
          product += static_cast<A>(z[i * width + k]) * static_cast<A>(z[j * width + k]);
        body(i, j, graph, linked == nullptr || linked[e] != 0, product);
      }
    }
  }

  using Products = A[kPairTile][kPairTile];  // [nodes of the task, nodes of a tile]
  using Columns = A[kPairColumns][kPairTile];

  /// Columns of z from `column` on of the nodes of a tile; zeros after the last node.
  int64_t load(int64_t first, int64_t last, int64_t column, Columns& to) const {
    const int64_t columns = std::min(kPairColumns, width - column);
    for (int64_t k = 0; k < columns; ++k)
      for (int64_t j = 0; j < kPairTile; ++j)
        to[k][j] = first + j < last ? static_cast<A>(z[(first + j) * width + column + k]) : A(0);
    return columns;
  }
  void multiply(int64_t row, int64_t rows, int64_t first, int64_t last, Columns& tile, Products& to) const {
    for (int64_t i = 0; i < rows; ++i) std::fill_n(to[i], kPairTile, A(0));
    for (int64_t column = 0; column < width; column += kPairColumns) {
      const int64_t columns = load(first, last, column, tile);
      for (int64_t i = 0; i < rows; ++i) {
        const S* const of_row = z + (row + i) * width + column;
        for (int64_t k = 0; k < columns; ++k) {
          const auto x = static_cast<A>(of_row[k]);
          for (int64_t j = 0; j < kPairTile; ++j) to[i][j] += x * tile[k][j];
        }
      }
    }
  }
  /// Calls body(row, rows, graph, first, last, products) for each tile of nodes [first, last) with the task's
  /// nodes of the same graph, from `row` on.
  template <class Body>
  void each_tile(const Body& body) const {
    Products products;
    Columns tile;
    for (int64_t row = begin; row < end;) {
      const int64_t graph = graph_of(row), last_of_graph = start_of(graph + 1);
      const int64_t rows = std::min(end, last_of_graph) - row;
      for (int64_t first = start_of(graph); first < last_of_graph; first += kPairTile) {
        const int64_t last = std::min(last_of_graph, first + kPairTile);
        multiply(row, rows, first, last, tile, products);
        body(row, rows, graph, first, last, products);
      }
      row += rows;
    }
  }
};

template <class S>
void pair_loss_forward_of(const PairLossForward& args, const Stream& stream) {
  using A = Accumulator<S>;
  const auto of_nodes = [&](int64_t begin, int64_t end) {
    const PairTask<S> task{args.pairs, args.z.data<S>(), args.z.width(), begin, end};
    const bool all = args.pairs.all_pairs;
    double sum = 0.0;
    task.each_entry([&](int64_t, int64_t, int64_t graph, bool linked, A product) {
      A loss = task.weight(graph, linked) * softplus(linked ? -product : product);
      if (all) loss -= task.weight(graph, false) * softplus(product);  // all pairs below have that term
      sum += static_cast<double>(loss);
    });
    if (!all) return sum;
    task.each_tile([&](int64_t, int64_t rows, int64_t graph, int64_t first, int64_t last,
                       const A(&products)[kPairTile][kPairTile]) {
      double of_tile = 0.0;
      for (int64_t i = 0; i < rows; ++i)
        for (int64_t j = first; j < last; ++j)
          of_tile += static_cast<double>(softplus(products[i][j - first]));
      sum += static_cast<double>(task.weight(graph, false)) * of_tile;
    });
    return sum;
  };
  store_sum(stream, args.sum, slab_sum(stream, args.rows.value(), of_nodes, kPairTile), args.accumulate);
}

template <class S>
void pair_loss_backward_of(const PairLossBackward& args, Runtime& runtime, const Stream& stream) {
  using A = Accumulator<S>;
  const int64_t width = args.z.width(), nodes = args.rows.value();
  const Tensor sums =
      Tensor::empty(runtime, args.z.shape(), dtype_of<A>(), Tag::workspace, "gradient of pairs");
  stream.parallel_for((nodes + kPairTile - 1) / kPairTile, [&](int64_t number) {
    const int64_t begin = number * kPairTile;
    const PairTask<S> task{args.pairs, args.z.data<S>(), width, begin, std::min(nodes, begin + kPairTile)};
    const bool all = args.pairs.all_pairs;
    const S* const z = task.z;
    A* const d = sums.data<A>();
    std::fill(d + task.begin * width, d + task.end * width, A(0));
    task.each_entry([&](int64_t i, int64_t j, int64_t graph, bool linked, A product) {
      A slope = task.weight(graph, linked) * (linked ? -sigmoid(-product) : sigmoid(product));
      if (all) slope -= task.weight(graph, false) * sigmoid(product);
      for (int64_t k = 0; k < width; ++k) d[i * width + k] += slope * static_cast<A>(z[j * width + k]);
    });
    if (all) {
      task.each_tile([&](int64_t row, int64_t rows, int64_t graph, int64_t first, int64_t last,
                         A(&products)[kPairTile][kPairTile]) {
        const A weight = task.weight(graph, false);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = 0; j < kPairTile; ++j)
            products[i][j] = first + j < last ? weight * sigmoid(products[i][j]) : A(0);
        for (int64_t i = 0; i < rows; ++i)
          for (int64_t j = first; j < last; ++j)
            for (int64_t k = 0; k < width; ++k)
              d[(row + i) * width + k] += products[i][j - first] * static_cast<A>(z[j * width + k]);
      });
    }
    const auto seed = A(2) * static_cast<A>(*args.seed.data<double>());
    for (int64_t at = task.begin * width; at < task.end * width; ++at)
      args.d_z.data<S>()[at] = S(seed * d[at]);
  });
}

}  // namespace

const PairLossKernels pair_loss_kernels{
    .pair_loss_forward =
        [](const PairLossForward& args, Runtime&, const Stream& stream) {
          dispatch_cpu_storage(args.z.dtype(), [&]<class S>() { pair_loss_forward_of<S>(args, stream); });
        },
    .pair_loss_backward =
        [](const PairLossBackward& args, Runtime& runtime, const Stream& stream) {
          dispatch_cpu_storage(args.z.dtype(),
                               [&]<class S>() { pair_loss_backward_of<S>(args, runtime, stream); });
        },
};

}  // namespace meshgrad::cpu
