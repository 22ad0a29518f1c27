// SPDX-License-Identifier: Apache-2.0
// Arrays of meshgrad.h in a GPU's memory, or in the simulated device's where the test is linked with it.
#include <doctest/doctest.h>
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/engine/tensor.h>
#include <meshgrad/train/embed/c_border.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/meshgrad.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "simulated_ranks.h"
#include "support.h"
#include "train/process.h"
#include "train/scratch_directory.h"

namespace meshgrad::c_device_test {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

/// Values of a solver on the host, or with `solver` in the memory of its device.
template <class T>
struct Values {
  std::vector<T> host;
  int64_t columns = 1;
  Tensor device{};

  meshgrad_array given(Runtime* solver) {
    const int32_t dtype = std::is_same_v<T, float>    ? MESHGRAD_F32
                          : std::is_same_v<T, double> ? MESHGRAD_F64
                                                      : MESHGRAD_I32;
    const Shape shape{static_cast<int64_t>(host.size())};
    meshgrad_array array{.data = host.data(),
                         .dtype = dtype,
                         .rank = columns > 1 ? 2 : 1,
                         .shape = {shape[0] / columns, columns, 0},
                         .device = MESHGRAD_CPU};
    if (solver == nullptr) return array;
    if (!device.defined()) device = Tensor::from<T>(*solver, host, shape, Tag::host);
    changed(solver);
    array.data = device.raw();
    array.device = MESHGRAD_CUDA;
    return array;
  }
  /// `host` has other values.
  void changed(Runtime* solver) {
    if (solver == nullptr) return;
    copy(Tensor::borrow(host.data(), device.shape(), device.dtype()), device, solver->stream());
    solver->stream().synchronize();
  }
  std::vector<T> read(Runtime* solver) const {
    if (solver == nullptr) return host;
    const Tensor back = to_host(device, solver->stream());
    return {back.values<T>().begin(), back.values<T>().end()};
  }
};

/// A grid of 4 x 4 nodes, a target u and a load.
struct Solver {
  Runtime* runtime;  // null: its arrays are on the host
  Values<double> positions{.host = {}, .columns = 2};
  Values<int32_t> cells{.host = {}, .columns = 4}, types{};
  Values<float> u{}, load{};
  explicit Solver(Runtime* on) : runtime(on) {
    for (int32_t i = 0; i < 16; ++i) {
      positions.host.insert(positions.host.end(), {0.1 * (i % 4), 0.1 * (i / 4)});
      types.host.push_back(i % 4 == 0 ? 1 : 0);
      u.host.push_back(std::sin(0.7f * static_cast<float>(i)));
      load.host.push_back(std::cos(0.4f * static_cast<float>(i)));
      if (i % 4 < 3 && i < 12) cells.host.insert(cells.host.end(), {i, i + 1, i + 5, i + 4});
    }
  }
  meshgrad_mesh mesh() {
    meshgrad_mesh result;
    meshgrad_mesh_init(&result);
    result.positions = positions.given(runtime);
    result.cells = cells.given(runtime);
    result.node_type = types.given(runtime);
    return result;
  }
};

meshgrad_runtime* runtime_on(const char* device) {
  meshgrad_runtime_options options;
  meshgrad_runtime_options_init(&options);
  options.device = device;
  options.threads = 1;
  meshgrad_runtime* runtime = nullptr;
  REQUIRE(meshgrad_runtime_create(&options, &runtime) == MESHGRAD_OK);
  return runtime;
}

/// Trains two steps on frames of the solver, and saves them; the last loss.
double train(const char* device, Solver solver, const std::string& path) {
  meshgrad_runtime* runtime = runtime_on(device);
  const meshgrad_field fields[] = {{"u", 1, 0, nullptr}, {"load", 1, 0, nullptr}};
  meshgrad_trainer_options options;
  meshgrad_trainer_options_init(&options);
  options.config =
      "data.inputs = ['u', 'load']\ndata.targets = ['u']\ndata.node_types = 2\ndata.predicted_types = [0]\n"
      "model.width = 8\nmodel.blocks = 1\ntrain.noise = 0.0\n";
  options.fields = fields;
  options.field_count = 2;
  meshgrad_trainer* trainer = nullptr;
  REQUIRE(meshgrad_trainer_create(runtime, &options, &trainer) == MESHGRAD_OK);
  const meshgrad_mesh mesh = solver.mesh();
  REQUIRE(meshgrad_trainer_set_mesh(trainer, &mesh) == MESHGRAD_OK);
  for (int t = 0; t < 3; ++t) {
    const meshgrad_array u = solver.u.given(solver.runtime), load = solver.load.given(solver.runtime);
    REQUIRE(meshgrad_trainer_set_field(trainer, "u", &u) == MESHGRAD_OK);
    REQUIRE(meshgrad_trainer_set_field(trainer, "load", &load) == MESHGRAD_OK);
    REQUIRE(meshgrad_trainer_append(trainer) == MESHGRAD_OK);
    for (size_t i = 0; i < 16; ++i) solver.u.host[i] += 0.01f * static_cast<float>(i % 5 + 1);
  }
  meshgrad_array refused = solver.load.given(solver.runtime);
  refused.dtype = MESHGRAD_I32;
  CHECK(meshgrad_trainer_set_field(trainer, "load", &refused) == MESHGRAD_INVALID_ARGUMENT);
  CHECK(meshgrad_trainer_append(trainer) == MESHGRAD_INVALID_ARGUMENT);  // not with the values of before
  double loss = 0;
  REQUIRE(meshgrad_trainer_train(trainer, 2, -1.0, nullptr, &loss) == MESHGRAD_OK);
  REQUIRE(meshgrad_trainer_save(trainer, path.c_str()) == MESHGRAD_OK);
  meshgrad_trainer_destroy(trainer);
  meshgrad_runtime_destroy(runtime);
  return loss;
}

struct Predicted {
  std::vector<std::vector<float>> u;
  int64_t waits = 0;  // of the host for the device, in the second prediction
};

/// Predicts; again after the load has changed; and again after the positions have.
Predicted predict(Solver solver, const std::string& checkpoint) {
  meshgrad_runtime* runtime = runtime_on("cuda");
  meshgrad_predictor* predictor = nullptr;
  REQUIRE(meshgrad_predictor_create(runtime, checkpoint.c_str(), &predictor) == MESHGRAD_OK);
  const meshgrad_mesh mesh = solver.mesh();
  REQUIRE(meshgrad_predictor_set_mesh(predictor, &mesh) == MESHGRAD_OK);
  const meshgrad_array u = solver.u.given(solver.runtime), load = solver.load.given(solver.runtime);
  REQUIRE(meshgrad_predictor_set_field(predictor, 0, "u", &u) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_set_field(predictor, 0, "load", &load) == MESHGRAD_OK);
  Predicted result;
  const auto step = [&] {
    const int64_t before = gpu::counters().synchronizations;
    REQUIRE(meshgrad_predictor_predict(predictor, 1) == MESHGRAD_OK);
    result.waits = gpu::counters().synchronizations - before;
    REQUIRE(meshgrad_predictor_get_field(predictor, 0, "u", &u) == MESHGRAD_OK);
    result.u.push_back(solver.u.read(solver.runtime));
  };
  step();
  for (float& value : solver.load.host) value += 0.25f;
  solver.load.changed(solver.runtime);
  step();
  for (double& value : solver.positions.host) value *= 1.5;
  solver.positions.changed(solver.runtime);
  REQUIRE(meshgrad_predictor_positions_changed(predictor) == MESHGRAD_OK);
  step();
  meshgrad_predictor_destroy(predictor);
  meshgrad_runtime_destroy(runtime);
  return result;
}

TEST_CASE("arrays in a device's memory give the bits of arrays on the host, and are read when they are used" *
          doctest::skip(cuda_devices().empty())) {
  const test::ScratchDirectory scratch;
  const std::string path = (scratch.path / "model.safetensors").string();
  Runtime own({.device = kGpu, .threads = 1});
  const double loss = train("cuda", Solver(&own), path);
  CHECK(loss > 0.0);
  CHECK(train("cuda", Solver(nullptr), path) == loss);

  const Predicted here = predict(Solver(nullptr), path), there = predict(Solver(&own), path);
  for (size_t step = 0; step < here.u.size(); ++step) {
    CAPTURE(step);
    CHECK(here.u[step] == there.u[step]);
  }
  CHECK(here.u[1] != here.u[0]);
  // From the host node features go up, and the prediction comes back; a borrowed array of the device comes
  // first.
  CHECK(there.waits > here.waits);
}

TEST_CASE("a rank that cannot read its array on a device tells those that predict with it" *
          doctest::skip(cuda_devices().empty())) {
  const test::ScratchDirectory scratch;
  const std::string path = (scratch.path / "model.safetensors").string();
  train("cuda", Solver(nullptr), path);
  std::array<int, 2> codes{};
  std::array<std::string, 2> texts;
  std::atomic<int> told = 0;
  test::on_ranks({.ranks = 2, .timeout = std::chrono::seconds(5), .loss = {}}, [&](Ranks& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    meshgrad_runtime runtime{.runtime = Runtime({.device = kGpu, .threads = 1}), .ranks = std::move(ranks)};
    meshgrad_predictor* predictor = nullptr;
    meshgrad_predictor_create(&runtime, path.c_str(), &predictor);
    Solver solver(nullptr);
    meshgrad_mesh mesh = solver.mesh();  // each rank has a part without neighbours
    int32_t none = 0;
    mesh.ghost_owner = mesh.ghost_number = {.data = &none, .dtype = MESHGRAD_I32, .rank = 1, .shape = {}};
    meshgrad_predictor_set_mesh(predictor, &mesh);
    void* const memory = gpu::allocate(0, 16 * sizeof(float));
    gpu::copy(memory, solver.load.host.data(), 16 * sizeof(float), runtime.runtime.stream().native());
    runtime.runtime.stream().synchronize();
    const meshgrad_array u = solver.u.given(nullptr);
    meshgrad_array load = solver.load.given(nullptr);
    load.data = memory;
    load.device = MESHGRAD_CUDA;
    meshgrad_predictor_set_field(predictor, 0, "u", &u);
    meshgrad_predictor_set_field(predictor, 0, "load", &load);
    if (meshgrad_predictor_predict(predictor, 1) != MESHGRAD_OK) texts[rank] = meshgrad_last_error();
    if (rank == 1) gpu::free(memory);
    codes[rank] = meshgrad_predictor_predict(predictor, 1);
    texts[rank] += meshgrad_last_error();
    for (++told; told < 2;) std::this_thread::yield();  // an end would tell the other one too
    if (rank == 0) gpu::free(memory);
    meshgrad_predictor_destroy(predictor);
  });
  CHECK(codes[0] == MESHGRAD_DATA_ERROR);
  CHECK_MESSAGE(test::contains(texts[0], "got one on another rank"), texts[0]);
  CHECK_MESSAGE(test::contains(texts[1], "64 bytes of allocated device memory"), texts[1]);
}

constexpr std::string_view kLeftBehind = "made before fork(); fix: make a runtime in this process";

int refused(int status) {
  return status == MESHGRAD_INVALID_ARGUMENT && test::contains(meshgrad_last_error(), kLeftBehind) ? 1 : 0;
}

/// The same through C++.
template <class Call>
int refused_in_cpp(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::invalid_argument && test::contains(error.what(), kLeftBehind) ? 1 : 0;
  }
  return 0;
}

