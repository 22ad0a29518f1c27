// SPDX-License-Identifier: Apache-2.0
// Edges that a run makes: across the borders of a periodic domain, and between nodes several edges apart.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/made_edges.h>
#include <meshgrad/train/data/memory_data.h>
#include <meshgrad/train/data/world_edges.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/make_model.h>
#include <meshgrad/train/learn/task/task.h>
#include <meshgrad/train/tools/program/memory_plan.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "support.h"
#include "train/mesh_arrays.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;

constexpr int kCellsX = 6, kCellsY = 5;
constexpr float kSpacing = 0.2f;

/// A mesh in memory with a field u, which has one value a point of the periodic domain.
struct GridMesh {
  std::vector<float> positions, u, values, places;  // values, places: of u and positions in each frame
  std::vector<int32_t> types, cells, first, second, point;  // of each node: its point
  std::shared_ptr<MemoryData> data = std::make_shared<MemoryData>();

  Dataset dataset(const MeshEdgeOptions& options, int64_t frames = 1) {
    data->dim = 2;
    data->edge_options = options;
    data->fields = {{.name = "u", .components = 1}, {.name = "at", .components = 2}};
    data->splits = {{.name = "train", .first = 0, .count = 1}};
    if (cells.empty()) {
      data->add_mesh("grid", positions, types, first, second);
    } else {
      data->add_mesh("grid", positions, types, CellKind::triangle, cells);
    }
    values.clear();
    places.clear();
    for (int64_t frame = 0; frame < frames; ++frame) {
      values.insert(values.end(), u.begin(), u.end());
      places.insert(places.end(), positions.begin(), positions.end());
    }
    data->trajectories = {{.mesh = 0, .frames = frames, .fields = {values, places}}};
    return Dataset::over(data);
  }
};

/// A box of triangles whose nodes lie on all borders; points wrap along x, and along y if `both`.
GridMesh open_grid(bool both) {
  GridMesh grid;
  const int columns = kCellsX + 1, rows = kCellsY + 1;
  for (int y = 0; y < rows; ++y) {
    for (int x = 0; x < columns; ++x) {
      grid.positions.push_back(kSpacing * static_cast<float>(x));
      grid.positions.push_back(kSpacing * static_cast<float>(y));
      grid.types.push_back(0);
      grid.point.push_back((both ? y % kCellsY : y) * kCellsX + x % kCellsX);
      grid.u.push_back(std::sin(2.5f * static_cast<float>(grid.point.back())));
      if (x + 1 == columns || y + 1 == rows) continue;
      const int32_t at = y * columns + x;
      for (const int32_t node : {at, at + 1, at + columns, at + 1, at + columns + 1, at + columns})
        grid.cells.push_back(node);
    }
  }
  return grid;
}

/// The same domain with one node a point, and edges across the borders.
GridMesh glued_grid(bool both) {
  GridMesh grid;
  const int rows = both ? kCellsY : kCellsY + 1;
  for (int y = 0; y < rows; ++y) {
    for (int x = 0; x < kCellsX; ++x) {
      grid.positions.push_back(kSpacing * static_cast<float>(x));
      grid.positions.push_back(kSpacing * static_cast<float>(y));
      grid.types.push_back(0);
      grid.point.push_back(y * kCellsX + x);
      grid.u.push_back(std::sin(2.5f * static_cast<float>(grid.point.back())));
    }
  }
  const auto join = [&](int x, int y, int dx, int dy) {
    const int32_t to = (y + dy + rows) % rows * kCellsX + (x + dx + kCellsX) % kCellsX;
    grid.first.push_back(y * kCellsX + x);
    grid.second.push_back(to);
  };
  for (int y = 0; y < rows; ++y) {
    for (int x = 0; x < kCellsX; ++x) {
      join(x, y, 1, 0);
      if (!both && y + 1 == rows) continue;
      join(x, y, 0, 1);
      join(x, y, -1, 1);
    }
  }
  return grid;
}

MeshEdgeOptions periods(bool both, int64_t hops = 1) {
  return {.period = {static_cast<double>(kSpacing) * kCellsX,
                     both ? static_cast<double>(kSpacing) * kCellsY : 0.0, 0.0},
          .hops = hops};
}

/// Relative positions of a node's senders, rounded, with the sender's point.
std::multiset<std::array<int64_t, 3>> neighbours(const GridMesh& grid, const MeshView& mesh, size_t node) {
  std::multiset<std::array<int64_t, 3>> found;
  for (int32_t e = mesh.receiver_offsets[node]; e < mesh.receiver_offsets[node + 1]; ++e) {
    const auto sender = static_cast<size_t>(mesh.senders[static_cast<size_t>(e)]);
    CHECK(mesh.receivers[static_cast<size_t>(e)] == static_cast<int32_t>(node));
    std::array<int64_t, 3> one{0, 0, grid.point[sender]};
    for (size_t axis = 0; axis < 2; ++axis) {
      const double d = nearest_image(static_cast<double>(mesh.positions[2 * sender + axis]) -
                                         static_cast<double>(mesh.positions[2 * node + axis]),
                                     mesh.period[axis]);
      one[axis] = std::lround(d / static_cast<double>(kSpacing) * 1000.0);
    }
    found.insert(one);
  }
  return found;
}

