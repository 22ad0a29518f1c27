// SPDX-License-Identifier: Apache-2.0
// What is predicted of nodes or graphs, as CSV and NPZ.
#pragma once
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/learn/task/prediction.h>

#include <filesystem>
#include <string>
#include <vector>

namespace meshgrad {

struct TableFiles {
  std::filesystem::path csv, npz;
};

/// Writes predictions.csv, whose columns are those of the table after `node` or `graph`, the number, and
/// `class`; and predictions.npz with the same as arrays: the numbers, class, and each group of columns. In a
/// folder that is made, or that an earlier call wrote. Throws DataError for files of another program, or one
/// of `inputs`.
TableFiles write_table(const PredictedTable& table, const std::string& source,
                       const std::filesystem::path& directory,
                       const std::vector<std::filesystem::path>& inputs = {});

/// Adds a row of what the last prediction on one mesh gave of targets on graphs, if there are any.
void add_graph_row(PredictedTable& table, const MeshPredictor& predictor, int64_t number, int64_t frame);

}  // namespace meshgrad
