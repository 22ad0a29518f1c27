// SPDX-License-Identifier: Apache-2.0
// Predictions of new graphs whose classes or values are not known.
#pragma once
#include <meshgrad/train/data/dataset.h>
#include <meshgrad/train/embed/graph_predictor.h>
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/learn/task/prediction.h>

#include <string>

namespace meshgrad::cli {

/// Whether a run of nodes or graphs is to predict data that have not all of its target fields.
bool lacks_targets(const Config& config, const Dataset& data);

/// A row for each graph of a split, the first `most` of it (0: all), or for each node of the one graph.
/// Throws ConfigError for an input that the data lack, and DataError for one of another kind, and for several
/// graphs where nodes are predicted.
PredictedTable predict_without_targets(GraphPredictor& predictor, const Dataset& data,
                                       const std::string& split, int64_t most);

}  // namespace meshgrad::cli