TEST_CASE("a mesh with periodic borders has the glued mesh's edges") {
  for (const bool both : {false, true}) {
    for (const int64_t hops : {1, 2}) {
      if (both && hops == 2) continue;  // five cells a period are too few
      GridMesh open = open_grid(both), glued = glued_grid(both);
      const Dataset open_data = open.dataset(periods(both, hops)),
                    glued_data = glued.dataset(periods(both, hops));
      const MeshView a = open_data.trajectory(0).mesh(), b = glued_data.trajectory(0).mesh();
      CHECK(std::is_sorted(a.senders.begin() + a.receiver_offsets[3],
                           a.senders.begin() + a.receiver_offsets[4]));
      for (size_t node = 0; node < open.point.size(); ++node)
        CHECK(neighbours(open, a, node) == neighbours(glued, b, static_cast<size_t>(open.point[node])));
      for (size_t i = 0; i < a.sender_order.size(); ++i) {
        const auto edge = static_cast<size_t>(a.sender_order[i]);
        const auto sender = static_cast<size_t>(a.senders[edge]);
        CHECK(a.sender_offsets[sender] <= static_cast<int32_t>(i));
        CHECK(static_cast<int32_t>(i) < a.sender_offsets[sender + 1]);
      }
      // The mesh's own edges stay: of several images the nearest is joined.
      const Dataset plain = open_grid(both).dataset({});
      const MeshView own = plain.trajectory(0).mesh();
      CHECK(own.edges < a.edges);
      for (size_t e = 0; e < own.senders.size(); ++e) {
        const auto receiver = static_cast<size_t>(own.receivers[e]);
        CHECK(std::binary_search(a.senders.begin() + a.receiver_offsets[receiver],
                                 a.senders.begin() + a.receiver_offsets[receiver + 1], own.senders[e]));
      }
    }
  }
}

TEST_CASE("world edges across borders are those of the glued mesh") {
  for (const bool both : {false, true}) {
    GridMesh open = open_grid(both), glued = glued_grid(both);
    const Dataset open_data = open.dataset(periods(both)), glued_data = glued.dataset(periods(both));
    const WorldEdgeOptions options{.radius = 0.45};  // two cells
    const auto world_of = [&](const GridMesh& grid, MeshView mesh, float shift, MeshEdges& edges) {
      std::vector<float> at = grid.positions;
      for (float& x : at) x += shift;
      edges = world_edges(mesh, at, 2, options, 1 << 20).value();
      CHECK(count_world_edges(mesh, at, 2, options) == std::ssize(edges.senders));
      set_edges(mesh, edges);
      return mesh;
    };
    MeshEdges open_edges, glued_edges;
    const MeshView b = world_of(glued, glued_data.trajectory(0).mesh(), 0.0f, glued_edges);
    for (const float shift : {0.0f, 0.7f, -31.3f}) {
      const MeshView a = world_of(open, open_data.trajectory(0).mesh(), shift, open_edges);
      for (size_t node = 0; node < open.point.size(); ++node)
        REQUIRE(neighbours(open, a, node) == neighbours(glued, b, static_cast<size_t>(open.point[node])));
      for (size_t node = 0; node + 1 < a.receiver_offsets.size(); ++node)
        REQUIRE(std::is_sorted(a.senders.begin() + a.receiver_offsets[node],
                               a.senders.begin() + a.receiver_offsets[node + 1]));
    }
    CHECK(b.edges > (both ? 5 : 4) * std::ssize(glued.types));
  }
}

