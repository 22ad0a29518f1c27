// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/c_border.h>
#include <meshgrad/train/embed/graph_predictor.h>

#include <fmt/format.h>

struct meshgrad_graph_predictor {
  meshgrad::c::RuntimeUse runtime;
  meshgrad::GraphPredictor predictor;
};

namespace meshgrad::c {
namespace {

Numbers optional_numbers(const Runtime& runtime, const meshgrad_array& array, const char* what) {
  return array.rank == 0 ? Numbers() : numbers_of(runtime, array, what);
}

Integers optional_integers(const Runtime& runtime, const meshgrad_array& array, const char* what) {
  return array.rank == 0 ? Integers() : integers_of(runtime, array, what);
}

GraphArrays arrays_of(const Runtime& runtime, const meshgrad_graph& graph, const GraphPredictor& predictor) {
  std::optional<bool> directed;
  if (graph.directed == 0 || graph.directed == 1) directed = graph.directed == 1;
  if (!directed && graph.directed != -1) {
    throw invalid_argument("graph: directed", "1, 0 for edges once or both ways, or -1 for what the data had",
                           fmt::format("{}", graph.directed), "leave it as meshgrad_graph_init sets it");
  }
  check_columns(graph.inputs, predictor.node_columns(), "graph: inputs");
  check_columns(graph.edges, 2, "graph: edges");
  check_columns(graph.identifiers, std::ssize(predictor.identifiers()), "graph: identifiers");
  check_columns(graph.edge_inputs, predictor.edge_columns(), "graph: edge_inputs");
  check_columns(graph.graph_inputs, predictor.graph_columns(), "graph: graph_inputs");
  check_columns(graph.positions, predictor.dim(), "graph: positions");
  return {.inputs = optional_numbers(runtime, graph.inputs, "graph: inputs"),
          .edges = integers_of(runtime, graph.edges, "graph: edges"),
          .directed = directed,
          .first_node = graph.first_node,
          .graph_inputs = optional_numbers(runtime, graph.graph_inputs, "graph: graph_inputs"),
          .positions = optional_numbers(runtime, graph.positions, "graph: positions"),
          .node_type = optional_integers(runtime, graph.node_type, "graph: node_type"),
          .starts = optional_integers(runtime, graph.starts, "graph: starts"),
          .identifiers = optional_integers(runtime, graph.identifiers, "graph: identifiers"),
          .edge_inputs = optional_numbers(runtime, graph.edge_inputs, "graph: edge_inputs")};
}

}  // namespace
}  // namespace meshgrad::c

using namespace meshgrad;
using namespace meshgrad::c;

void meshgrad_graph_init_sized(meshgrad_graph* graph, size_t size) {
  meshgrad_graph defaults{};
  defaults.directed = -1;
  initialise(graph, size, defaults);
}

int meshgrad_graph_predictor_create(meshgrad_runtime* runtime, const char* checkpoint,
                                    meshgrad_graph_predictor** predictor) {
  return guarded([&] {
    given(predictor, "meshgrad_graph_predictor_create: predictor") = nullptr;
    meshgrad_runtime& on = given(runtime, "runtime");
    *predictor = new meshgrad_graph_predictor{RuntimeUse(on),
                                              GraphPredictor(on.runtime, &given(checkpoint, "checkpoint"))};
  });
}

void meshgrad_graph_predictor_destroy(meshgrad_graph_predictor* predictor) {
  if (predictor != nullptr && !predictor->runtime->process.left_behind()) delete predictor;
}

int meshgrad_graph_predictor_sizes(const meshgrad_graph_predictor* predictor, int32_t* inputs,
                                   int32_t* identifiers, int32_t* graph_inputs, int32_t* edge_inputs,
                                   int32_t* dim, int32_t* columns, int32_t* per_graph) {
  return guarded([&] {
    const GraphPredictor& ours = given(predictor, "predictor").predictor;
    if (inputs != nullptr) *inputs = static_cast<int32_t>(ours.node_columns());
    if (identifiers != nullptr) *identifiers = static_cast<int32_t>(ours.identifiers().size());
    if (edge_inputs != nullptr) *edge_inputs = static_cast<int32_t>(ours.edge_columns());
    if (graph_inputs != nullptr) *graph_inputs = static_cast<int32_t>(ours.graph_columns());
    if (dim != nullptr) *dim = ours.dim();
    if (columns != nullptr) *columns = static_cast<int32_t>(ours.columns());
    if (per_graph != nullptr) *per_graph = ours.per_graph() ? 1 : 0;
  });
}

int meshgrad_graph_predictor_predict(meshgrad_graph_predictor* predictor, const meshgrad_graph* graph,
                                     const meshgrad_array* values) {
  return guarded([&] {
    meshgrad_graph_predictor& ours = given(predictor, "predictor");
    const Runtime& runtime = ours.runtime->runtime;
    ours.runtime->process.check("predictor");
    const meshgrad_graph full = completed(given(graph, "graph"), meshgrad_graph{}, {}, "meshgrad_graph");
    check_columns(given(values, "values"), ours.predictor.columns(), "values");
    ours.predictor.predict(arrays_of(runtime, full, ours.predictor),
                           writable_numbers_of(runtime, *values, "values"));
  });
}