/// How many of six calls a child of fork() is refused. There the handles, and the objects of C++, end
/// without a trace; here they then go on.
int refused_to_child(meshgrad_runtime* runtime, const std::string& path) {
  meshgrad_predictor *predictor = nullptr, *another = nullptr;
  meshgrad_trainer* trainer = nullptr;
  int failed = meshgrad_predictor_create(runtime, path.c_str(), &predictor);
  failed += meshgrad_trainer_load(runtime, path.c_str(), &trainer);
  auto own_predictor = std::make_unique<MeshPredictor>(runtime->runtime, path, &runtime->ranks);
  auto own_trainer = std::make_unique<OnlineTrainer>(runtime->runtime, path, &runtime->ranks);
  Solver solver(nullptr);
  const meshgrad_mesh mesh = solver.mesh();
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const int right = refused(meshgrad_predictor_set_mesh(predictor, &mesh)) +
                      refused(meshgrad_predictor_create(runtime, path.c_str(), &another)) +
                      refused(meshgrad_trainer_train(trainer, 1, -1.0, nullptr, nullptr)) +
                      refused(meshgrad_trainer_set_mesh(trainer, &mesh)) +
                      refused_in_cpp([&] { own_predictor->predict(1); }) +
                      refused_in_cpp([&] { own_trainer->append(); });
    own_predictor.reset();
    own_trainer.reset();
    meshgrad_predictor_destroy(predictor);
    meshgrad_trainer_destroy(trainer);
    meshgrad_runtime_destroy(runtime);
    _exit(right);
  }
  int status = -1;
  waitpid(child, &status, 0);
  failed += meshgrad_predictor_set_mesh(predictor, &mesh);
  failed += meshgrad_trainer_train(trainer, 1, -1.0, nullptr, nullptr);
  own_trainer->train(1);
  meshgrad_predictor_destroy(predictor);
  meshgrad_trainer_destroy(trainer);
  return failed != 0 ? -1 : test::exit_code_of_status(status);
}

