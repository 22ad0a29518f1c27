// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/rank_halo.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/nn/partition/in_turn.h>
#include <meshgrad/train/data/owners_file.h>
#include <meshgrad/train/learn/task/mesh_parts.h>
#include <meshgrad/train/learn/task/unrolled_loss.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace meshgrad {
namespace {

constexpr size_t kMostCached = 64;  // beyond one of each part: meshes that differ from sample to sample

GraphBatch on_host(const GraphBatch& batch, const Stream& stream) {
  GraphBatch host = batch;
  const auto fetch = [&](Tensor& tensor) {
    if (tensor.defined()) tensor = to_host(tensor, stream);
  };
  fetch(host.node_features);
  for (EdgeSet& set : host.edge_sets) {
    for (Tensor* tensor : {&set.features, &set.graph.senders, &set.graph.receivers,
                           &set.graph.receiver_offsets, &set.graph.sender_offsets, &set.graph.sender_order})
      fetch(*tensor);
  }
  return host;
}

/// Every rank's rows of the prediction, in the mesh's order, on each rank.
Tensor gather_rows(Ranks& ranks, const Tensor& owned, std::span<const Part* const> parts, int64_t nodes) {
  const Tensor whole = host_tensor({nodes, owned.width()}, owned.dtype());
  std::vector<Tensor> rows;
  std::vector<std::span<std::byte>> places;
  for (const Part* part : parts) {
    rows.push_back(part->rank == ranks.rank() ? owned
                                              : host_tensor({part->owned, owned.width()}, owned.dtype()));
    places.emplace_back(static_cast<std::byte*>(rows.back().raw()), static_cast<size_t>(rows.back().bytes()));
  }
  all_gather_bytes(ranks, places, "prediction");
  for (size_t i = 0; i < parts.size(); ++i) place_rows(rows[i], *parts[i], whole);
  return whole;
}

template <class T>
void write_values(const std::vector<T>& values, const Tensor& to) {
  std::copy(values.begin(), values.end(), to.data<T>());
}

void write_rows_of_frames(const Tensor& from, int64_t nodes, const Part& part, const Tensor& to) {
  const auto owned = std::span(part.nodes).first(static_cast<size_t>(part.owned));
  const int64_t frames = nodes > 0 ? from.rows() / unrolled_rows(nodes) : 0;
  for (int64_t frame = 0; frame < frames; ++frame) {
    const int64_t source = frame * unrolled_rows(nodes), target = frame * unrolled_rows(part.owned);
    copy_rows(from.row_range(source, source + nodes), owned, to.row_range(target, target + part.owned));
  }
}

}  // namespace

std::vector<int32_t> MeshCut::owners(const MeshView& mesh, int64_t parts) const {
  if (method == MeshPartition::file) {
    if (static_cast<int64_t>(given.size()) != mesh.nodes) {
      throw config_error("ranks.partition_file", fmt::format("a line for each of {} nodes", mesh.nodes),
                         fmt::format("{} in {}", given.size(), file),
                         "all meshes of the data must have the file's nodes; else set ranks.partition = "
                         "\"rcb\"");
    }
    const int32_t largest = given.empty() ? 0 : *std::max_element(given.begin(), given.end());
    if (largest >= parts) {
      throw config_error("ranks.partition_file", fmt::format("ranks from 0 to {}", parts - 1),
                         fmt::format("{} in {}", largest, file),
                         "start as many ranks as the file was made for, or cut the mesh again");
    }
    return given;
  }
  const SortedEdges edges{mesh.senders, mesh.receiver_offsets, kMeshEdges};
  const std::vector<int32_t> weights = node_weights({&edges, 1}, mesh.nodes);
  if (method == MeshPartition::metis) return metis_owners({&edges, 1}, weights, parts);
  return bisect_coordinates(mesh.positions, mesh.dim, weights, parts);
}

MeshCut mesh_cut(const RanksConfig& config) {
  MeshCut cut{.method = config.partition == MeshPartition::none ? MeshPartition::rcb : config.partition};
  if (cut.method == MeshPartition::metis && !metis_available()) {
    throw config_error("ranks.partition", "\"none\", \"rcb\" or \"file\" in a build without METIS",
                       "\"metis\"",
                       "use \"rcb\", or install libmetis-dev and build with -DMESHGRAD_METIS=ON");
  }
  if (cut.method == MeshPartition::file) {
    cut.file = config.partition_file;
    if (cut.file.empty()) {
      throw config_error("ranks.partition_file", "a file, with ranks.partition = \"file\"", "none",
                         "name the file that gpmetis wrote for this mesh, such as wing.graph.part.4");
    }
    cut.given = read_owners(cut.file);
  }
  return cut;
}

PartMaker cut_parts(MeshCut cut, int64_t count) {
  return [cut = std::move(cut), count, owners = std::map<int64_t, std::vector<int32_t>>()](
             std::span<const MeshView> meshes, std::span<const SortedEdges> edges, int64_t number) mutable {
    std::vector<int32_t> all;
    for (const MeshView& mesh : meshes) {
      auto own = owners.find(mesh.index);
      if (own == owners.end()) {
        if (owners.size() >= kMostCached) owners.clear();
        own = owners.emplace(mesh.index, cut.owners(mesh, count)).first;
      }
      all.insert(all.end(), own->second.begin(), own->second.end());
    }
    return make_part(all, static_cast<int32_t>(number), count, edges);
  };
}

MeshParts::MeshParts(Runtime& runtime, PartMaker make, Ranks& ranks)
    : runtime_(runtime),
      make_(std::move(make)),
      ranks_(&ranks),
      exchange_(std::make_shared<RankHaloExchange>(ranks)),
      count_(ranks.size()) {}

