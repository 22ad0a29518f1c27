// SPDX-License-Identifier: Apache-2.0
// MeshParts: the meshes of a batch, cut into parts: one for each rank, or all of them in turn in one process.
// The parts of a mesh are computed once and kept, as long as batches use them; with world edges only which
// nodes each owns, and its ghosts and edges anew for each batch.
#pragma once
#include <meshgrad/autograd/halo.h>
#include <meshgrad/engine/ranks/device_ranks.h>
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/nn/partition/part.h>
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/batch_layout.h>
#include <meshgrad/train/learn/task/sample.h>

#include <functional>
#include <list>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// How meshes are cut.
struct MeshCut {
  MeshPartition method = MeshPartition::rcb;
  std::vector<int32_t> given;  ///< of MeshPartition::file: the rank of each node
  std::string file;

  /// The part of each node of a mesh, for that many parts. Throws ConfigError for a file that does not fit.
  std::vector<int32_t> owners(const MeshView& mesh, int64_t parts) const;
};
/// What ranks.partition asks for; with "none", bisection. Reads the file, and throws its DataError; throws
/// ConfigError for METIS in a build without it.
MeshCut mesh_cut(const RanksConfig& config);

/// Makes a part of the disjoint union of meshes, whose edges are sorted by receiver.
using PartMaker =
    std::function<Part(std::span<const MeshView> meshes, std::span<const SortedEdges> edges, int64_t number)>;
/// The parts of meshes that are cut into `count`. It keeps how the last ones were cut.
PartMaker cut_parts(MeshCut cut, int64_t count);

class MeshParts {
 public:
  /// A part for each rank. References outlive it.
  MeshParts(Runtime& runtime, PartMaker make, Ranks& ranks);
  /// This many parts, one after another in this process.
  MeshParts(Runtime& runtime, PartMaker make, int64_t parts);

  int64_t count() const { return count_; }
  /// Rows go between GPUs from now on instead of through host memory; null changes nothing.
  void use(const std::shared_ptr<const DeviceRanks>& between_gpus);
  /// Before the parts of another batch are asked for: with world edges, which no two batches share, neither
  /// ghosts nor edges are those of the batch before.
  void begin_batch(const GraphBatch& whole);
  bool in_turn() const { return ranks_ == nullptr; }
  int64_t rank() const { return ranks_ != nullptr ? ranks_->rank() : 0; }

  /// One part of the disjoint union of these meshes, whose graph lies on the host.
  const Part& part(std::span<const MeshView> meshes, const GraphBatch& whole, int64_t number);
  std::vector<Part> all(std::span<const MeshView> meshes, const GraphBatch& whole);
  /// What this rank's part of them exchanges with the other ranks'.
  std::shared_ptr<const Halo> halo(std::span<const MeshView> meshes, const GraphBatch& whole);

  /// The model's prediction for a mesh, [nodes, outputs] on the host, in the mesh's order: on every rank the
  /// same. A collective call where parts belong to ranks. The batch may lie on a device.
  Tensor predict(const Model& model, const MeshView& mesh, const GraphBatch& whole);

 private:
  struct CachedPart {
    std::vector<int64_t> meshes;  // numbers within the file
    int64_t number = 0;           // of the part
    Part part;
    std::shared_ptr<const Halo> halo;  // where there are ranks
  };
  CachedPart& cached(std::span<const MeshView> meshes, const GraphBatch& whole, int64_t number);

  Runtime& runtime_;
  PartMaker make_;
  Ranks* ranks_ = nullptr;
  std::shared_ptr<HaloExchange> exchange_;  // where there are ranks
  int64_t count_;
  std::list<CachedPart> cached_;  // most recently used first
};

/// A model whose prediction is known: a task's loss then compares that.
Model model_giving(const Model& model, const Values& prediction);

/// The meshes of samples, in their order.
std::vector<MeshView> meshes_of(const Dataset& dataset, std::string_view split,
                                const std::vector<Sample>& samples);

/// The sizes of a part's batch.
BatchShape shape_of(const Part& part);

/// Fills the tensors of a part's batch from those of the whole; all lie on the host.
void write_part(const Batch& whole, const Part& part, const Batch& to);

}  // namespace meshgrad
