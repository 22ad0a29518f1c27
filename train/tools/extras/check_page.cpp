// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/tools/extras/check_page.h>
#include <meshgrad/train/tools/extras/page.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

namespace meshgrad {
namespace {

constexpr int64_t kMostDrawnNodes = 20000;
constexpr double kGrid = 8191;  // positions are drawn on so fine a grid, as whole numbers

/// {"name", "nodes", "drawn", "x", "y", "types", "edges": [a, b, a, b...]}; only nodes where there are many.
nlohmann::json drawn_mesh(const Dataset& dataset) {
  const TrajectoryView trajectory = dataset.trajectory(dataset.statistics_split(), 0);
  const MeshView& mesh = trajectory.mesh();
  const auto dim = static_cast<size_t>(mesh.dim);
  const int64_t stride = (mesh.nodes + kMostDrawnNodes - 1) / kMostDrawnNodes;
  const auto at = [&](int64_t node, size_t axis) {
    return static_cast<double>(mesh.positions[static_cast<size_t>(node) * dim + axis]);
  };
  double low[2] = {at(0, 0), at(0, 1)}, high[2] = {at(0, 0), at(0, 1)};
  for (int64_t n = 0; n < mesh.nodes; ++n) {
    for (size_t axis = 0; axis < 2; ++axis) {
      low[axis] = std::min(low[axis], at(n, axis));
      high[axis] = std::max(high[axis], at(n, axis));
    }
  }
  const double span = std::max({high[0] - low[0], high[1] - low[1], 1e-30});
  nlohmann::json drawn{{"name", trajectory.name()},
                       {"nodes", mesh.nodes},
                       {"width", std::lround(kGrid * (high[0] - low[0]) / span)},
                       {"height", std::lround(kGrid * (high[1] - low[1]) / span)},
                       {"x", nlohmann::json::array()},
                       {"y", nlohmann::json::array()},
                       {"types", nlohmann::json::array()},
                       {"edges", nlohmann::json::array()}};
  for (int64_t n = 0; n < mesh.nodes; n += stride) {
    drawn["x"].push_back(std::lround(kGrid * (at(n, 0) - low[0]) / span));
    drawn["y"].push_back(std::lround(kGrid * (at(n, 1) - low[1]) / span));
    drawn["types"].push_back(mesh.node_type[static_cast<size_t>(n)]);
  }
  if (stride == 1) drawn["edges"] = drawn_edges(mesh);
  return drawn;
}

}  // namespace

void write_check_page(const std::filesystem::path& path, const Dataset& dataset, std::string_view report) {
  const std::string mesh = drawn_mesh(dataset).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const std::string data = "{\"check\":" + std::string(report) + ",\"mesh\":" + mesh + "}";
  write_file_atomically(path, make_page(kCheckPage, data));
}

}  // namespace meshgrad