MeshParts::MeshParts(Runtime& runtime, PartMaker make, int64_t parts)
    : runtime_(runtime), make_(std::move(make)), count_(parts) {}

MeshParts::CachedPart& MeshParts::cached(std::span<const MeshView> meshes, const GraphBatch& whole,
                                         int64_t number) {
  std::vector<int64_t> numbers;
  for (const MeshView& mesh : meshes) numbers.push_back(mesh.index);
  const auto found = std::find_if(cached_.begin(), cached_.end(), [&](const CachedPart& part) {
    return part.number == number && part.meshes == numbers;
  });
  if (found != cached_.end()) {
    cached_.splice(cached_.begin(), cached_, found);
    return cached_.front();
  }
  Part part = make_(meshes, sorted_edges(whole), number);
  if (cached_.size() >= kMostCached + static_cast<size_t>(count_)) cached_.pop_back();
  cached_.push_front({std::move(numbers), number, std::move(part), nullptr});
  return cached_.front();
}

void MeshParts::use(const std::shared_ptr<const DeviceRanks>& between_gpus) {
  if (between_gpus == nullptr) return;
  exchange_ = std::make_shared<DeviceHaloExchange>(between_gpus, runtime_.stream());
  cached_.clear();
}

void MeshParts::begin_batch(const GraphBatch& whole) {
  if (whole.has_edges(kWorldEdges)) cached_.clear();
}

const Part& MeshParts::part(std::span<const MeshView> meshes, const GraphBatch& whole, int64_t number) {
  return cached(meshes, whole, number).part;
}

std::vector<Part> MeshParts::all(std::span<const MeshView> meshes, const GraphBatch& whole) {
  std::vector<Part> parts;
  for (int64_t number = 0; number < count_; ++number) parts.push_back(part(meshes, whole, number));
  return parts;
}

std::shared_ptr<const Halo> MeshParts::halo(std::span<const MeshView> meshes, const GraphBatch& whole) {
  CachedPart& own = cached(meshes, whole, rank());
  if (own.halo == nullptr) {
    own.halo = std::make_shared<Halo>(part_halo(runtime_, own.part, exchange_));
  }
  return own.halo;
}

Tensor MeshParts::predict(const Model& model, const MeshView& mesh, const GraphBatch& batch) {
  const GraphBatch whole = on_host(batch, runtime_.stream());
  const std::span<const MeshView> meshes(&mesh, 1);
  begin_batch(whole);
  if (in_turn()) return PartsInTurn(runtime_, whole, all(meshes, whole)).predict(model);
  const GraphBatch own = part_batch(runtime_, whole, part(meshes, whole, rank()), exchange_);
  Tape tape(runtime_, Tape::Mode::evaluate);
  const Tensor prediction = to_host(forward(model, tape, own).front().value(), runtime_.stream());
  std::vector<const Part*> parts;  // a list's elements stay where they are
  for (int64_t number = 0; number < count_; ++number) parts.push_back(&part(meshes, whole, number));
  return gather_rows(*ranks_, prediction, parts, whole.nodes);
}

Model model_giving(const Model& model, const Values& prediction) {
  Model giving;
  giving.parameters = model.parameters;
  giving.stages.push_back(
      {"prediction", false,
       [prediction](Tape&, const ParameterSet&, const GraphBatch&, const Values&) { return prediction; }});
  return giving;
}

std::vector<MeshView> meshes_of(const Dataset& dataset, std::string_view split,
                                const std::vector<Sample>& samples) {
  std::vector<MeshView> meshes;
  for (const Sample& sample : samples) meshes.push_back(dataset.trajectory(split, sample.trajectory).mesh());
  return meshes;
}

BatchShape shape_of(const Part& part) {
  const int64_t world =
      part.has_edges(kWorldEdges) ? std::max<int64_t>(1, part.edges(kWorldEdges).edges()) : 0;
  return {.nodes = part.owned,
          .edges = part.edges(kMeshEdges).edges(),
          .ghosts = part.ghosts(),
          .world_edges = world};
}

void write_part(const Batch& whole, const Part& part, const Batch& to) {
  const auto owned = std::span(part.nodes).first(static_cast<size_t>(part.owned));
  copy_rows(whole.graph.node_features, owned, to.graph.node_features);
  write_graph_sizes(to.graph, {&part.owned, 1});
  for (size_t set = 0; set < part.edge_sets.size(); ++set) {
    const PartEdges& edges = part.edge_sets[set];
    const EdgeSet& target = to.graph.edge_sets[set];
    write_values(edges.senders, target.graph.senders);
    write_values(edges.receivers, target.graph.receivers);
    write_values(edges.receiver_offsets, target.graph.receiver_offsets);
    write_values(edges.sender_offsets, target.graph.sender_offsets);
    write_values(edges.sender_order, target.graph.sender_order);
    copy_rows(whole.graph.edge_sets[set].features, edges.rows, target.features);
    if (target.graph.counts.defined())
      write_values(std::vector<int64_t>{target.graph.nodes, part.owned, edges.edges()}, target.graph.counts);
  }
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    const NamedTensor& from = whole.tensors[i];
    const Tensor& target = to.tensors[i].tensor;
    switch (from.rows) {
      case TensorRows::nodes:
        copy_rows(from.tensor, owned, target);
        break;
      case TensorRows::frames:
        write_rows_of_frames(from.tensor, whole.graph.nodes, part, target);
        break;
      case TensorRows::batch:
      case TensorRows::graphs:
        std::memcpy(target.raw(), from.tensor.raw(), static_cast<size_t>(target.bytes()));
        break;
    }
  }
}

}  // namespace meshgrad
