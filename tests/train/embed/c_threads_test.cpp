// SPDX-License-Identifier: Apache-2.0
// meshgrad.h from several threads and in the child of fork(): what its statement about threads allows.
// ThreadSanitizer runs these tests, too.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/meshgrad.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "support.h"
#include "train/process.h"
#include "train/scratch_directory.h"

namespace meshgrad::c_threads_test {
namespace {

using test::contains;

/// A grid of 6 x 6 nodes with a wave, as arrays of a solver.
struct Solver {
  static constexpr int32_t kSide = 6, kNodes = kSide * kSide;
  std::vector<double> positions, u = std::vector<double>(kNodes);
  std::vector<int32_t> cells, types;
  Solver() {
    for (int32_t i = 0; i < kNodes; ++i) {
      const int32_t x = i % kSide, y = i / kSide;
      positions.insert(positions.end(), {0.1 * x, 0.1 * y});
      types.push_back(x == 0 ? 1 : 0);
      if (x + 1 < kSide && y + 1 < kSide) cells.insert(cells.end(), {i, i + 1, i + kSide + 1, i + kSide});
    }
    at(0);
  }
  void at(int t) {
    for (size_t i = 0; i < u.size(); ++i) u[i] = std::sin(0.3 * static_cast<double>(i) + 0.2 * t);
  }
  meshgrad_mesh mesh() const {
    return meshgrad_mesh_of_cells(meshgrad_f64(positions.data(), kNodes, 2),
                                  meshgrad_i32(cells.data(), static_cast<int64_t>(cells.size()) / 4, 4),
                                  meshgrad_i32(types.data(), kNodes, 1));
  }
  meshgrad_array field() const { return meshgrad_f64(u.data(), kNodes, 1); }
};

constexpr const char* kConfig =
    "data.inputs = ['u']\ndata.targets = ['u']\ndata.node_types = 2\ndata.predicted_types = [0]\n"
    "model.width = 8\nmodel.blocks = 1\ntrain.noise = 0.0\n";

int create_trainer(meshgrad_runtime* runtime, const char* config, meshgrad_trainer** trainer) {
  const meshgrad_field field = {"u", 1, 0, nullptr};
  meshgrad_trainer_options options;
  meshgrad_trainer_options_init(&options);
  options.config = config;
  options.fields = &field;
  options.field_count = 1;
  options.held_out_every = 3;
  return meshgrad_trainer_create(runtime, &options, trainer);
}

/// The handles and the results of one host thread; `failed` counts calls that were no success.
struct Host {
  std::string path;
  meshgrad_runtime* runtime = nullptr;
  meshgrad_trainer* trainer = nullptr;
  meshgrad_predictor* predictor = nullptr;
  Solver solver{};
  int failed = 0, lines = 0;
  std::vector<double> results{};

