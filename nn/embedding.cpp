// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/nn/embedding.h>

namespace meshgrad {
namespace {

struct Embedding {
  std::vector<size_t> tables;

  Values operator()(Tape& tape, const ParameterSet& parameters, const GraphBatch& batch,
                    const Values& before) const {
    if (batch.identifiers.size() != tables.size())
      throw invalid_argument("embedding: batch",
                             "identifiers of " + std::to_string(tables.size()) + " tables",
                             std::to_string(batch.identifiers.size()));
    PerInput<ConcatPart> parts;
    if (before.front().value().width() > 0) parts.push_back({before.front()});
    for (size_t i = 0; i < tables.size(); ++i) {
      const Weight table = parameters.weight(tables[i]);
      if (batch.identifiers[i].nodes != table.value.rows())
        throw invalid_argument("embedding: batch", std::to_string(table.value.rows()) + " rows of a table",
                               std::to_string(batch.identifiers[i].nodes));
      parts.push_back({ops::embedding(tape, table, batch.identifiers[i])});
    }
    Values after{parts.size() == 1 ? parts.front().x : ops::concat(tape, parts)};
    for (size_t i = 1; i < before.size(); ++i) after.push_back(before[i]);
    return after;
  }
};

}  // namespace

int64_t node_columns(const ModelSizes& sizes) {
  int64_t columns = sizes.node_inputs;
  for (const IdentifierTable& table : sizes.tables) columns += table.width;
  return columns;
}

void add_embedding(Model& model, const ModelSizes& sizes) {
  if (sizes.tables.empty()) return;
  if (sizes.tables.size() > kMostIdentifierTables)
    throw invalid_argument("embedding", "at most " + std::to_string(kMostIdentifierTables) + " tables",
                           std::to_string(sizes.tables.size()));
  const int64_t first_weight = model.parameters.arena_elements();
  Embedding stage;
  for (const IdentifierTable& table : sizes.tables) {
    if (table.rows < 1 || table.width < 1)
      throw invalid_argument("embedding: table " + table.name, "1 row and 1 column or more",
                             std::to_string(table.rows) + " and " + std::to_string(table.width));
    stage.tables.push_back(model.parameters.add("embedding." + table.name + ".weight",
                                                Shape{table.rows, table.width}, Initial::zero, 1));
  }
  model.parameters.end_tables();
  model.stages.push_back({"embedding", false, std::move(stage), first_weight});
}

}  // namespace meshgrad
