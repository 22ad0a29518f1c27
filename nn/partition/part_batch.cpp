// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/runtime.h>
#include <meshgrad/nn/partition/part_batch.h>

#include <cstring>
#include <utility>

namespace meshgrad {
namespace {

Tensor rows_on_device(Runtime& runtime, const Tensor& whole, std::span<const int32_t> rows,
                      std::string_view name) {
  const Shape shape{static_cast<int64_t>(rows.size()), whole.width()};
  const Tensor host = host_tensor(shape, whole.dtype());
  copy_rows(whole, rows, host);
  const Tensor device = Tensor::empty(runtime, shape, whole.dtype(), Tag::data, name);
  copy(host, device, runtime.stream());
  if (runtime.stream().on_gpu()) runtime.stream().synchronize();  // before the host's memory goes
  return device;
}

}  // namespace

std::vector<SortedEdges> sorted_edges(const GraphBatch& batch) {
  std::vector<SortedEdges> sets;
  for (const EdgeSet& set : batch.edge_sets) {
    SortedEdges edges{set.graph.senders.values<int32_t>(), set.graph.receiver_offsets.values<int32_t>(),
                      set.name};
    if (set.graph.counts.defined())  // with room for more
      edges.senders = edges.senders.first(static_cast<size_t>(edges.receiver_offsets.back()));
    sets.push_back(edges);
  }
  return sets;
}

void copy_rows(const Tensor& from, std::span<const int32_t> rows, const Tensor& to) {
  const auto bytes = static_cast<size_t>(from.width() * size_of(from.dtype()));
  check_internal(from.width() == to.width() && from.dtype() == to.dtype() &&
                     static_cast<size_t>(to.rows()) >= rows.size(),
                 "rows of another width, type or number");
  const auto* source = static_cast<const char*>(from.raw());
  auto* target = static_cast<char*>(to.raw());
  for (const int32_t row : rows) {
    std::memcpy(target, source + static_cast<size_t>(row) * bytes, bytes);
    target += bytes;
  }
}

void place_rows(const Tensor& owned, const Part& part, const Tensor& whole) {
  const auto bytes = static_cast<size_t>(whole.width() * size_of(whole.dtype()));
  check_internal(
      owned.rows() == part.owned && owned.width() == whole.width() && owned.dtype() == whole.dtype(),
      "rows of another width, type or number");
  const auto* source = static_cast<const char*>(owned.raw());
  auto* target = static_cast<char*>(whole.raw());
  for (int64_t i = 0; i < part.owned; ++i) {
    const auto row = static_cast<size_t>(part.nodes[static_cast<size_t>(i)]);
    std::memcpy(target + row * bytes, source, bytes);
    source += bytes;
  }
}

GraphBatch part_batch(Runtime& runtime, const GraphBatch& whole, const Part& part,
                      std::shared_ptr<HaloExchange> exchange) {
  GraphBatch batch;
  batch.nodes = part.owned;
  batch.halo = std::make_shared<Halo>(part_halo(runtime, part, std::move(exchange)));
  batch.node_features =
      rows_on_device(runtime, whole.node_features,
                     std::span(part.nodes).first(static_cast<size_t>(part.owned)), "node features");
  for (size_t set = 0; set < whole.edge_sets.size(); ++set) {
    batch.edge_sets.push_back(
        {whole.edge_sets[set].name, part_graph(runtime, part, set),
         rows_on_device(runtime, whole.edge_sets[set].features, part.edge_sets[set].rows, "edge features")});
  }
  return batch;
}

}  // namespace meshgrad
