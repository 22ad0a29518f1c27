// SPDX-License-Identifier: Apache-2.0
// The search of world edges on every backend, against a loop over all pairs in f64.
#include <doctest/doctest.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/kernels/world_edges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "support.h"

namespace meshgrad::test {
namespace {

/// Nodes of a union of meshes, and how they are searched.
struct Nodes {
  int dim = 2;
  std::vector<float> at;
  std::vector<int32_t> meshes, types, points;
  std::vector<std::vector<int32_t>> joined;  // by node, ascending
  double radius = 1.0;
  bool other_type = false, images = false;
  std::array<double, 3> period{};

  int32_t count() const { return static_cast<int32_t>(meshes.size()); }
};

/// Two meshes, each a row of edges, of three types.
Nodes row_of(int32_t nodes, int dim, double extent, uint64_t seed) {
  Nodes made{.dim = dim, .joined = std::vector<std::vector<int32_t>>(static_cast<size_t>(nodes))};
  for (int32_t node = 0; node < nodes; ++node) {
    made.meshes.push_back(node < nodes / 3 ? 0 : 1);
    made.types.push_back(node % 3);
    made.points.push_back(node);
    if (node + 1 == nodes || node + 1 == nodes / 3) continue;
    made.joined[static_cast<size_t>(node)].push_back(node + 1);
    made.joined[static_cast<size_t>(node) + 1].push_back(node);
  }
  for (uint64_t i = 0; i < static_cast<uint64_t>(nodes * dim); ++i)
    made.at.push_back(static_cast<float>(extent * (uniform(seed, 0, i) - 0.5)));
  return made;
}

/// Displacements and distance, from the receiver.
std::array<double, 4> plain_edge(const Nodes& n, int32_t sender, int32_t receiver, bool nearest) {
  std::array<double, 4> edge{};
  double squares = 0.0;
  for (int axis = 0; axis < n.dim; ++axis) {
    double d = static_cast<double>(n.at[static_cast<size_t>(sender * n.dim + axis)]) -
               static_cast<double>(n.at[static_cast<size_t>(receiver * n.dim + axis)]);
    const double period = nearest ? n.period[static_cast<size_t>(axis)] : 0.0;
    if (period > 0.0) d -= period * std::nearbyint(d / period);
    edge[static_cast<size_t>(axis)] = d;
    squares += d * d;
  }
  edge[static_cast<size_t>(n.dim)] = std::sqrt(squares);
  edge[3] = n.dim == 3 ? edge[3] : 0.0;
  return edge;
}

bool plain_join(const Nodes& n, int32_t receiver, int32_t sender) {
  const auto r = static_cast<size_t>(receiver), s = static_cast<size_t>(sender);
  double squares = 0.0;
  for (size_t axis = 0; axis < static_cast<size_t>(n.dim); ++axis) {
    const double d = plain_edge(n, sender, receiver, true)[axis];
    squares += d * d;
  }
  const bool joined = std::ranges::any_of(n.joined[r], [&](int32_t neighbor) {
    return n.images ? n.points[static_cast<size_t>(neighbor)] == n.points[s] : neighbor == sender;
  });
  return squares < n.radius * n.radius && n.meshes[r] == n.meshes[s] && n.points[r] != n.points[s] &&
         !joined && (!n.other_type || n.types[r] != n.types[s]);
}

struct PlainEdge {
  int32_t receiver, sender;
  bool operator==(const PlainEdge&) const = default;
};
std::vector<PlainEdge> plain_edges(const Nodes& n) {
  std::vector<PlainEdge> edges;
  for (int32_t receiver = 0; receiver < n.count(); ++receiver) {
    for (int32_t sender = 0; sender < n.count(); ++sender) {
      bool joins = plain_join(n, receiver, sender);
      for (int32_t image = 0; n.images && joins && image < n.count(); ++image) {
        if (n.points[static_cast<size_t>(image)] != n.points[static_cast<size_t>(sender)]) continue;
        const auto distance = [&](int32_t node) {
          double squares = 0.0;
          for (size_t axis = 0; axis < static_cast<size_t>(n.dim); ++axis) {
            const double d = plain_edge(n, node, receiver, false)[axis];
            squares += d * d;
          }
          return std::tuple(squares, node);
        };
        joins = !plain_join(n, receiver, image) || distance(sender) <= distance(image);
      }
      if (joins) edges.push_back({receiver, sender});
    }
  }
  return edges;
}

/// A search on a device with `spare` rows of nodes that are not real.
struct Search {
  FindWorldEdges args;
  Tensor counts;

