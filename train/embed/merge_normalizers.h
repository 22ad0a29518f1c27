// SPDX-License-Identifier: Apache-2.0
// Normalisers of a model that several ranks train, each on samples of its own.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/nn/normalizer.h>

namespace meshgrad {

/// Adds what every rank has learned to `merged`, in the order of the ranks: the same bits on each. `learned`
/// is empty afterwards. Collective.
void merge_normalizers(Ranks& ranks, Normalizers& learned, Normalizers& merged);

}  // namespace meshgrad