TEST_CASE("predictions across borders are those on the glued mesh") {
  for (const bool world : {false, true}) {
    Config config;
    config.precision = DType::f64;
    config.model.width = 8;
    config.model.blocks = 2;
    config.data.inputs = config.data.targets = {"u"};
    if (world) config.data.world_position = "at";
    if (world) config.data.world_radius = 0.45;
    Runtime runtime({.device = {}, .threads = 1});
    const auto predicted = [&](GridMesh& grid) {
      config.data.period = {static_cast<double>(kSpacing) * kCellsX, static_cast<double>(kSpacing) * kCellsY};
      const Task task = make_task(config, grid.dataset(periods(true)));
      Model model = make_model(config.model, task.sizes());
      model.parameters.allocate(runtime, DType::f64, 5);
      const auto plain = [](int64_t width) {
        const auto n = static_cast<size_t>(width);
        return Normalizer::fixed(std::vector<double>(n, 0.1), std::vector<double>(n, 0.5));
      };
      const Normalizers normalizers{plain(10), plain(world ? 6 : 3), plain(1), plain(world ? 3 : 0)};
      const MeshTask& mesh = task.mesh();
      const TrajectoryView trajectory = task.dataset().trajectory(0);
      const Batch batch = mesh.prediction_batch(runtime, DType::f64, trajectory, 0,
                                                mesh.state_at(trajectory, 0), normalizers);
      Tape tape(runtime, Tape::Mode::evaluate);
      return test::to_matrix(to_host(forward(model, tape, batch.graph).front().value(), runtime.stream()));
    };
    GridMesh open = open_grid(true), glued = glued_grid(true);
    const test::Matrix ours = predicted(open), expected = predicted(glued);
    double largest = 0.0;
    for (size_t node = 0; node < open.point.size(); ++node) {
      const double value = expected.v[static_cast<size_t>(open.point[node])];
      largest = std::max(largest, std::abs(value));
      // Positions are f32: edges of 0.2 have 1e-7 of noise.
      CHECK(ours.v[node] == doctest::Approx(value).epsilon(1e-5));
    }
    CHECK(largest > 1e-2);
  }
}

TEST_CASE("all images of a point have one noise") {
  GridMesh grid = open_grid(true);
  Config config;
  config.data.inputs = config.data.targets = {"u"};
  config.data.noise_types = config.data.predicted_types = {0};
  config.data.period = {static_cast<double>(kSpacing) * kCellsX, static_cast<double>(kSpacing) * kCellsY};
  const Task task = make_task(config, grid.dataset(periods(true), 2));
  const auto plain = [](int64_t width) {
    const auto n = static_cast<size_t>(width);
    return Normalizer::fixed(std::vector<double>(n, 0.0), std::vector<double>(n, 1.0));
  };
  Normalizers none{plain(task.mesh().fields.node_inputs), plain(3), plain(1)};
  Runtime runtime({.device = {}, .threads = 1});
  const Batch batch =
      training_batch(task, runtime, DType::f64, "train", {{0, 0, 0}}, {0.1, 0.5, 3}, none, false);
  const auto inputs = batch.graph.node_features.values<double>();
  const auto width = static_cast<size_t>(task.mesh().fields.node_inputs);
  std::map<int32_t, double> noisy;  // by point
  for (size_t node = 0; node < grid.point.size(); ++node) {
    const double value = inputs[node * width];
    CHECK(value != static_cast<double>(grid.u[node]));
    CHECK(noisy.emplace(grid.point[node], value).first->second == value);
  }
  CHECK(noisy.size() == size_t{kCellsX * kCellsY});
}

TEST_CASE("hops join what a breadth-first search reaches") {
  std::mt19937 random(3);
  GridMesh grid;
  constexpr int kNodes = 60;
  std::uniform_int_distribution<int32_t> any(0, kNodes - 1);
  for (int32_t node = 0; node < kNodes; ++node) {
    grid.positions.insert(grid.positions.end(), {static_cast<float>(node), static_cast<float>(any(random))});
    grid.types.push_back(0);
    grid.u.push_back(0);
    grid.first.push_back(node);
    grid.second.push_back(node == 0 ? 1 : any(random));
  }
  std::vector<std::vector<int>> distance(kNodes, std::vector<int>(kNodes, 1000));
  for (size_t i = 0; i < kNodes; ++i) {
    distance[i][i] = 0;
    const auto a = static_cast<size_t>(grid.first[i]), b = static_cast<size_t>(grid.second[i]);
    if (a != b) distance[a][b] = distance[b][a] = 1;
  }
  for (size_t k = 0; k < kNodes; ++k)
    for (size_t i = 0; i < kNodes; ++i)
      for (size_t j = 0; j < kNodes; ++j)
        distance[i][j] = std::min(distance[i][j], distance[i][k] + distance[k][j]);
  for (const int64_t hops : {1, 2, 3}) {
    GridMesh copy = grid;
    copy.data = std::make_shared<MemoryData>();
    const Dataset dataset = copy.dataset({.period = {}, .hops = hops});
    const MeshView mesh = dataset.trajectory(0).mesh();
    std::vector<int32_t> senders, receivers;
    for (size_t receiver = 0; receiver < kNodes; ++receiver) {
      for (size_t sender = 0; sender < kNodes; ++sender) {
        if (sender == receiver || distance[receiver][sender] > hops) continue;
        senders.push_back(static_cast<int32_t>(sender));
        receivers.push_back(static_cast<int32_t>(receiver));
      }
    }
    CHECK(std::equal(senders.begin(), senders.end(), mesh.senders.begin(), mesh.senders.end()));
    CHECK(std::equal(receivers.begin(), receivers.end(), mesh.receivers.begin(), mesh.receivers.end()));
  }
}

