// SPDX-License-Identifier: Apache-2.0
// Tables of identifiers: nodes of one identifier share a trained row, which they read beside their features.
#pragma once
#include <meshgrad/nn/model.h>

namespace meshgrad {

/// Columns of a node after the stage that add_embedding adds: its features, then a row of each table.
int64_t node_columns(const ModelSizes& sizes);

/// Adds the stage "embedding" and a parameter embedding.NAME.weight, [rows, width], for each of sizes.tables;
/// nothing without any. Call it before other parameters are added. Rows begin as 0, so that an identifier
/// that training never has reads zeros. The stage throws InvalidArgument for a batch with another number of
/// tables.
void add_embedding(Model& model, const ModelSizes& sizes);

}  // namespace meshgrad