TEST_CASE("a child of fork() is refused handles with a communicator, and objects of C++") {
  const test::ScratchDirectory scratch;
  const std::string path = (scratch.path / "model.safetensors").string();
  train("cpu", Solver(nullptr), path);
  std::array<int, 2> right{};
  test::on_ranks({.ranks = 2, .timeout = std::chrono::seconds(30), .loss = {}}, [&](Ranks& ranks) {
    const auto rank = static_cast<size_t>(ranks.rank());
    auto* const runtime = new meshgrad_runtime{.runtime = Runtime({.threads = 1}), .ranks = std::move(ranks)};
    right[rank] = refused_to_child(runtime, path);
    meshgrad_runtime_destroy(runtime);
  });
  CHECK(right == std::array{6, 6});
}

TEST_CASE("a child of fork() is refused handles on a GPU, and objects of C++" *
          doctest::skip(cuda_devices().empty())) {
  const test::ScratchDirectory scratch;
  const std::string path = (scratch.path / "model.safetensors").string();
  train("cpu", Solver(nullptr), path);
  meshgrad_runtime* runtime = runtime_on("cuda");
  CHECK(refused_to_child(runtime, path) == 6);
  meshgrad_runtime_destroy(runtime);
}

TEST_CASE("an array on a GPU is refused where the runtime has none") {
  const test::ScratchDirectory scratch;
  const std::string path = (scratch.path / "model.safetensors").string();
  train("cpu", Solver(nullptr), path);
  meshgrad_runtime* runtime = runtime_on("cpu");
  meshgrad_predictor* predictor = nullptr;
  REQUIRE(meshgrad_predictor_create(runtime, path.c_str(), &predictor) == MESHGRAD_OK);
  Solver solver(nullptr);
  meshgrad_mesh mesh = solver.mesh();
  CHECK(meshgrad_predictor_set_mesh(predictor, &mesh) == MESHGRAD_OK);
  meshgrad_array u = solver.u.given(nullptr);
  u.device = MESHGRAD_CUDA;
  CHECK(meshgrad_predictor_set_field(predictor, 0, "u", &u) == MESHGRAD_INVALID_ARGUMENT);
  CHECK(test::contains(meshgrad_last_error(), "[u] needed an array in the host's memory"));
  CHECK(meshgrad_predictor_get_field(predictor, 0, "u", &u) == MESHGRAD_INVALID_ARGUMENT);
  mesh.node_type.device = 7;
  CHECK(meshgrad_predictor_set_mesh(predictor, &mesh) == MESHGRAD_INVALID_ARGUMENT);
  CHECK(test::contains(meshgrad_last_error(), "device 7 on a runtime of cpu"));
  meshgrad_predictor_destroy(predictor);
  meshgrad_runtime_destroy(runtime);
}

}  // namespace
}  // namespace meshgrad::c_device_test
