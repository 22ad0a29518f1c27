// SPDX-License-Identifier: Apache-2.0
// meshgrad.h: the bits of the C++ interface, and every error as a status with a text.
#include <doctest/doctest.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/meshgrad.h>

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <thread>

#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad::c_interface_test {
namespace {

using test::contains;

struct Run {
  test::ScratchDirectory scratch;
  std::string checkpoint;
  std::vector<float> positions, velocity;
  std::vector<int32_t> cells, types;

  explicit Run(int side = 7, int64_t width = 16, int64_t blocks = 2, const DataConfig& data = {}) {
    Config config = test::small_config(scratch.path, test::pack_waves(scratch.path));
    config.data.history = data.history;
    config.data.kinematic_types = data.kinematic_types;
    config.train.steps = 2;
    config.model.width = width;
    config.model.blocks = blocks;
    config.train.validate_every = 0;
    test::train_here(config);
    checkpoint = config.run.dir + "/checkpoints/last.safetensors";
    const test::SquareRecord record = test::wave_record(side, 1, 0.3);
    positions = record.mesh_pos;
    velocity = record.velocity;
    cells = record.cells;
    types.assign(record.node_type.begin(), record.node_type.end());
  }
  int64_t nodes() const { return static_cast<int64_t>(types.size()); }
};

template <class T>
meshgrad_array array_of(std::vector<T>& values, int64_t columns) {
  const int32_t dtype = std::is_same_v<T, float>    ? MESHGRAD_F32
                        : std::is_same_v<T, double> ? MESHGRAD_F64
                                                    : MESHGRAD_I32;
  return {.data = values.data(),
          .dtype = dtype,
          .rank = columns > 1 ? 2 : 1,
          .shape = {static_cast<int64_t>(values.size()) / columns, columns, 0},
          .device = MESHGRAD_CPU};
}

struct Handles {
  meshgrad_runtime* runtime = nullptr;
  meshgrad_predictor* predictor = nullptr;
  explicit Handles(const std::string& checkpoint, const meshgrad_runtime_options* options = nullptr) {
    REQUIRE(meshgrad_runtime_create(options, &runtime) == MESHGRAD_OK);
    REQUIRE(meshgrad_predictor_create(runtime, checkpoint.c_str(), &predictor) == MESHGRAD_OK);
  }
  ~Handles() {
    meshgrad_predictor_destroy(predictor);
    meshgrad_runtime_destroy(runtime);
  }
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
};

meshgrad_mesh mesh_of(Run& run) {
  meshgrad_mesh mesh;
  meshgrad_mesh_init(&mesh);
  mesh.positions = array_of(run.positions, 2);
  mesh.cells = array_of(run.cells, 3);
  mesh.node_type = array_of(run.types, 1);
  return mesh;
}

std::vector<float> predicted(meshgrad_predictor* predictor, Run& run, int64_t steps) {
  const meshgrad_mesh mesh = mesh_of(run);
  const meshgrad_array velocity = array_of(run.velocity, 2);
  REQUIRE(meshgrad_predictor_set_mesh(predictor, &mesh) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_set_field(predictor, 0, "velocity", &velocity) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_predict(predictor, steps) == MESHGRAD_OK);
  std::vector<float> result(run.velocity.size());
  const meshgrad_array out = array_of(result, 2);
  REQUIRE(meshgrad_predictor_get_field(predictor, 0, "velocity", &out) == MESHGRAD_OK);
  return result;
}

TEST_CASE("the C interface predicts the bits of the C++ interface, from f32, f64 and numbers from 1") {
  Run run;
  Runtime runtime({.threads = 2});
  MeshPredictor reference(runtime, run.checkpoint);
  reference.set_mesh(
      {.positions = run.positions, .cells = run.cells, .nodes_per_cell = 3, .node_type = run.types});
  reference.set_field("velocity", run.velocity);
  reference.predict(3);
  std::vector<float> expected(run.velocity.size());
  reference.get_field("velocity", expected);

  Handles c(run.checkpoint);
  CHECK(predicted(c.predictor, run, 3) == expected);

  std::vector<double> positions(run.positions.begin(), run.positions.end());
  std::vector<double> velocity(run.velocity.begin(), run.velocity.end());
  std::vector<int32_t> cells = run.cells;
  for (int32_t& node : cells) ++node;
  meshgrad_mesh mesh = mesh_of(run);
  mesh.positions = array_of(positions, 2);
  mesh.cells = array_of(cells, 3);
  mesh.first_node = 1;
  const meshgrad_array values = array_of(velocity, 2);
  REQUIRE(meshgrad_predictor_set_mesh(c.predictor, &mesh) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_set_field(c.predictor, 0, "velocity", &values) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_predict(c.predictor, 3) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_get_field(c.predictor, 0, "velocity", &values) == MESHGRAD_OK);
  CHECK(std::vector<float>(velocity.begin(), velocity.end()) == expected);

  // The same mesh by its edges.
  std::vector<int32_t> edges;
  for (size_t i = 0; i < run.cells.size(); i += 3)
    for (size_t k = 0; k < 3; ++k) edges.insert(edges.end(), {run.cells[i + k], run.cells[i + (k + 1) % 3]});
  mesh = mesh_of(run);
  mesh.cells = {};
  mesh.edges = array_of(edges, 2);
  REQUIRE(meshgrad_predictor_set_mesh(c.predictor, &mesh) == MESHGRAD_OK);
  meshgrad_array start = array_of(run.velocity, 2);
  REQUIRE(meshgrad_predictor_set_field(c.predictor, 0, "velocity", &start) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_predict(c.predictor, 3) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_get_field(c.predictor, 0, "velocity", &start) == MESHGRAD_OK);
  CHECK(run.velocity == expected);
}

TEST_CASE("the C interface gives the gradients of the C++ interface, on several meshes") {
  Run run;
  Runtime runtime({.threads = 2});
  MeshPredictor reference(runtime, run.checkpoint);
  const MeshArrays arrays{
      .positions = run.positions, .cells = run.cells, .nodes_per_cell = 3, .node_type = run.types};
  reference.set_meshes(std::vector{arrays, arrays});
  reference.record_steps(true);
  std::vector<float> by_velocity(run.velocity.size()), by_positions(run.positions.size());
  for (int64_t i = 0; i < 2; ++i) reference.set_field("velocity", run.velocity, i);
  reference.predict(2);
  reference.set_gradient("velocity", run.velocity, 1);
  reference.backward();
  reference.get_gradient("velocity", by_velocity, 1);
  reference.get_position_gradient(by_positions, 1);

  Handles c(run.checkpoint);
  const meshgrad_mesh meshes[] = {mesh_of(run), mesh_of(run)};
  std::vector<float> velocity(run.velocity.size()), positions(run.positions.size());
  const meshgrad_array start = array_of(run.velocity, 2), to_velocity = array_of(velocity, 2);
  meshgrad_array to_positions = array_of(positions, 2);
  REQUIRE(meshgrad_predictor_set_meshes(c.predictor, meshes, 2) == MESHGRAD_OK);
  CHECK(meshgrad_predictor_backward(c.predictor) == MESHGRAD_INVALID_ARGUMENT);
  REQUIRE(meshgrad_predictor_record_steps(c.predictor, 1) == MESHGRAD_OK);
  for (int32_t i = 0; i < 2; ++i)
    REQUIRE(meshgrad_predictor_set_field(c.predictor, i, "velocity", &start) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_predict(c.predictor, 2) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_set_gradient(c.predictor, 1, "velocity", &start) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_backward(c.predictor) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_get_gradient(c.predictor, 1, "velocity", &to_velocity) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_get_position_gradient(c.predictor, 1, &to_positions) == MESHGRAD_OK);
  CHECK(velocity == by_velocity);
  CHECK(positions == by_positions);
  CHECK(meshgrad_predictor_get_previous_gradient(c.predictor, 1, "velocity", &to_velocity) ==
        MESHGRAD_INVALID_ARGUMENT);
  to_positions.shape[0] -= 1;
  CHECK(meshgrad_predictor_get_position_gradient(c.predictor, 1, &to_positions) == MESHGRAD_INVALID_ARGUMENT);
  CHECK(contains(meshgrad_last_error(), "[nodes, dim]"));
  // The mesh without a part in J has no gradient.
  REQUIRE(meshgrad_predictor_get_gradient(c.predictor, 0, "velocity", &to_velocity) == MESHGRAD_OK);
  CHECK(velocity == std::vector<float>(velocity.size(), 0.0f));
}

TEST_CASE("a predictor says what its model needs") {
  Run run;
  Handles c(run.checkpoint);
  int32_t dim = 0, components = 0, on_graph = 7;
  double dt = -1;
  const char* name = nullptr;
  CHECK(meshgrad_predictor_dim(c.predictor, &dim) == MESHGRAD_OK);
  CHECK(dim == 2);
  CHECK(meshgrad_predictor_dt(c.predictor, &dt) == MESHGRAD_OK);
  CHECK(dt == 0.5);
  CHECK(meshgrad_predictor_input(c.predictor, 0, &name, &components, &on_graph) == MESHGRAD_OK);
  CHECK(std::string(name) == "velocity");
  CHECK(components == 2);
  CHECK(on_graph == 0);
  CHECK(meshgrad_predictor_input(c.predictor, 1, &name, nullptr, nullptr) == MESHGRAD_INVALID_ARGUMENT);
  CHECK(meshgrad_predictor_target(c.predictor, 0, &name, &components) == MESHGRAD_OK);
  CHECK(meshgrad_predictor_target(c.predictor, -1, &name, &components) == MESHGRAD_INVALID_ARGUMENT);
}

TEST_CASE("errors are statuses with a text of this thread") {
  Run run;
  Handles c(run.checkpoint);
  const auto says = [](int status, int expected, const std::string& text) {
    CAPTURE(std::string(meshgrad_last_error()));
    CHECK(status == expected);
    CHECK(contains(meshgrad_last_error(), text));
  };
  meshgrad_predictor* none = nullptr;
  says(meshgrad_predictor_create(c.runtime, "/nowhere.safetensors", &none), MESHGRAD_DATA_ERROR, "/nowhere");
  CHECK(none == nullptr);
  says(meshgrad_predictor_create(nullptr, "x", &none), MESHGRAD_INVALID_ARGUMENT,
       "[runtime] needed a pointer");
  says(meshgrad_predictor_predict(nullptr, 1), MESHGRAD_INVALID_ARGUMENT, "[predictor] needed a pointer");
  says(meshgrad_predictor_predict(c.predictor, 1), MESHGRAD_INVALID_ARGUMENT, "call set_mesh first");

  meshgrad_mesh mesh = mesh_of(run);
  mesh.size = 4;
  says(meshgrad_predictor_set_mesh(c.predictor, &mesh), MESHGRAD_INVALID_ARGUMENT, "meshgrad_mesh_init");
  mesh = mesh_of(run);
  std::swap(mesh.positions.shape[0], mesh.positions.shape[1]);
  says(meshgrad_predictor_set_mesh(c.predictor, &mesh), MESHGRAD_INVALID_ARGUMENT,
       "[mesh: positions] needed 2 columns");
  mesh = mesh_of(run);
  mesh.positions.device = MESHGRAD_CUDA;
  says(meshgrad_predictor_set_mesh(c.predictor, &mesh), MESHGRAD_INVALID_ARGUMENT, "copy it to the host");
  mesh = mesh_of(run);
  mesh.cells.dtype = MESHGRAD_F32;
  says(meshgrad_predictor_set_mesh(c.predictor, &mesh), MESHGRAD_INVALID_ARGUMENT, "MESHGRAD_I32");
  mesh = mesh_of(run);
  mesh.cells.shape[0] = INT64_MAX;
  says(meshgrad_predictor_set_mesh(c.predictor, &mesh), MESHGRAD_INVALID_ARGUMENT, "fit in memory");
  mesh = mesh_of(run);
  mesh.first_node = 1;
  says(meshgrad_predictor_set_mesh(c.predictor, &mesh), MESHGRAD_DATA_ERROR, "] needed node numbers in 1..");

  mesh = mesh_of(run);
  REQUIRE(meshgrad_predictor_set_mesh(c.predictor, &mesh) == MESHGRAD_OK);
  meshgrad_array velocity = array_of(run.velocity, 2);
  std::swap(velocity.shape[0], velocity.shape[1]);
  says(meshgrad_predictor_set_field(c.predictor, 0, "velocity", &velocity), MESHGRAD_INVALID_ARGUMENT,
       "in Fortran the components are the first extent");
  velocity = array_of(run.velocity, 2);
  velocity.data = nullptr;
  says(meshgrad_predictor_set_field(c.predictor, 0, "velocity", &velocity), MESHGRAD_INVALID_ARGUMENT,
       "null pointer");

  std::string other = "untouched";
  std::thread([&] { other = meshgrad_last_error(); }).join();
  CHECK(other.empty());

  meshgrad_runtime* runtime = nullptr;
  meshgrad_runtime_options options;
  meshgrad_runtime_options_init(&options);
  options.device = "tpu";
  says(meshgrad_runtime_create(&options, &runtime), MESHGRAD_INVALID_ARGUMENT, "tpu");
  CHECK(runtime == nullptr);
  options.device = "cpu";
  options.cuda_stream = &options;
  says(meshgrad_runtime_create(&options, &runtime), MESHGRAD_INVALID_ARGUMENT, "stream");
}

TEST_CASE("memory comes from the host application, and its exhaustion is a status") {
  struct Pool {
    int64_t held = 0, most = 0;
  } pool;
  meshgrad_runtime_options options;
  meshgrad_runtime_options_init(&options);
  options.threads = 1;
  options.allocate = [](void* context, int64_t bytes) {
    auto& own = *static_cast<Pool*>(context);
    own.held += bytes;
    own.most = std::max(own.most, own.held);
    return std::malloc(static_cast<size_t>(bytes));
  };
  options.release = [](void* context, void* memory, int64_t bytes) {
    static_cast<Pool*>(context)->held -= bytes;
    std::free(memory);
  };
  options.memory_context = &pool;
  options.memory_capacity = int64_t{64} << 20;
  Run run;
  {
    Handles c(run.checkpoint, &options);
    predicted(c.predictor, run, 2);
    CHECK(pool.most > 0);
  }
  CHECK(pool.held == 0);

  options.memory_capacity = int64_t{2} << 20;
  Run large(120);
  {
    Handles c(large.checkpoint, &options);
    meshgrad_mesh mesh = mesh_of(large);
    const meshgrad_array velocity = array_of(large.velocity, 2);
    int status = meshgrad_predictor_set_mesh(c.predictor, &mesh);
    if (status == MESHGRAD_OK) status = meshgrad_predictor_set_field(c.predictor, 0, "velocity", &velocity);
    if (status == MESHGRAD_OK) status = meshgrad_predictor_predict(c.predictor, 1);
    CHECK(status == MESHGRAD_OUT_OF_MEMORY);
    // It goes on with what fits.
    CHECK(predicted(c.predictor, run, 1).size() == run.velocity.size());
  }
  CHECK(pool.held == 0);
}

TEST_CASE("structures of an earlier header are taken, and those of a later one refused") {
  struct EarlierMesh {
    size_t size;
    meshgrad_array positions, cells, edges, node_type;
    int32_t first_node;
  };
  static_assert(sizeof(EarlierMesh) == offsetof(meshgrad_mesh, ghost_owner));
  Run run;
  Handles c(run.checkpoint);
  const std::vector<float> expected = predicted(c.predictor, run, 2);
  // Behind the structures of the program lies something else.
  struct {
    EarlierMesh meshes[2];
    std::array<uint8_t, sizeof(meshgrad_mesh)> other;
  } stack;
  stack.other.fill(0xAB);
  for (EarlierMesh& mesh : stack.meshes) {
    meshgrad_mesh_init_sized(reinterpret_cast<meshgrad_mesh*>(&mesh), sizeof mesh);
    CHECK(mesh.size == sizeof mesh);
    mesh.positions = array_of(run.positions, 2);
    mesh.cells = array_of(run.cells, 3);
    mesh.node_type = array_of(run.types, 1);
  }
  const auto* meshes = reinterpret_cast<const meshgrad_mesh*>(stack.meshes);
  REQUIRE(meshgrad_predictor_set_meshes(c.predictor, meshes, 2) == MESHGRAD_OK);
  CHECK(std::ranges::count(stack.other, 0xAB) == std::ssize(stack.other));
  meshgrad_array velocity = array_of(run.velocity, 2);
  for (int32_t mesh = 0; mesh < 2; ++mesh)
    REQUIRE(meshgrad_predictor_set_field(c.predictor, mesh, "velocity", &velocity) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_predict(c.predictor, 2) == MESHGRAD_OK);
  std::vector<float> second(run.velocity.size());
  velocity = array_of(second, 2);
  REQUIRE(meshgrad_predictor_get_field(c.predictor, 1, "velocity", &velocity) == MESHGRAD_OK);
  CHECK(second == expected);

  const auto refused = [](int status, const char* init) {
    CAPTURE(std::string(meshgrad_last_error()));
    CHECK(status == MESHGRAD_INVALID_ARGUMENT);
    CHECK(contains(meshgrad_last_error(), init));
  };
  meshgrad_mesh mesh = mesh_of(run);
  for (const size_t size : {sizeof mesh + 8, sizeof mesh - 8, size_t{0}}) {
    mesh.size = size;
    refused(meshgrad_predictor_set_mesh(c.predictor, &mesh), "meshgrad_mesh_init");
  }
  meshgrad_runtime* runtime = nullptr;
  meshgrad_runtime_options options;
  meshgrad_runtime_options_init(&options);
  options.size += 8;
  refused(meshgrad_runtime_create(&options, &runtime), "meshgrad_runtime_options_init");
  meshgrad_trainer* trainer = nullptr;
  meshgrad_trainer_options training;
  meshgrad_trainer_options_init(&training);
  training.size -= 8;
  refused(meshgrad_trainer_create(c.runtime, &training, &trainer), "meshgrad_trainer_options_init");
}

TEST_CASE("threads that fail at the same time each read their own error") {
  std::atomic<int> own{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&own, i] {
      const std::string device = fmt::format("device{}", i);
      meshgrad_runtime_options options;
      meshgrad_runtime_options_init(&options);
      options.device = device.c_str();
      int right = 0;
      for (int again = 0; again < 100; ++again) {
        meshgrad_runtime* runtime = nullptr;
        const int status = meshgrad_runtime_create(&options, &runtime);
        right += status != MESHGRAD_OK && contains(meshgrad_last_error(), device) ? 1 : 0;
      }
      own += right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(own == 400);
}

TEST_CASE("runtimes of their own predict at the same time") {
  Run run;
  std::vector<float> expected;
  {
    Handles c(run.checkpoint);
    expected = predicted(c.predictor, run, 4);
  }
  std::atomic<int> same{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, own = run.velocity]() mutable {
      meshgrad_runtime_options options;
      meshgrad_runtime_options_init(&options);
      options.threads = 1;
      meshgrad_runtime* runtime = nullptr;
      meshgrad_predictor* predictor = nullptr;
      const meshgrad_mesh mesh = mesh_of(run);
      const meshgrad_array velocity = array_of(own, 2);
      int status = meshgrad_runtime_create(&options, &runtime);
      status |= meshgrad_predictor_create(runtime, run.checkpoint.c_str(), &predictor);
      status |= meshgrad_predictor_set_mesh(predictor, &mesh);
      status |= meshgrad_predictor_set_field(predictor, 0, "velocity", &velocity);
      status |= meshgrad_predictor_predict(predictor, 4);
      status |= meshgrad_predictor_get_field(predictor, 0, "velocity", &velocity);
      meshgrad_predictor_destroy(predictor);
      meshgrad_runtime_destroy(runtime);
      if (status == MESHGRAD_OK && own == expected) ++same;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(same == 4);
}

TEST_CASE("earlier and next fields reach the predictor") {
  Run run(7, 16, 2, {.history = 3, .kinematic_types = {4}});
  std::vector<float> expected(run.velocity.size()), got(expected.size()), next = run.velocity;
  for (float& value : next) value += 0.5f;
  Runtime runtime({.threads = 1});
  MeshPredictor cpp(runtime, run.checkpoint);
  cpp.set_mesh({.positions = run.positions, .cells = run.cells, .nodes_per_cell = 3, .node_type = run.types});
  cpp.set_field("velocity", run.velocity);
  cpp.set_previous_field("velocity", next);
  cpp.set_previous_field("velocity", run.velocity, 0, 2);
  cpp.set_next_field("velocity", next);
  cpp.predict();
  cpp.get_field("velocity", expected);
  Handles c(run.checkpoint);
  const meshgrad_mesh mesh = mesh_of(run);
  const meshgrad_array now = array_of(run.velocity, 2), later = array_of(next, 2), out = array_of(got, 2);
  CHECK(meshgrad_predictor_set_mesh(c.predictor, &mesh) == MESHGRAD_OK);
  CHECK(meshgrad_predictor_set_field(c.predictor, 0, "velocity", &now) == MESHGRAD_OK);
  CHECK(meshgrad_predictor_set_earlier_field(c.predictor, 0, "velocity", 1, &later) == MESHGRAD_OK);
  CHECK(meshgrad_predictor_set_earlier_field(c.predictor, 0, "velocity", 2, &now) == MESHGRAD_OK);
  CHECK(meshgrad_predictor_set_earlier_field(c.predictor, 0, "velocity", 3, &now) != MESHGRAD_OK);
  CHECK(meshgrad_predictor_set_next_field(c.predictor, 0, "velocity", &later) == MESHGRAD_OK);
  CHECK(meshgrad_predictor_predict(c.predictor, 1) == MESHGRAD_OK);
  CHECK(meshgrad_predictor_get_field(c.predictor, 0, "velocity", &out) == MESHGRAD_OK);
  CHECK(got == expected);
  for (size_t i = 0; i < run.types.size(); ++i)
    if (run.types[i] == 4) CHECK(got[2 * i] == next[2 * i]);
}

TEST_CASE("the C interface costs what the C++ interface costs") {
  using Clock = std::chrono::steady_clock;
  const auto milliseconds = [](auto&& work) {
    const Clock::time_point begin = Clock::now();
    work();
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  };
  Run run(45, 64, 5);
  Runtime runtime({.threads = 2});
  MeshPredictor cpp(runtime, run.checkpoint);
  std::vector<float> expected(run.velocity.size()), got(run.velocity.size());
  const double first = milliseconds([&] {
    cpp.set_mesh(
        {.positions = run.positions, .cells = run.cells, .nodes_per_cell = 3, .node_type = run.types});
    cpp.set_field("velocity", run.velocity);
    cpp.predict();
  });
  meshgrad_runtime_options options;
  meshgrad_runtime_options_init(&options);
  options.threads = 2;
  Handles c(run.checkpoint, &options);
  predicted(c.predictor, run, 1);
  const meshgrad_array velocity = array_of(run.velocity, 2), out = array_of(got, 2);
  double fastest_cpp = 1e9, fastest_c = 1e9;
  for (int i = 0; i < 15; ++i) {
    fastest_cpp = std::min(fastest_cpp, milliseconds([&] {
                             cpp.set_field("velocity", run.velocity);
                             cpp.predict();
                             cpp.get_field("velocity", expected);
                           }));
    fastest_c = std::min(fastest_c, milliseconds([&] {
                           meshgrad_predictor_set_field(c.predictor, 0, "velocity", &velocity);
                           meshgrad_predictor_predict(c.predictor, 1);
                           meshgrad_predictor_get_field(c.predictor, 0, "velocity", &out);
                         }));
  }
  CHECK(got == expected);
  MESSAGE(
      fmt::format("{} nodes, width 64, 5 blocks, 2 threads: first prediction {:.2f} ms, later ones {:.3f} ms "
                  "in C++ and {:.3f} ms in C",
                  run.nodes(), first, fastest_cpp, fastest_c));
}

TEST_CASE("the version of the header is that of the library") {
  CHECK(std::string(meshgrad_version()) ==
        fmt::format("{}.{}.{}", MESHGRAD_VERSION_MAJOR, MESHGRAD_VERSION_MINOR, MESHGRAD_VERSION_PATCH));
}

}  // namespace
}  // namespace meshgrad::c_interface_test