  void call(int status) { failed += status == MESHGRAD_OK ? 0 : 1; }
  void open() {
    meshgrad_runtime_options options;
    meshgrad_runtime_options_init(&options);
    options.threads = 2;
    options.log = [](void* context, int32_t, const char*) { ++*static_cast<int*>(context); };
    options.log_context = &lines;
    call(meshgrad_runtime_create(&options, &runtime));
  }
  void train() {
    const meshgrad_mesh mesh = solver.mesh();
    call(create_trainer(runtime, kConfig, &trainer));
    call(meshgrad_trainer_set_mesh(trainer, &mesh));
    for (int t = 0; t < 8; ++t) {
      if (t == 5) call(meshgrad_trainer_restart_trajectory(trainer));
      solver.at(t);
      const meshgrad_array u = solver.field();
      call(meshgrad_trainer_set_field(trainer, "u", &u));
      call(meshgrad_trainer_append(trainer));
      take_steps();
    }
    call(meshgrad_trainer_save(trainer, path.c_str()));
    meshgrad_trainer_destroy(trainer);
    call(meshgrad_trainer_load(runtime, path.c_str(), &trainer));
    take_steps();
    double loss = 0;
    int64_t steps = 0, samples = 0, seen = 0;
    call(meshgrad_trainer_held_out_loss(trainer, &loss));
    call(meshgrad_trainer_counts(trainer, &steps, &samples, &seen));
    results.insert(results.end(), {loss, static_cast<double>(steps), static_cast<double>(samples)});
  }
  void take_steps() {
    double loss = 0;
    call(meshgrad_trainer_train(trainer, 2, -1.0, nullptr, &loss));
    results.push_back(loss);
  }
  void predict() {
    const meshgrad_mesh meshes[] = {solver.mesh(), solver.mesh()};
    int32_t dim = 0, components = 0, on_graph = 0;
    double dt = 0;
    const char* name = nullptr;
    call(meshgrad_predictor_create(runtime, path.c_str(), &predictor));
    call(meshgrad_predictor_dim(predictor, &dim));
    call(meshgrad_predictor_dt(predictor, &dt));
    call(meshgrad_predictor_input(predictor, 0, &name, &components, &on_graph));
    call(meshgrad_predictor_target(predictor, 0, &name, &components));
    call(meshgrad_predictor_set_meshes(predictor, meshes, 2));
    call(meshgrad_predictor_record_steps(predictor, 1));
    steps();
    call(meshgrad_predictor_positions_changed(predictor));
    call(meshgrad_predictor_set_mesh(predictor, meshes));
    if (meshgrad_predictor_predict(predictor, 0) == MESHGRAD_OK) ++failed;
    if (!contains(meshgrad_last_error(), "[MeshPredictor: steps]")) ++failed;
  }
  void steps() {
    solver.at(0);
    const meshgrad_array u = solver.field();
    for (int32_t mesh = 0; mesh < 2; ++mesh) call(meshgrad_predictor_set_field(predictor, mesh, "u", &u));
    call(meshgrad_predictor_predict(predictor, 2));
    call(meshgrad_predictor_set_boundary(predictor, 1, "u", &u));
    call(meshgrad_predictor_predict(predictor, 1));
    call(meshgrad_predictor_set_gradient(predictor, 1, "u", &u));
    call(meshgrad_predictor_backward(predictor));
    read(1, &meshgrad_predictor_get_field);
    read(1, &meshgrad_predictor_get_gradient);
    std::vector<double> xy(solver.positions.size());
    const meshgrad_array to = meshgrad_f64(xy.data(), Solver::kNodes, 2);
    call(meshgrad_predictor_get_position_gradient(predictor, 1, &to));
    results.insert(results.end(), xy.begin(), xy.end());
    const meshgrad_array by_u = meshgrad_f64(xy.data(), Solver::kNodes, 1);
    call(meshgrad_predictor_get_boundary_gradient(predictor, 1, "u", 2, &by_u));
    results.insert(results.end(), xy.begin(), xy.end());
  }
  template <class Get>
  void read(int32_t mesh, Get get) {
    std::vector<double> values(Solver::kNodes);
    const meshgrad_array to = meshgrad_f64(values.data(), Solver::kNodes, 1);
    call(get(predictor, mesh, "u", &to));
    results.insert(results.end(), values.begin(), values.end());
  }
  void close() {
    meshgrad_predictor_destroy(predictor);
    meshgrad_trainer_destroy(trainer);
    meshgrad_runtime_destroy(runtime);
  }
  /// Makes a trainer and a predictor, ready for further calls.
  void make() {
    open();
    train();
    predict();
  }
  void all() {
    make();
    close();
  }
};

TEST_CASE("handles of different runtimes are used at the same time, in every call") {
  const test::ScratchDirectory scratch;
  const auto path = [&](int i) { return (scratch.path / std::to_string(i)).string(); };
  Host expected{path(0)};
  expected.all();
  CHECK(expected.failed == 0);
  CHECK(expected.results.size() > 4 * Solver::kNodes);
  std::vector<Host> hosts;
  for (int i = 1; i <= 3; ++i) hosts.push_back({path(i)});
  std::vector<std::thread> threads;
  for (Host& host : hosts) {
    threads.emplace_back([&host] {
      if (std::string(meshgrad_version()).empty()) ++host.failed;
      host.all();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Host& host : hosts) {
    CHECK(host.failed == 0);
    CHECK(host.results == expected.results);
  }
}

TEST_CASE("handles go from one thread to the next") {
  const test::ScratchDirectory scratch;
  Host expected{(scratch.path / "expected").string()}, host{(scratch.path / "handed_on").string()};
  expected.all();
  for (void (Host::*part)() : {&Host::open, &Host::train, &Host::predict, &Host::close})
    std::thread([&] { (host.*part)(); }).join();
  CHECK(host.failed == 0);
  CHECK(host.results == expected.results);
}

TEST_CASE("the child of fork() goes on with its copies on one thread, and makes a runtime of its own") {
  const test::ScratchDirectory scratch;
  Host host{(scratch.path / "model").string()};
  host.make();
  const meshgrad_mesh mesh = host.solver.mesh();
  const meshgrad_mesh meshes[] = {mesh, mesh};
  REQUIRE(meshgrad_predictor_set_meshes(host.predictor, meshes, 2) == MESHGRAD_OK);
  host.results.clear();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // of a child that waits for threads that it does not have
    host.steps();
    host.take_steps();
    const std::vector<double> results = host.results;
    host.close();
    Host own{(scratch.path / "child").string()};
#if !defined(__SANITIZE_THREAD__)  // it ends a child that starts threads
    own.all();
#endif
    _exit(host.failed + own.failed > 0 ? 1 : results.size() > 4 * Solver::kNodes ? 0 : 2);
  }
  int status = -1;
  waitpid(child, &status, 0);
  CHECK(test::exit_code_of_status(status) == 0);
  host.steps();  // the parent's handles are as they were
  host.close();
  CHECK(host.failed == 0);
}

TEST_CASE("keys that contradict each other are a status that names the first, in a trainer too") {
  meshgrad_runtime* runtime = nullptr;
  REQUIRE(meshgrad_runtime_create(nullptr, &runtime) == MESHGRAD_OK);
  meshgrad_trainer* trainer = nullptr;
  const auto says = [&](const char* keys, const char* text) {
    const std::string config = std::string(kConfig) + keys;
    CHECK(create_trainer(runtime, config.c_str(), &trainer) == MESHGRAD_CONFIG_ERROR);
    CHECK(trainer == nullptr);
    CAPTURE(std::string(meshgrad_last_error()));
    CHECK(contains(meshgrad_last_error(), text));
  };
  says("optimizer.momentum = 0.5\n", "optimizer.momentum");
  says("schedule.final_lr = 1.0\n", "schedule.final_lr");
  says("data.value_targets = ['v']\n", "data.value_targets");
  says("train.epochs = 2\n", "no epochs, patience and validate_rollouts with OnlineTrainer");
  says("optimizer.lr = 'fast'\n", "optimizer.lr");
  meshgrad_runtime_destroy(runtime);
}

TEST_CASE("node numbers of 64 bits are taken, and refused where they do not fit, with their row") {
  const test::ScratchDirectory scratch;
  Host host{(scratch.path / "model").string()};
  host.make();
  const auto values = [&] {
    const meshgrad_array u = host.solver.field();
    host.results.clear();
    host.call(meshgrad_predictor_set_field(host.predictor, 0, "u", &u));
    host.call(meshgrad_predictor_predict(host.predictor, 2));
    host.read(0, &meshgrad_predictor_get_field);
    return host.results;
  };
  meshgrad_mesh mesh = host.solver.mesh();
  host.call(meshgrad_predictor_set_mesh(host.predictor, &mesh));
  const std::vector<double> expected = values();
  std::vector<int64_t> cells(host.solver.cells.begin(), host.solver.cells.end()), edges;
  std::vector<int64_t> types(host.solver.types.begin(), host.solver.types.end());
  const auto cells_at = [&] { return meshgrad_i64(cells.data(), static_cast<int64_t>(cells.size()) / 4, 4); };
  mesh.cells = cells_at();
  mesh.node_type = meshgrad_i64(types.data(), Solver::kNodes, 1);
  host.call(meshgrad_predictor_set_mesh(host.predictor, &mesh));
  CHECK(values() == expected);
  for (int64_t& node : cells) ++node;
  mesh.first_node = 1;
  host.call(meshgrad_predictor_set_mesh(host.predictor, &mesh));
  CHECK(values() == expected);
  host.call(meshgrad_trainer_set_mesh(host.trainer, &mesh));
  CHECK(host.failed == 0);

  const auto refused = [&](int status, const std::string& place, const std::string& value) {
    CAPTURE(std::string(meshgrad_last_error()));
    CHECK(status == MESHGRAD_DATA_ERROR);
    CHECK(contains(meshgrad_last_error(), place));
    CHECK(contains(meshgrad_last_error(), "got " + value));
  };
  const int64_t kept = cells[4 * 3 + 2];
  for (const int64_t value : {int64_t{1} << 31, (int64_t{1} << 32) + kept, int64_t{-1} << 40}) {
    cells[4 * 3 + 2] = value;  // the second is a node where it is wrapped
    refused(meshgrad_predictor_set_mesh(host.predictor, &mesh), "mesh: cells, row 3", std::to_string(value));
    refused(meshgrad_trainer_set_mesh(host.trainer, &mesh), "mesh: cells, row 3", std::to_string(value));
  }
  cells[4 * 3 + 2] = kept;
  for (size_t i = 0; i < cells.size(); i += 4) edges.insert(edges.end(), {cells[i], cells[i + 1]});
  edges[2 * 5 + 1] = int64_t{1} << 31;
  mesh.cells.rank = 0;
  mesh.edges = meshgrad_i64(edges.data(), static_cast<int64_t>(edges.size()) / 2, 2);
  refused(meshgrad_predictor_set_mesh(host.predictor, &mesh), "mesh: edges, row 5", "2147483648");
  mesh.edges = {};
  mesh.cells = cells_at();
  types[7] = int64_t{1} << 40;
  refused(meshgrad_predictor_set_mesh(host.predictor, &mesh), "mesh: node_type, row 7", "1099511627776");
  // Numbers of 32 bits are not wrapped by first_node.
  types[7] = 0;
  mesh.cells = meshgrad_i32(host.solver.cells.data(), std::ssize(host.solver.cells) / 4, 4);
  mesh.first_node = INT32_MIN;
  refused(meshgrad_predictor_set_mesh(host.predictor, &mesh), "mesh: cells, row 0", "2147483648");
  CHECK(values() == expected);  // the mesh before stayed
  host.close();
}

}  // namespace
}  // namespace meshgrad::c_threads_test
