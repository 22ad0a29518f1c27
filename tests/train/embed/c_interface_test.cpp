// SPDX-License-Identifier: Apache-2.0
// meshgrad.h: the table of cases in each place, and what only one place has.
#include <doctest/doctest.h>
#include <meshgrad/engine/device.h>
#include <meshgrad/engine/gpu.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <cstdlib>

#include "support.h"
#include "train/embed/c_cases.h"

namespace meshgrad::test::c_interface {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

void run_cases(const Place& place) {
  for (const Case& each : cases()) {
    SUBCASE(each.name) {
      const Clock::time_point begin = Clock::now();
      const Endings endings = run_hosts(place, each.run);
      for (size_t i = 0; i < endings.size(); ++i)
        CHECK_MESSAGE(endings[i].empty(), "rank or thread ", i, ": ", endings[i]);
      CHECK(Clock::now() - begin < 500s);  // no rank waited for another's time-out
    }
  }
}

#ifdef __GLIBC__
TEST_CASE("C interface: under traps of floating-point errors") {
  constexpr int kTrapped = FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW;  // as of gfortran -ffpe-trap
  flow_checkpoint();
  REQUIRE(feenableexcept(kTrapped) == 0);
  const Endings endings = run_hosts({}, [](Host& c) {
    const Handle<meshgrad_trainer> trainer = c.trainer();
    const HostMesh mesh = c.mesh();
    c.call(meshgrad_trainer_set_mesh, trainer, &mesh.mesh).ok();
    for (int frame = 0; frame < 5; ++frame) append_frame(c, trainer, c.velocity(frame), c.load());
    double loss = 0;
    c.call(meshgrad_trainer_train, trainer, 3, -1.0, nullptr, &loss).ok();
    c.call(meshgrad_trainer_held_out_loss, trainer, &loss).ok();
    const std::string file = c.file("trapped.safetensors");
    c.call(meshgrad_trainer_save, trainer, file.c_str()).ok();
    meshgrad_trainer* loaded = nullptr;
    c.call(meshgrad_trainer_load, c.runtime, file.c_str(), &loaded).ok();
    const Handle<meshgrad_trainer> ended(loaded);
    const Handle<meshgrad_predictor> predictor = c.predictor(file);
    const HostValues<float> velocity = c.velocity(0), load = c.load();
    c.call(meshgrad_predictor_set_mesh, predictor, &mesh.mesh).ok();
    c.call(meshgrad_predictor_set_field, predictor, 0, "velocity", &velocity.array).ok();
    c.call(meshgrad_predictor_set_field, predictor, 0, "load", &load.array).ok();
    c.call(meshgrad_predictor_predict, predictor, 2).ok();
  });
  fedisableexcept(kTrapped);
  std::feclearexcept(FE_ALL_EXCEPT);
  CHECK(endings == Endings(1));
}
#endif

TEST_CASE("C interface: on the CPU") { run_cases({}); }
TEST_CASE("C interface: each call from another thread") { run_cases({.handed_on = true}); }
TEST_CASE("C interface: on runtimes of several threads at once") { run_cases({.threads = 4}); }
TEST_CASE("C interface: on the parts of one mesh") { run_cases({.ranks = 3}); }
TEST_CASE("C interface: on a device" * doctest::skip(cuda_devices().empty())) {
  run_cases({.on_device = true});
}
TEST_CASE("C interface: on arrays of a device" * doctest::skip(cuda_devices().empty())) {
  run_cases({.on_device = true, .device_arrays = true});
}

/// Waits for the other ranks: the end of one would tell them, too.
void meet(std::atomic<int>& met, const Host& c) {
  const Clock::time_point end = Clock::now() + 60s;
  for (++met; met < c.place.ranks && Clock::now() < end;) std::this_thread::yield();
}

TEST_CASE("on parts: an invalid structure ends waiting ranks at once") {
  std::atomic<int> made = 0, told = 0;
  const Clock::time_point begin = Clock::now();
  const Endings endings = run_hosts({.ranks = 3}, [&](Host& c) {
    const Handle<meshgrad_trainer> trainer = c.trainer();
    meet(made, c);
    const HostMesh mesh = c.mesh();
    const Answer answer = c.call(meshgrad_trainer_set_mesh, trainer, c.spoils() ? nullptr : &mesh.mesh);
    meet(told, c);
    if (c.spoils()) return answer.refused(MESHGRAD_INVALID_ARGUMENT, "mesh] needed a pointer, got NULL");
    answer.refused(MESHGRAD_RANK_ERROR, "end of rank");
  });
  CHECK(Clock::now() - begin < 500s);
  CHECK(endings == Endings(3));
}

TEST_CASE("on parts and a device: a failed read tells the others" * doctest::skip(cuda_devices().empty())) {
  std::atomic<int> told = 0;
  const Endings endings = run_hosts({.on_device = true, .ranks = 3}, [&](Host& c) {
    const Handle<meshgrad_predictor> predictor = c.predictor(flow_checkpoint());
    const HostMesh mesh = c.mesh();
    const HostValues<float> velocity = c.velocity(0), load = c.load();
    c.call(meshgrad_predictor_set_mesh, predictor, &mesh.mesh).ok();
    const size_t bytes = load.host.size() * sizeof(float);
    const Stream& stream = c.runtime->runtime.stream();
    meshgrad_array there = load.array;
    there.data = gpu::allocate(0, static_cast<int64_t>(bytes));
    there.device = MESHGRAD_CUDA;
    gpu::copy(there.data, load.host.data(), static_cast<int64_t>(bytes), stream.native());
    stream.synchronize();
    c.call(meshgrad_predictor_set_field, predictor, 0, "velocity", &velocity.array).ok();
    c.call(meshgrad_predictor_set_field, predictor, 0, "load", &there).ok();
    c.call(meshgrad_predictor_predict, predictor, 1).ok();
    if (c.spoils()) gpu::free(there.data);
    const Answer answer = c.call(meshgrad_predictor_predict, predictor, 1);
    meet(told, c);
    if (!c.spoils()) gpu::free(there.data);
    if (c.spoils())
      return expect(contains(answer.text, fmt::format("load] needed {} bytes of memory of cuda", bytes)),
                    answer.text);
    answer.refused(MESHGRAD_DATA_ERROR, "got an error on rank ");
  });
  CHECK(endings == Endings(3));
}

TEST_CASE("on the CPU: memory comes from the host") {
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
  const Host large({}, 0, nullptr, 120);
  for (const int64_t megabytes : {64, 2}) {
    options.memory_capacity = megabytes << 20;
    {
      const Host c({}, 0, nullptr, 0, &options);
      const Handle<meshgrad_predictor> predictor = c.predictor(flow_checkpoint());
      const auto predict = [&](const Host& on) {
        const HostMesh mesh = on.mesh();
        const HostValues<float> velocity = on.velocity(0), load = on.load();
        int status = meshgrad_predictor_set_mesh(predictor, &mesh.mesh);
        if (status != MESHGRAD_OK) return status;
        status |= meshgrad_predictor_set_field(predictor, 0, "velocity", &velocity.array);
        status |= meshgrad_predictor_set_field(predictor, 0, "load", &load.array);
        return status != MESHGRAD_OK ? status : meshgrad_predictor_predict(predictor, 2);
      };
      if (megabytes == 2) CHECK(predict(large) == MESHGRAD_OUT_OF_MEMORY);
      CHECK(predict(c) == MESHGRAD_OK);  // it goes on with what fits
      CHECK(pool.most > 0);
    }
    CHECK(pool.held == 0);
  }
}

TEST_CASE("a runtime that is destroyed first lasts until its handles do") {
  const Host c({}, 0);
  int64_t held = 0;
  meshgrad_runtime_options options;
  meshgrad_runtime_options_init(&options);
  options.threads = 1;
  options.allocate = [](void* context, int64_t bytes) {
    *static_cast<int64_t*>(context) += bytes;
    return std::malloc(static_cast<size_t>(bytes));
  };
  options.release = [](void* context, void* memory, int64_t bytes) {
    *static_cast<int64_t*>(context) -= bytes;
    std::free(memory);
  };
  options.memory_context = &held;
  options.memory_capacity = int64_t{1} << 28;
  meshgrad_runtime* runtime = nullptr;
  REQUIRE(meshgrad_runtime_create(&options, &runtime) == MESHGRAD_OK);
  meshgrad_predictor *first = nullptr, *second = nullptr;
  REQUIRE(meshgrad_predictor_create(runtime, flow_checkpoint().c_str(), &first) == MESHGRAD_OK);
  REQUIRE(meshgrad_predictor_create(runtime, flow_checkpoint().c_str(), &second) == MESHGRAD_OK);
  meshgrad_runtime_destroy(runtime);
  const HostMesh mesh = c.mesh();
  const HostValues<float> velocity = c.velocity(0), load = c.load();
  for (meshgrad_predictor* const predictor : {first, second}) {
    CHECK(meshgrad_predictor_set_mesh(predictor, &mesh.mesh) == MESHGRAD_OK);
    CHECK(meshgrad_predictor_set_field(predictor, 0, "velocity", &velocity.array) == MESHGRAD_OK);
    CHECK(meshgrad_predictor_set_field(predictor, 0, "load", &load.array) == MESHGRAD_OK);
    CHECK(meshgrad_predictor_predict(predictor, 1) == MESHGRAD_OK);
    CHECK(held > 0);
    meshgrad_predictor_destroy(predictor);
  }
  CHECK(held == 0);
}

TEST_CASE("on the CPU: the C interface costs what C++ costs") {
  const SavedModel model("data.inputs = ['velocity']\nmodel.width = 64\nmodel.blocks = 5\n", false);
  Host c({}, 0, nullptr, 45);
  Predictors both(c, model.path);
  const HostMesh mesh = c.mesh();
  const HostValues<float> velocity = c.velocity(0), out = c.velocity(0);
  std::vector<float> expected = velocity.host;
  const auto milliseconds = [](auto&& work) {
    const Clock::time_point begin = Clock::now();
    work();
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  };
  const auto predict_in_cpp = [&] {
    both.cpp.set_field("velocity", velocity.host);
    both.cpp.predict();
    both.cpp.get_field("velocity", expected);
  };
  const auto predict_in_c = [&] {
    meshgrad_predictor_set_field(both.c, 0, "velocity", &velocity.array);
    meshgrad_predictor_predict(both.c, 1);
    meshgrad_predictor_get_field(both.c, 0, "velocity", &out.array);
  };
  const double first = milliseconds([&] {
    both.cpp.set_mesh(c.arrays());
    predict_in_cpp();
  });
  REQUIRE(meshgrad_predictor_set_mesh(both.c, &mesh.mesh) == MESHGRAD_OK);
  predict_in_c();
  double fastest_cpp = 1e9, fastest_c = 1e9;
  for (int i = 0; i < 15; ++i) {
    fastest_cpp = std::min(fastest_cpp, milliseconds(predict_in_cpp));
    fastest_c = std::min(fastest_c, milliseconds(predict_in_c));
  }
  CHECK(out.host == expected);
  MESSAGE(
      fmt::format("{} nodes, width 64, 5 blocks, 2 threads: first prediction {:.2f} ms, later ones {:.3f} ms "
                  "in C++ and {:.3f} ms in C",
                  c.nodes(), first, fastest_cpp, fastest_c));
}

}  // namespace
}  // namespace meshgrad::test::c_interface
