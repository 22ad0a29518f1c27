// SPDX-License-Identifier: Apache-2.0
// Bounds of what a training batch can hold, from the sizes of the split's meshes: for plans, for classes of
// batches, and for the room of a batch that is validated.
#pragma once
#include <meshgrad/train/learn/task/task.h>

#include <vector>

namespace meshgrad {

/// The largest batch of the training split: the sums of nodes and of edges of its train.batch largest
/// samples. A sample counts once for every pass over the split that a window of train.batch *
/// train.accumulate samples can touch: once where passes are whole windows, else twice or more; with a
/// curriculum as often as Curriculum::most_uses. A trajectory with too few frames for a sample counts as if
/// it had one. With train.batch_nodes: that many nodes, or fewer where the split has no more, as many edges
/// as so many nodes can have, and the most samples that they can be. Throws ConfigError where a graph has
/// more nodes.
BatchShape largest_batch(const Config& config, const Task& task);
/// The same of its smallest samples.
BatchShape smallest_batch(const Config& config, const Task& task);

/// Samples of such a batch, those with the most edges: as many edges as largest_batch has, no more nodes;
/// with train.batch_nodes those with the most edges a node, and about as many. Throws DataError where one of
/// these has too few frames.
std::vector<Sample> largest_samples(const Config& config, const Task& task);

}  // namespace meshgrad