TEST_CASE("periods that do not fit a mesh are refused") {
  const auto refused = [](const MeshEdgeOptions& options) {
    return message_of([&] { open_grid(true).dataset(options); });
  };
  CHECK(contains(refused({.period = {0.9, 0, 0}}),
                 "[data.period] needed a mesh that is no longer than the period, "
                 "got 1.2 with a period of 0.9 along x"));
  CHECK(contains(
      refused({.period = {0, 1.5, 0}}),
      "needed edges across the border, or nodes at the same place on both borders, got no edges or nodes "
      "at a period of 1.5 along y"));
  CHECK(contains(refused(periods(true, 3)),
                 "needed edges whose length times data.hops is less than half the period, got 0.2 times 3"));
  CHECK(refused(periods(true, 2)).empty());
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 7));
  const Dataset dataset = Dataset::open(config.data.path);
  config.data.period = {0.6, 0, 0.6};
  CHECK(contains(message_of([&] { make_task(config, dataset); }),
                 "[data.period] needed 2 numbers for this data"));
}

TEST_CASE("runs with made edges train, plan and predict") {
  const test::ScratchDirectory scratch;
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 7, 8, true));
  config.data.period = {0.6};
  config.data.hops = 2;
  config.train.steps = 3;
  config.train.accumulate = 1;
  config.train.log_every = 1;
  const Dataset file = Dataset::open(config.data.path);
  const Task task = make_task(config, file);
  const Dataset& made = task.dataset();
  const int64_t edges = made.trajectory("train", 0).mesh().edges;
  CHECK(edges > 2 * file.trajectory("train", 0).mesh().edges);
  CHECK(made.largest_mesh("train").edges == edges);
  CHECK(made.with_edges(edge_options(config.data)).trajectory("train", 0).mesh().senders.data() ==
        made.trajectory("train", 0).mesh().senders.data());
  CHECK(task.shape("train", {{0, 0, 0}, {1, 0, 0}}).edges == 2 * edges);

  const FieldStatistics stats = made.edge_stats();
  std::vector<double> rows(static_cast<size_t>(3 * edges));
  SampleScratch scratch_rows;
  write_edges(task.mesh().fields, made.trajectory("train", 0), 0, {}, scratch_rows, rows.data());
  for (size_t column = 0; column < 3; ++column) {
    double sum = 0.0, squares = 0.0;
    for (size_t i = column; i < rows.size(); i += 3) {
      sum += rows[i] / static_cast<double>(edges);
      squares += rows[i] * rows[i] / static_cast<double>(edges);
      CHECK(std::abs(rows[i]) < 0.3);
    }
    CHECK(stats.mean[column] == doctest::Approx(sum).epsilon(1e-9).scale(1e-3));
    CHECK(stats.std[column] == doctest::Approx(std::sqrt(squares - sum * sum)).epsilon(1e-6));
  }

  Config plain = config;
  plain.data.hops = 1;
  plain.data.period.clear();
  CHECK(plan_memory(config, {}).step.live > plan_memory(plain, {}).step.live * 3 / 2);

  test::train_here(config);
  const std::vector<double> losses = test::losses_of(config.run.dir);
  const fs::path checkpoint = fs::path(config.run.dir) / "checkpoints" / "last.safetensors";
  Runtime runtime({.device = {}, .threads = 1});
  const Predictor predictor(runtime, checkpoint);
  const TrajectoryView trajectory = predictor.dataset().trajectory("test", 0);
  std::vector<float> last;
  roll_out(predictor, trajectory, {.steps = 3, .boundary = RolloutBoundary::initial},
           [&](const RolloutFrame& now) { last = now.ours; });
  MeshPredictor memory(runtime, checkpoint);
  memory.set_mesh(test::arrays_of(trajectory.mesh()));
  memory.set_field("velocity", trajectory.field("velocity").frame(0));
  memory.predict(3);
  std::vector<float> ours(last.size());
  memory.get_field("velocity", ours);
  CHECK(ours == last);

  Config in_parts = config;
  in_parts.run.dir = (scratch.path / "parts").string();
  in_parts.ranks.parts_in_turn = 3;
  test::train_here(in_parts);
  const std::vector<double> others = test::losses_of(in_parts.run.dir);
  REQUIRE(losses.size() == 3);
  REQUIRE(others.size() == losses.size());
  for (size_t i = 0; i < losses.size(); ++i) CHECK(others[i] == doctest::Approx(losses[i]).epsilon(1e-4));
  config.data.hops = 1;
  CHECK(contains(message_of([&] { test::train_here(config, true); }), "data.hops"));
}

}  // namespace
}  // namespace meshgrad