  Search(Runtime& runtime, const Nodes& n, int64_t room, DType dtype, int64_t spare) {
    const int64_t nodes = n.count() + spare;
    std::vector<float> at = n.at;
    at.resize(static_cast<size_t>(nodes * n.dim), 0.0F);
    std::vector<int32_t> labels, senders, offsets{0};
    for (const std::vector<int32_t>* column : {&n.meshes, &n.types, &n.points}) {
      labels.insert(labels.end(), column->begin(), column->end());
      labels.resize(labels.size() + static_cast<size_t>(spare), 0);
    }
    for (const std::vector<int32_t>& neighbors : n.joined) {
      senders.insert(senders.end(), neighbors.begin(), neighbors.end());
      offsets.push_back(static_cast<int32_t>(senders.size()));
    }
    offsets.resize(static_cast<size_t>(nodes) + 1, 0x40000000);
    const auto device = [&](const auto& values, const Shape& shape) {
      using T = std::decay_t<decltype(values.front())>;
      return Tensor::from<T>(runtime, values, shape, Tag::data);
    };
    const auto index = [&](int64_t rows) { return exact_tensor(runtime, {rows}, DType::i32); };
    args.mesh.nodes = args.mesh.owned_nodes = nodes;
    args.mesh.edges = static_cast<int64_t>(senders.size());
    args.mesh.senders = to_index(runtime, senders);
    args.mesh.receiver_offsets = to_index(runtime, offsets);
    args.mesh.counts = device(std::vector<int64_t>{n.count(), n.count(), args.mesh.edges}, {3});
    if (spare == 0) args.mesh.counts = {};
    args.positions = device(at, {nodes, n.dim});
    args.labels = device(labels, {3, nodes});
    args.radius = n.radius;
    args.other_type = n.other_type;
    args.images = n.images;
    args.period = n.period;
    std::vector<double> scale;
    for (int column = 0; column < 2 * (n.dim + 1); ++column) scale.push_back(0.3 + 0.1 * column);
    args.scale = device(scale, {2, n.dim + 1});
    Graph& found = args.found;
    found.nodes = found.owned_nodes = nodes;
    found.edges = room;
    found.senders = index(room), found.receivers = index(room), found.sender_order = index(room);
    found.receiver_offsets = index(nodes + 1), found.sender_offsets = index(nodes + 1);
    found.counts = exact_tensor(runtime, {3}, DType::i64);
    args.features = exact_tensor(runtime, {room, n.dim + 1}, dtype);
    args.missing = exact_tensor(runtime, {1}, DType::i64);
  }
  int64_t missing() const { return *to_host(args.missing).data<int64_t>(); }
  int64_t edges() const { return to_host(args.found.counts).data<int64_t>()[2]; }
};

/// What was found, to the bit: edges, offsets both ways, features.
void check_search(const Backend& backend, const Nodes& n, DType dtype, int64_t spare) {
  Runtime runtime = backend.runtime();
  const std::vector<PlainEdge> wanted = plain_edges(n);
  const auto count = static_cast<int64_t>(wanted.size());
  const Search search(runtime, n, count + 3, dtype, spare);
  backend.kernels->world_edges.find(search.args, runtime, runtime.stream());
  REQUIRE(search.missing() == 0);
  const Tensor counts = to_host(search.args.found.counts);
  CHECK(counts.data<int64_t>()[0] == n.count());
  CHECK(counts.data<int64_t>()[1] == n.count());
  REQUIRE(counts.data<int64_t>()[2] == count);
  const Tensor senders = to_host(search.args.found.senders), receivers = to_host(search.args.found.receivers);
  const Tensor starts = to_host(search.args.found.receiver_offsets);
  const Tensor sent = to_host(search.args.found.sender_offsets),
               order = to_host(search.args.found.sender_order);
  const auto first_of = [&](const auto& key, int32_t node) {
    return static_cast<int32_t>(
        std::ranges::count_if(wanted, [&](const PlainEdge& e) { return key(e) < node; }));
  };
  for (int32_t node = 0; node <= n.count(); ++node) {
    REQUIRE(starts.data<int32_t>()[node] == first_of([](const PlainEdge& e) { return e.receiver; }, node));
    REQUIRE(sent.data<int32_t>()[node] == first_of([](const PlainEdge& e) { return e.sender; }, node));
  }
  std::vector<int32_t> by_sender;
  for (int32_t e = 0; e < count; ++e) by_sender.push_back(e);
  std::ranges::stable_sort(by_sender, {}, [&](int32_t e) { return wanted[static_cast<size_t>(e)].sender; });
  const Matrix features = to_matrix(search.args.features);
  for (int32_t e = 0; e < count; ++e) {
    const PlainEdge& edge = wanted[static_cast<size_t>(e)];
    REQUIRE(receivers.data<int32_t>()[e] == edge.receiver);
    REQUIRE(senders.data<int32_t>()[e] == edge.sender);
    REQUIRE(order.data<int32_t>()[e] == by_sender[static_cast<size_t>(e)]);
    const std::array<double, 4> plain = plain_edge(n, edge.sender, edge.receiver, true);
    for (int column = 0; column <= n.dim; ++column) {
      const double given = plain[static_cast<size_t>(column)];
      const double rounded = dtype == DType::f64 ? given : static_cast<double>(static_cast<float>(given));
      const double scaled = (rounded - (0.3 + 0.1 * column)) * (0.3 + 0.1 * (n.dim + 1 + column));
      double stored_value = 0.0;
      dispatch_cpu_storage(dtype, [&]<class T>() {
        stored_value = read_stored(stored<T>(static_cast<double>(static_cast<Accumulator<T>>(scaled))));
      });
      REQUIRE(features.v[static_cast<size_t>(e * (n.dim + 1) + column)] == stored_value);
    }
  }
}

template <class Body>
void on_backends(Body&& body) {
  for (const Backend& backend : backends()) {
    CAPTURE(backend.name);
    body(backend);
  }
}

TEST_CASE("world edges match a loop over all pairs") {
  uint64_t seed = 31;
  on_backends([&](const Backend& backend) {
    size_t found = 0;
    for (const int dim : {2, 3}) {
      for (const double extent : {4.0, 40.0, 1e9, 0.0}) {
        for (const bool other_type : {false, true}) {
          CAPTURE(dim);
          CAPTURE(extent);
          CAPTURE(other_type);
          Nodes n = row_of(extent == 4.0 ? 61 : 40, dim, extent, ++seed);
          n.other_type = other_type;
          if (extent == 40.0) n.at[7] = std::numeric_limits<float>::quiet_NaN();
          if (extent == 40.0) n.at[20] = std::numeric_limits<float>::infinity();
          if (extent == 1e9) std::copy_n(n.at.begin() + 60, 6, n.at.begin() + 30);  // coincident nodes
          if (extent == 4.0)
            for (float& x : n.at) x -= 7.3F;  // negative, across borders of cells
          check_search(backend, n, other_type ? DType::f16 : DType::f32, other_type ? 5 : 0);
          found += plain_edges(n).size();
        }
      }
    }
    CHECK(found > 1500);
  });
}

TEST_CASE("world edges of a state that has blown up") {
  on_backends([](const Backend& backend) {
    for (const double period : {0.0, 4.0}) {
      Nodes n = row_of(61, 2, 1e30, 9);
      n.period = {period, 0.0, 0.0};
      std::copy_n(n.at.begin() + 60, 6, n.at.begin() + 100);  // coincident
      for (size_t i = 80; i < 100; i += 2) n.at[i] = 1.0F;    // far along one axis
      CAPTURE(period);
      if (period > 0.0)  // plain loops know no place that is too far
        for (size_t i = 0; i < n.at.size(); i += 2)
          if (std::abs(n.at[i]) > 1e8F) n.at[i] = std::numeric_limits<float>::infinity();
      Nodes far = n;
      for (float& x : far.at)
        if (std::isinf(x)) x = 1e9F;
      CHECK(plain_edges(n).size() == (period > 0.0 ? 0 : 6));
      check_search(backend, n, DType::f32, 0);
      Runtime runtime = backend.runtime();
      const Search search(runtime, far, 9, DType::f32, 0);
      backend.kernels->world_edges.find(search.args, runtime, runtime.stream());
      CHECK(search.edges() == std::ssize(plain_edges(n)));
    }
  });
}

TEST_CASE("world edges of crowded nodes end the search at once") {
  on_backends([](const Backend& backend) {
    for (const int32_t nodes : {4096, 4097}) {  // at one place; more than 4096 are crowded
      Nodes n = row_of(nodes, 2, 0.0, 1);
      n.other_type = true;
      std::ranges::fill(n.types, 3);
      std::ranges::fill(n.meshes, 0);
      n.types[17] = 4;
      if (nodes == 4096) n.types.assign(n.types.size(), 3);
      Runtime runtime = backend.runtime();
      const Search search(runtime, n, 9, DType::f32, 0);
      backend.kernels->world_edges.find(search.args, runtime, runtime.stream());
      CHECK(search.edges() == 0);
      CHECK(search.missing() == (nodes > 4096 ? std::numeric_limits<int32_t>::max() : 0));
    }
  });
}

TEST_CASE("world edges: nodes at the radius are not joined") {
  on_backends([](const Backend& backend) {
    Nodes lattice = row_of(27, 3, 1.0, 1);
    for (size_t i = 0; i < 27; ++i) {
      const std::array<size_t, 3> cell{i % 3, i / 3 % 3, i / 9};
      for (size_t axis = 0; axis < 3; ++axis)
        lattice.at[3 * i + axis] = static_cast<float>(cell[axis]) - 1.0F;
    }
    CHECK(plain_edges(lattice).empty());
    check_search(backend, lattice, DType::f32, 0);
    lattice.radius = 1.4142135623730951;  // of the f64 nearest to the root of 2, the square is above 2
    CHECK(plain_edges(lattice).size() > 40);
    check_search(backend, lattice, DType::bf16, 2);
    lattice.radius = std::nextafter(lattice.radius, 0.0);
    CHECK(plain_edges(lattice).size() < 60);
    check_search(backend, lattice, DType::f32, 0);
    check_search(backend, row_of(0, 2, 1.0, 1), DType::f32, 0);
    check_search(backend, row_of(0, 3, 1.0, 1), DType::f32, 3);
    check_search(backend, row_of(40, 2, 4.0, 3), DType::f32, 8200);  // more cells than one round of a scan
  });
}

TEST_CASE("world edges across periodic borders") {
  uint64_t seed = 77;
  on_backends([&](const Backend& backend) {
    size_t found = 0;
    for (const int dim : {2, 3}) {
      for (const double period : {2.1, 2.999, 3.5, 9.0, 1e8}) {
        Nodes n = row_of(45, dim, 2.0 * std::min(period, 9.0), ++seed);
        n.period = {period, dim == 2 ? 0.0 : 2 * period, 0.0};
        n.other_type = dim == 3;
        CAPTURE(dim);
        CAPTURE(period);
        check_search(backend, n, DType::f32, 0);
        n.images = true;
        for (int32_t node = 30; node + 1 < 45; node += 2) {  // each second one is an image of that before
          const auto at = static_cast<size_t>(node * dim);
          std::copy_n(n.at.begin() + static_cast<std::ptrdiff_t>(at), dim,
                      n.at.begin() + static_cast<std::ptrdiff_t>(at) + dim);
          n.at[at + static_cast<size_t>(dim)] += static_cast<float>(period);
          n.points[static_cast<size_t>(node) + 1] = node;
        }
        check_search(backend, n, DType::f32, 3);
        found += plain_edges(n).size();
      }
    }
    CHECK(found > 300);
  });
}

TEST_CASE("world edges without room are counted") {
  on_backends([](const Backend& backend) {
    Runtime runtime = backend.runtime();
    const Nodes n = row_of(61, 2, 4.0, 5);
    const auto count = static_cast<int64_t>(plain_edges(n).size());
    REQUIRE(count > 100);
    for (const int64_t room : {count, count - 1, int64_t{17}, int64_t{1}}) {
      const Search search(runtime, n, room, DType::f32, 0);
      backend.kernels->world_edges.find(search.args, runtime, runtime.stream());
      CHECK(search.missing() == count - room);
      REQUIRE(search.edges() == room);
      const Tensor senders = to_host(search.args.found.senders);
      const Tensor receivers = to_host(search.args.found.receivers);
      const Tensor order = to_host(search.args.found.sender_order);
      std::vector<int32_t> places(order.data<int32_t>(), order.data<int32_t>() + room);
      std::ranges::sort(places);
      for (int32_t e = 0; e < room; ++e) {
        REQUIRE(places[static_cast<size_t>(e)] == e);
        REQUIRE(plain_join(n, receivers.data<int32_t>()[e], senders.data<int32_t>()[e]));
      }
      CHECK(to_host(search.args.found.receiver_offsets).data<int32_t>()[61] == room);
      CHECK(to_host(search.args.found.sender_offsets).data<int32_t>()[61] == room);
    }
  });
}

TEST_CASE("world edges: errors name the wrong arguments") {
  Runtime runtime = make_runtime();
  const Nodes n = row_of(7, 2, 4.0, 5);
  const auto refusal = [&](const auto& change) {
    Search search(runtime, n, 9, DType::f32, 0);
    change(search.args);
    return invalid_argument_text([&] { kernels::find_world_edges(search.args, runtime, runtime.stream()); });
  };
  CHECK(refusal([](FindWorldEdges&) {}).empty());
  CHECK(contains(refusal([](FindWorldEdges& a) { a.labels = a.positions; }), "find_world_edges: labels"));
  CHECK(contains(refusal([](FindWorldEdges& a) { a.found.counts = {}; }), "find_world_edges: found.counts"));
  CHECK(contains(refusal([&](FindWorldEdges& a) {
                   a.positions = Tensor::zeros(runtime, {7, 4}, DType::f32, Tag::data);
                 }),
                 "needed 2 or 3 columns, got 4"));
}

}  // namespace
}  // namespace meshgrad::test
