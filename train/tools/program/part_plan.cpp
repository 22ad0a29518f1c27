// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/halo.h>
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/run/part_step.h>
#include <meshgrad/train/learn/run/precision.h>
#include <meshgrad/train/tools/program/part_plan.h>

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

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
  if (config.train.batch_nodes > 0)
    throw config_error("train.batch_nodes", "0, with --ranks", std::to_string(config.train.batch_nodes),
                       "set train.batch instead");
}

/// The first trajectory of the training split on the largest mesh.
TrajectoryView largest_trajectory(const Dataset& dataset, const std::string& split) {
  const auto size = [&](int64_t i) {
    const Dataset::MeshSizes mesh = dataset.mesh_sizes(split, i);
    return std::pair(mesh.edges, mesh.nodes);
  };
  int64_t largest = 0;
  for (int64_t i = 1; i < dataset.size(split); ++i)
    if (size(i) > size(largest)) largest = i;
  return dataset.trajectory(split, largest);
}

/// Counts what would be sent.
class DryExchange final : public HaloExchange {
 public:
  std::unique_ptr<Request> forward(const Halo&, const Tensor& sent, const Tensor&) override {
    return start(sent);
  }
  std::unique_ptr<Request> backward(const Halo&, const Tensor& d_ghosts, const Tensor&) override {
    return start(d_ghosts);
  }
  int64_t bytes() const { return bytes_; }

 private:
  /// In flight, as it is between ranks: kernels then have the memory that they have there.
  class DryRequest final : public Request {
    void wait() override {}
  };
  std::unique_ptr<Request> start(const Tensor& sent) {
    bytes_ += sent.bytes();
    return std::make_unique<DryRequest>();
  }

  int64_t bytes_ = 0;
};

/// Of a batch of `copies` of the part's mesh.
std::shared_ptr<Halo> dry_halo(Runtime& runtime, const Part& part, int64_t copies,
                               std::shared_ptr<HaloExchange> exchange) {
  std::vector<Neighbour> neighbours = part.neighbours;
  for (Neighbour& neighbour : neighbours) {
    neighbour.sent *= copies;
    neighbour.ghosts *= copies;
  }
  std::vector<int32_t> sent;
  for (int64_t copy = 0; copy < copies; ++copy) sent.insert(sent.end(), part.sent.begin(), part.sent.end());
  Halo halo = make_halo(runtime, copies * part.owned, std::move(neighbours), sent, std::move(exchange));
  halo.interior = copies * part.interior;
  if (runtime.stream().on_gpu()) {
    const PartEdges& edges = part.edges(kMeshEdges);
    const auto indices = [&](int64_t count) {
      return Tensor::empty(runtime, Shape{count}, DType::i32, Tag::data, "halo");
    };
    halo.interior_edges = copies * edges.interior;
    halo.border_receivers = indices(copies * (edges.edges() - edges.interior));
    halo.border_offsets = indices(copies * (part.owned - part.interior) + 1);
  }
  return std::make_shared<Halo>(std::move(halo));
}

/// A step of a rank that computes this part of each mesh in a batch.
PlannedPart plan_part(const StepProbe& probe, const Config& config, const Part& part) {
  const int64_t batch = config.train.batch;
  PlannedPart plan{.nodes = batch * part.owned,
                   .edges = batch * part.edges(kMeshEdges).edges(),
                   .ghosts = batch * part.ghosts(),
                   .sent = batch * static_cast<int64_t>(part.sent.size()),
                   .neighbours = static_cast<int64_t>(part.neighbours.size())};
  ProbedStep step(dry_options(config, probe.device()), config, probe.dataset());
  BatchLayout layout = step.steps.layout({.nodes = plan.nodes,
                                          .edges = plan.edges,
                                          .ghosts = plan.ghosts,
                                          .world_edges = world_room(config.data, plan.nodes),
                                          .graphs = batch});
  const auto exchange = std::make_shared<DryExchange>();
  layout.set_halo(dry_halo(step.runtime, part, batch, exchange));
  const int steps = step.repeat(layout);
  plan.halo_bytes = config.train.accumulate * exchange->bytes() / steps;
  plan.memory = step.memory();
  return plan;
}

}  // namespace

PartsPlan plan_parts(const Config& asked, const PlanOptions& options, int64_t ranks) {
  check(asked, options);
  const gpu::Card* const named = named_card(asked, options);
  const gpu::PlannedCard planned(named);
  PartsPlan plan{
      .device = named != nullptr ? Device{DeviceKind::cuda, 0} : planned_device(asked, options.mode),
      .gpu = options.gpu,
      .batch = asked.train.batch};
  check_precision(plan.device, asked.precision);
  plan.room = planned_room(asked, plan.device, options, named);
  Config config = asked;
  config.memory.memory_limit = plan.room.total - plan.room.context;  // recompute.mode = "auto" asks
  plan.usable = static_cast<int64_t>(config.plan.target_utilization *
                                     static_cast<double>(plan.room.total - plan.room.context));
  const StepProbe probe(Dataset::open(config.data.path).with_edges(edge_options(config.data)), plan.device);
  const TrajectoryView trajectory = largest_trajectory(probe.dataset(), config.data.train_split);
  const MeshView mesh = trajectory.mesh();
  const SortedEdges edges{mesh.senders, mesh.receiver_offsets, kMeshEdges};
  const std::vector<int32_t> owners = mesh_cut(config.ranks).owners(mesh, ranks);
  plan.fits = true;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const Part part = make_part(owners, static_cast<int32_t>(rank), ranks, {&edges, 1});
    plan.parts.push_back(plan_part(probe, config, part));
    plan.fits = plan.fits && plan.parts.back().memory.reserved <= plan.usable;
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
      plan.parts.size(), plan.gpu.empty() ? name_of(plan.device) : plan.gpu, plan.batch,
      plan.fits ? "fits" : "does not fit", mebibytes(plan.usable), mebibytes(plan.room.total),
      plan.fits ? "every rank" : "some rank");
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
