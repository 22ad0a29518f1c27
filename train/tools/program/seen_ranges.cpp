// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/mesh_size.h>
#include <meshgrad/train/tools/program/seen_ranges.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace meshgrad {
namespace {

constexpr double kFarShare = 0.1;   // of the span in training
constexpr double kRounding = 1e-6;  // of a value that is the same in all of the training
constexpr double kFarSize = 1.5;    // times the nodes, or the mean length of edges, in training

SeenRange with(const SeenRange& range, double value) {
  return {std::min(range.least, value), std::max(range.most, value)};
}

void note_range(const std::string& what, const SeenRange& now, const SeenRange& trained,
                std::set<std::string>& notes) {
  const double span = trained.most - trained.least;
  const double outside = std::max({trained.least - now.least, now.most - trained.most, 0.0});
  const double rounding = kRounding * std::max(std::abs(trained.least), std::abs(trained.most));
  if (outside <= std::max(kFarShare * span, rounding)) return;
  notes.insert(fmt::format("far from the training: {} is {}, in training {}", what, range_text(now),
                           range_text(trained)));
}

}  // namespace

std::string range_text(const SeenRange& range) {
  const double size = std::max(std::abs(range.least), std::abs(range.most));
  const int digits = range.most - range.least < 1e-3 * size ? 12 : 5;
  return fmt::format("{:.{}g} to {:.{}g}", range.least, digits, range.most, digits);
}

void SeenRanges::add(const std::string& field, std::span<const double> values, size_t components) {
  std::vector<SeenRange>& ranges = fields_[field];
  for (size_t i = 0; i < values.size(); ++i) {
    if (ranges.size() < components) ranges.push_back({values[i], values[i]});
    ranges[i % components] = with(ranges[i % components], values[i]);
  }
}

void SeenRanges::add(const MeshView& mesh) {
  const auto nodes = static_cast<double>(mesh.nodes);
  nodes_ = with(nodes_.value_or(SeenRange{nodes, nodes}), nodes);
  double sum = 0.0;
  for (size_t edge = 0; edge < mesh.senders.size(); ++edge) sum += edge_length(mesh, edge);
  if (mesh.edges == 0) return;
  const double length = sum / static_cast<double>(mesh.edges);
  edge_length_ = with(edge_length_.value_or(SeenRange{length, length}), length);
}

void SeenRanges::note(const std::optional<TrainingRanges>& trained, std::set<std::string>& notes) const {
  if (!trained) {
    notes.insert("how far these data are from the training is not known: the checkpoint has no ranges");
    return;
  }
  for (const auto& [name, ranges] : fields_) {
    const auto known = trained->fields.find(name);
    if (known == trained->fields.end() || known->second.size() != ranges.size()) continue;
    for (size_t c = 0; c < ranges.size(); ++c) {
      const std::string field = ranges.size() == 1 ? name : fmt::format("{}[{}]", name, c);
      note_range(field, ranges[c], known->second[c], notes);
    }
  }
  if (nodes_ &&
      (nodes_->most > kFarSize * trained->nodes.most || nodes_->least < trained->nodes.least / kFarSize)) {
    notes.insert(fmt::format("far from the training: meshes have {} to {} nodes, in training {} to {}",
                             nodes_->least, nodes_->most, trained->nodes.least, trained->nodes.most));
  }
  if (!edge_length_ || trained->edge_length <= 0.0) return;
  const double longest = edge_length_->most / trained->edge_length;
  const double shortest = edge_length_->least / trained->edge_length;
  if (longest <= kFarSize && shortest >= 1.0 / kFarSize) return;
  notes.insert(
      fmt::format("far from the training: edges of a mesh are {} long on average, in training {:.3g}",
                  range_text(*edge_length_), trained->edge_length));
}

}  // namespace meshgrad
