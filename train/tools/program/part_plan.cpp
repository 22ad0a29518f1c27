// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/part_step.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/tools/program/part_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace meshgrad {
namespace {

void check(const Config& config, const PlanOptions& options) {
  if (options.mesh || options.mode == PlanMode::measured) {
    throw invalid_argument("--ranks", "data, and --mode static",
                           options.mesh ? "--nodes and --edges" : "--mode measured",
                           "a mesh can only be cut when its edges are known, and parts are not measured");
  }
  require_data_path(config);
  if (config.ranks.partition == MeshPartition::none) {
    throw config_error(
        "ranks.partition", "a way to cut meshes, with --ranks", "\"none\"",
        "set ranks.partition = \"rcb\"; whole samples take on each rank what they take on one");
  }
  if (config.train.batch == kAutoBatch)
    throw config_error("train.batch", "a number, with --ranks", "\"auto\"", "set train.batch = 1");
}

}  // namespace

PartsPlan plan_parts(const Config& asked, const PlanOptions& options, int64_t ranks) {
  check(asked, options);
  PartsPlan plan{.device = planned_device(asked, options.mode), .batch = asked.train.batch};
  check_precision(plan.device, asked.precision);
  plan.room = memory_room(asked, plan.device, options.device_memory);
  Config config = asked;
  config.memory.memory_limit = plan.room.total - plan.room.context;  // recompute.mode = "auto" asks
  plan.usable = static_cast<int64_t>(config.plan.target_utilization *
                                     static_cast<double>(plan.room.total - plan.room.context));
  const StepProbe probe(Dataset::open(config.data.path).with_edges(edge_options(config.data)), plan.device);
  const TrajectoryView trajectory = probe.largest_trajectory(config);
  const MeshView mesh = trajectory.mesh();
  const SortedEdges edges{mesh.senders, mesh.receiver_offsets, kMeshEdges};
  const std::vector<int32_t> owners = mesh_cut(config.ranks).owners(mesh, ranks);
  plan.fits = true;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Part part = make_part(owners, static_cast<int32_t>(rank), ranks, {&edges, 1});
    const StepProbe::PartStep step = probe.predict_part(config, part);
    const int64_t batch = config.train.batch;
    plan.parts.push_back({.nodes = batch * part.owned,
                          .edges = batch * part.edges(kMeshEdges).edges(),
                          .ghosts = batch * part.ghosts(),
                          .sent = batch * static_cast<int64_t>(part.sent.size()),
                          .neighbours = static_cast<int64_t>(part.neighbours.size()),
                          .halo_bytes = config.train.accumulate * step.sent_bytes,
                          .memory = step.memory});
    plan.fits = plan.fits && step.memory.reserved <= plan.usable;
  }
  plan.gradient_bytes = 2 * (ranks - 1) * plan.parts.front().memory.of(Tag::gradients) / ranks;
  return plan;
}

std::string to_text(const PartsPlan& plan) {
  constexpr double kMega = 1e6;
  std::string text = fmt::format(
      "static plan for {} ranks on {}, each with a part of every mesh: a step of batch {} {} in {:.3f} MiB "
      "of "
      "{:.3f} on {}\n",
      plan.parts.size(), name_of(plan.device), plan.batch, plan.fits ? "fits" : "does not fit",
      mebibytes(plan.usable), mebibytes(plan.room.total), plan.fits ? "every rank" : "some rank");
  text += fmt::format("  {:>5} {:>10} {:>11} {:>9} {:>10} {:>12} {:>12} {:>14}\n", "rank", "nodes", "edges",
                      "ghosts", "neighbours", "total, MiB", "reserved", "halo, MB sent");
  for (size_t rank = 0; rank < plan.parts.size(); ++rank) {
    const PlannedPart& part = plan.parts[rank];
    text += fmt::format("  {:>5} {:>10} {:>11} {:>9} {:>10} {:>12.3f} {:>12.3f} {:>14.3f}\n", rank,
                        part.nodes, part.edges, part.ghosts, part.neighbours, mebibytes(part.memory.live),
                        mebibytes(part.memory.reserved), static_cast<double>(part.halo_bytes) / kMega);
  }
  return text + fmt::format("and for the sum of gradients each rank sends {:.3f} MB a step\n",
                            static_cast<double>(plan.gradient_bytes) / kMega);
}

std::string to_json(const PartsPlan& plan) {
  nlohmann::ordered_json parts = nlohmann::ordered_json::array();
  for (const PlannedPart& part : plan.parts) {
    parts.push_back({{"nodes", part.nodes},
                     {"edges", part.edges},
                     {"ghosts", part.ghosts},
                     {"sent", part.sent},
                     {"neighbours", part.neighbours},
                     {"halo_bytes", part.halo_bytes},
                     {"total", part.memory.live},
                     {"reserved", part.memory.reserved}});
  }
  const nlohmann::ordered_json json = {
      {"device", name_of(plan.device)}, {"batch", plan.batch}, {"fits", plan.fits},
      {"usable", plan.usable},          {"parts", parts},      {"gradient_bytes", plan.gradient_bytes}};
  return json.dump(2) + "\n";
}

}  // namespace meshgrad
