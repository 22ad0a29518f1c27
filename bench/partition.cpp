// SPDX-License-Identifier: Apache-2.0
// What a rank does before it trains on a part of a mesh: it cuts the mesh for 4 ranks, finds its part with
// the lists of rows that it exchanges, and puts their indices where kernels read them. One rank after
// another, as each has cores of its own elsewhere; the slowest counts.
#include <meshgrad/autograd/rank_halo.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/nn/partition/part.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "inputs.h"
#include "timing.h"

namespace meshgrad::bench {
namespace {

constexpr int32_t kParts = 4;
constexpr int kSetUps = 3;
constexpr uint64_t kOffsetSeed = 11;

struct Cut {
  std::string name;
  std::function<std::vector<int32_t>(const SortedEdges&, std::span<const float> positions)> owners;
};

std::vector<Cut> cuts() {
  const auto weights = [](const SortedEdges& edges) {
    return node_weights({&edges, 1}, std::ssize(edges.receiver_offsets) - 1);
  };
  std::vector<Cut> all{{"rcb", [=](const SortedEdges& edges, std::span<const float> positions) {
                          return bisect_coordinates(positions, 2, weights(edges), kParts);
                        }}};
  if (metis_available()) {
    all.push_back({"metis", [=](const SortedEdges& edges, std::span<const float>) {
                     return metis_owners({&edges, 1}, weights(edges), kParts);
                   }});
  }
  return all;
}

/// Seconds of one rank. `owned` and `crossing` count what all ranks together own, send and receive.
struct SetUp {
  double wall = 0.0, cpu = 0.0;
  int64_t owned = 0, sent = 0, ghosts = 0;
};

SetUp set_up(Runtime& runtime, const Cut& cut, const SortedEdges& edges, std::span<const float> positions,
             int32_t rank) {
  Ranks alone;  // the lists are made without a message
  const double cpu = cpu_time().ran;
  const auto begin = std::chrono::steady_clock::now();
  const Part part = make_part(cut.owners(edges, positions), rank, kParts, {&edges, 1});
  const Graph graph = part_graph(runtime, part, 0);
  const Halo halo = part_halo(runtime, part, std::make_shared<RankHaloExchange>(alone));
  runtime.stream().synchronize();
  return {.wall = seconds_since(begin),
          .cpu = cpu_time().ran - cpu,
          .owned = part.owned,
          .sent = std::ssize(part.sent),
          .ghosts = part.ghosts()};
}

/// The exponent of y = x^e, by least squares in logarithms: 1 is linear.
double exponent(const std::vector<double>& x, const std::vector<double>& y) {
  double mean_x = 0.0, mean_y = 0.0, product = 0.0, square = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    mean_x += std::log(x[i]) / static_cast<double>(x.size());
    mean_y += std::log(y[i]) / static_cast<double>(x.size());
  }
  for (size_t i = 0; i < x.size(); ++i) {
    product += (std::log(x[i]) - mean_x) * (std::log(y[i]) - mean_y);
    square += (std::log(x[i]) - mean_x) * (std::log(x[i]) - mean_x);
  }
  return product / square;
}

Figures time_set_up(Runtime& runtime, const Cut& cut, bool quick) {
  Figures figures{fmt::format("set-up of {} ranks on triangulated squares, seconds of the slowest", kParts),
                  {}};
  std::vector<double> nodes, wall, cpu;
  for (const int64_t side : quick ? std::vector<int64_t>{8, 24} : std::vector<int64_t>{316, 548, 1000}) {
    const Mesh mesh = make_mesh(runtime, {.period = side * side, .copies = 1, .square = true});
    const SortedEdges edges{mesh.graph.senders.values<int32_t>(),
                            mesh.graph.receiver_offsets.values<int32_t>()};
    std::vector<float> positions;
    for (int64_t node = 0; node < side * side; ++node) {
      for (const int64_t at : {node % side, node / side}) {
        const double off =
            uniform(kOffsetSeed, static_cast<uint64_t>(positions.size() % 2), static_cast<uint64_t>(node));
        positions.push_back(static_cast<float>(static_cast<double>(at) + 0.4 * off));
      }
    }
    std::vector<double> of_rank_wall, of_rank_cpu;
    SetUp all;
    for (int32_t rank = 0; rank < kParts; ++rank) {
      std::vector<double> rank_wall, rank_cpu;
      SetUp found;
      for (int round = 0; round < (quick ? 1 : kSetUps); ++round) {
        found = set_up(runtime, cut, edges, positions, rank);
        rank_wall.push_back(found.wall);
        rank_cpu.push_back(found.cpu);
      }
      of_rank_wall.push_back(median_interval(rank_wall).median);
      of_rank_cpu.push_back(median_interval(rank_cpu).median);
      all.owned += found.owned, all.sent += found.sent, all.ghosts += found.ghosts;
    }
    if (all.owned != side * side || all.sent != all.ghosts)
      throw internal_error(fmt::format("{} of {} nodes are owned, {} rows are sent and {} expected",
                                       all.owned, side * side, all.sent, all.ghosts));
    nodes.push_back(static_cast<double>(side * side));
    wall.push_back(*std::max_element(of_rank_wall.begin(), of_rank_wall.end()));
    cpu.push_back(*std::max_element(of_rank_cpu.begin(), of_rank_cpu.end()));
    const auto add = [&](const char* what, double value) {
      figures.values.emplace_back(fmt::format("{}_nodes_{}", side * side, what), value);
    };
    add("s", wall.back());
    add("cpu_s", cpu.back());
    add("ghosts", static_cast<double>(all.ghosts));
  }
  figures.values.emplace_back("exponent", exponent(nodes, wall));
  figures.values.emplace_back("cpu_exponent", exponent(nodes, cpu));
  return figures;
}

}  // namespace

std::vector<Benchmark> partition_benchmarks(const Selection& selection) {
  if (selection.device != DeviceKind::cpu) return {};
  std::vector<Benchmark> list;
  for (const Cut& cut : cuts()) {
    list.push_back({.name = "partition/" + cut.name,
                    .prepare = {},
                    .on_host = true,
                    .figures = [cut, quick = selection.quick](Runtime& runtime) {
                      return time_set_up(runtime, cut, quick);
                    }});
  }
  return list;
}

}  // namespace meshgrad::bench
