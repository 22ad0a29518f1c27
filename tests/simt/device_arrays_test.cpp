// SPDX-License-Identifier: Apache-2.0
// A solver's arrays and a GPU: how often each is copied, and C++ arrays in the device's memory, which the
// host cannot touch here.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/engine/tensor.h>
#include <meshgrad/train/embed/held_arrays.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <cmath>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support.h"
#include "train/scratch_directory.h"
#include "transfers.h"

namespace meshgrad::device_arrays_test {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

/// Values on the host, and in the memory of a runtime's device.
template <class T>
struct Values {
  std::vector<T> host;
  Tensor device{};

  void place(Runtime& runtime) {
    device = Tensor::from<T>(runtime, host, Shape{static_cast<int64_t>(host.size())}, Tag::host);
  }
  std::span<T> there() const { return {static_cast<T*>(device.raw()), host.size()}; }
  std::vector<T> read(Runtime& runtime) const {
    const Tensor back = to_host(device, runtime.stream());
    return {back.values<T>().begin(), back.values<T>().end()};
  }
};

/// A grid of 4 x 4 nodes, a target u and a load.
struct Solver {
  static constexpr int64_t kNodes = 16;
  Values<double> positions;
  Values<int32_t> cells, types;
  Values<float> u, load, next;
  explicit Solver(Runtime& runtime) {
    for (int32_t i = 0; i < kNodes; ++i) {
      positions.host.insert(positions.host.end(), {0.1 * (i % 4), 0.1 * (i / 4)});
      types.host.push_back(i % 4 == 0 ? 1 : 0);
      u.host.push_back(std::sin(0.7f * static_cast<float>(i)));
      next.host.push_back(u.host.back() + 0.01f * static_cast<float>(i % 5 + 1));
      load.host.push_back(std::cos(0.4f * static_cast<float>(i)));
      if (i % 4 < 3 && i < 12) cells.host.insert(cells.host.end(), {i, i + 1, i + 5, i + 4});
    }
    const auto place = [&](auto&... values) { (values.place(runtime), ...); };
    place(positions, cells, types, u, load, next);
    runtime.stream().synchronize();
    simt::take_transfers();
  }
  MeshArrays on_host() const {
    return {.positions = positions.host, .cells = cells.host, .nodes_per_cell = 4, .node_type = types.host};
  }
  MeshArrays on_device() const {
    return {.positions = {positions.there(), kGpu},
            .cells = {cells.there(), kGpu},
            .nodes_per_cell = 4,
            .node_type = {types.there(), kGpu}};
  }
};

/// A model that a trainer on the device has saved.
struct Case {
  test::ScratchDirectory scratch;
  std::shared_ptr<void> stream;  // the application's, or null
  Runtime runtime{RuntimeOptions{.device = kGpu, .threads = 1, .stream = stream.get()}};
  Solver solver{runtime};

  std::string trained(bool device, Prediction predict = Prediction::change) {
    Config config;
    config.data.inputs = {"u", "load"};
    config.data.targets = {"u"};
    config.data.predict = predict;
    config.data.node_types = 2;
    config.data.predicted_types = {0};
    config.model.width = 8;
    config.model.blocks = 1;
    config.train.noise = 0.0;
    OnlineTrainer trainer(runtime, config,
                          {.fields = {{.name = "u", .components = 1}, {.name = "load", .components = 1}}});
    trainer.set_mesh(device ? solver.on_device() : solver.on_host());
    for (const Values<float>* u : {&solver.u, &solver.next, &solver.u, &solver.next}) {
      trainer.set_field("u", device ? Numbers(u->there(), kGpu) : Numbers(u->host));
      trainer.set_field("load", device ? Numbers(solver.load.there(), kGpu) : Numbers(solver.load.host));
      trainer.append();
    }
    CHECK(trainer.train(2).steps == 2);
    std::string file = scratch.path / "model.safetensors";
    trainer.save(file);
    return file;
  }
};

constexpr int64_t kFloats = Solver::kNodes * 4;  // bytes of a field

std::shared_ptr<void> stream_of_application() { return {gpu::create_stream(0), gpu::destroy_stream}; }

/// How often the host has waited for the device.
int64_t waits() { return gpu::counters().synchronizations + gpu::counters().awaits; }

TEST_CASE("host arrays meet a GPU in one transfer each way") {
  Case c;
  MeshPredictor predictor(c.runtime, c.trained(false));
  predictor.set_mesh(c.solver.on_host());
  predictor.set_field("u", c.solver.u.host);
  predictor.set_field("load", c.solver.load.host);
  simt::take_transfers();
  predictor.predict();
  CHECK(simt::take_transfers() == simt::Transfers{1, 0, kFloats, 0});  // the load
  std::vector<float> values(c.solver.u.host.size());
  for (int i = 0; i < 3; ++i) {
    predictor.set_field("u", c.solver.u.host);
    predictor.predict();
    predictor.get_field("u", values);
    CHECK(simt::take_transfers() == simt::Transfers{2, 1, 2 * kFloats, kFloats});
  }
  predictor.predict(5);
  CHECK(simt::take_transfers() == simt::Transfers{1, 0, kFloats, 0});
}

/// A step of a solver whose arrays are in GPU memory.
void step_there(const Solver& solver, MeshPredictor& predictor) {
  predictor.positions_changed();
  predictor.set_field("u", {solver.u.there(), kGpu});
  predictor.predict(2);
  predictor.get_field("u", {solver.u.there(), kGpu});
}

TEST_CASE("steps on arrays in GPU memory copy and wait for nothing") {
  Case c{.stream = stream_of_application()};
  const std::string file = c.trained(false);
  MeshPredictor predictor(c.runtime, file);
  predictor.set_mesh(c.solver.on_device());
  predictor.set_field("load", {c.solver.load.there(), kGpu});
  simt::take_transfers();
  const int64_t before = waits();
  for (int i = 0; i < 3; ++i) step_there(c.solver, predictor);
  CHECK(simt::take_transfers() == simt::Transfers{});
  CHECK(waits() == before);
  const std::vector<float> there = c.solver.u.read(c.runtime);
  MeshPredictor from_host(c.runtime, file);
  from_host.set_mesh(c.solver.on_host());
  from_host.set_field("u", c.solver.u.host);
  from_host.set_field("load", c.solver.load.host);
  from_host.predict(6);
  std::vector<float> values(there.size());
  from_host.get_field("u", values);
  CHECK(values == there);
  CHECK(values != c.solver.u.host);
}

TEST_CASE("arrays in GPU memory are done with on a runtime's own stream") {
  Case c;
  MeshPredictor predictor(c.runtime, c.trained(false));
  predictor.set_mesh(c.solver.on_device());
  predictor.set_field("load", {c.solver.load.there(), kGpu});
  for (int i = 0; i < 2; ++i) {
    const int64_t before = waits();
    simt::take_transfers();
    step_there(c.solver, predictor);
    CHECK(waits() == before + 10);  // each of 4 calls; 2 for each search of values that are not finite
    CHECK(simt::take_transfers() == simt::Transfers{0, 3, 0, 12});
  }
  Values<float> spoilt{c.solver.u.host};
  spoilt.host[6] = std::nanf("");
  spoilt.place(c.runtime);
  const auto refused = [&](const char* name) {
    return test::message_of([&] {
      predictor.set_field(name, {spoilt.there(), kGpu});
      predictor.predict();
    });
  };
  const char* const kRow = ", row 6] needed finite numbers, got nan";
  CHECK(test::contains(refused("u"), std::string("field u") + kRow));
  predictor.set_field("u", {c.solver.u.there(), kGpu});
  CHECK(test::contains(refused("load"), std::string("field load") + kRow));
  std::vector<double>& places = c.solver.positions.host;
  places[5] = 1e39;
  copy(Tensor::borrow(places.data(), {std::ssize(places)}, DType::f64), c.solver.positions.device,
       c.runtime.stream());
  CHECK(test::contains(test::message_of([&] { predictor.positions_changed(); }),
                       "positions, row 2] needed finite numbers"));
}

TEST_CASE("changed positions in GPU memory are those of the next step") {
  Case c{.stream = stream_of_application()};
  const std::string file = c.trained(false);
  const auto predicted = [&](bool device, double before, double after) {
    MeshPredictor predictor(c.runtime, file);
    std::vector<double>& positions = c.solver.positions.host;
    const std::vector<double> old = positions;
    for (double& value : positions) value *= before;
    predictor.set_mesh(device ? c.solver.on_device() : c.solver.on_host());
    for (double& value : positions) value *= after;
    if (device) {
      const Tensor from = Tensor::borrow(positions.data(), {std::ssize(positions)}, DType::f64);
      copy(from, c.solver.positions.device, c.runtime.stream());
    }
    if (after != 1.0) predictor.positions_changed();
    predictor.set_field("u", c.solver.u.host);
    predictor.set_field("load", c.solver.load.host);
    predictor.record_steps(true);
    predictor.predict();
    predictor.set_gradient("u", c.solver.load.host);
    predictor.backward();
    std::vector<double> gradient(positions.size());
    predictor.get_position_gradient(gradient);
    std::vector<float> values(c.solver.u.host.size());
    predictor.get_field("u", values);
    positions = old;
    return std::pair(values, gradient);
  };
  const auto moved = predicted(false, 2.0, 1.0);
  CHECK(predicted(false, 1.0, 2.0) == moved);
  CHECK(predicted(true, 1.0, 2.0) == moved);
  const auto rest = predicted(false, 1.0, 1.0);
  CHECK(rest.first != moved.first);
  CHECK(rest.second != moved.second);
}

TEST_CASE("arrays in GPU memory are copied when a mesh is set") {
  Case c{.stream = stream_of_application()};
  MeshPredictor predictor(c.runtime, c.trained(false));
  simt::take_transfers();
  predictor.set_mesh(c.solver.on_device());
  const simt::Transfers moved = simt::take_transfers();
  CHECK(moved.to_host == 3);
  CHECK(moved.bytes_to_host == 256 + 9 * 16 + kFloats);
  // Cells were read: the solver may free them, or write others there.
  fill_zero(c.solver.cells.device, c.runtime.stream());
  predictor.set_field("u", {c.solver.u.there(), kGpu});
  predictor.set_field("load", {c.solver.load.there(), kGpu});
  predictor.predict(2);
  predictor.get_field("u", {c.solver.u.there(), kGpu});
  predictor.positions_changed();
  CHECK(simt::take_transfers() == simt::Transfers{});
}

TEST_CASE("a predictor short of device memory takes fewer edges") {
  const test::ScratchDirectory scratch;
  constexpr int32_t kSide = 24;
  std::vector<float> apart, close;
  std::vector<int32_t> cells;
  for (int32_t i = 0; i < kSide * kSide; ++i) {
    for (const int32_t place : {i % kSide, i / kSide}) {
      apart.push_back(0.1f * static_cast<float>(place));
      close.push_back(1e-4f * static_cast<float>(place));
    }
    if (i % kSide + 1 < kSide && i + kSide < kSide * kSide)
      cells.insert(cells.end(), {i, i + 1, i + kSide + 1, i + kSide});
  }
  const MeshArrays mesh{.positions = apart, .cells = cells, .nodes_per_cell = 4};
  Config config;
  config.data.inputs = {};
  config.data.targets = {"x"};
  config.data.world_position = "x";
  config.data.world_radius = 0.05;
  config.data.world_pairs = WorldPairs::all;
  config.data.node_types = 1;
  config.data.predicted_types = {0};
  config.model.width = 8;
  config.model.blocks = 1;
  config.train.noise = 0.0;
  const std::string file = scratch.path / "model.safetensors";
  {
    Runtime runtime({.threads = 1});
    OnlineTrainer trainer(runtime, config, {.fields = {{.name = "x", .components = 2}}});
    trainer.set_mesh(mesh);
    for (int i = 0; i < 2; ++i) {
      trainer.set_field("x", apart);
      trainer.append();
    }
    trainer.train(1);
    trainer.save(file);
  }
  Runtime runtime({.device = kGpu, .threads = 1, .allocator = {.memory_limit = 8 << 20}});
  MeshPredictor predictor(runtime, file);
  predictor.set_mesh(mesh);
  const auto predicted = [&] {
    predictor.set_field("x", apart);
    predictor.predict();
    std::vector<float> values(apart.size());
    predictor.get_field("x", values);
    return values;
  };
  const std::vector<float> before = predicted();
  predictor.set_field("x", close);
  CHECK_THROWS_AS(predictor.predict(), OutOfMemory);
  CHECK(predicted() == before);
}

struct Results {
  std::vector<std::vector<float>> values;
  bool operator==(const Results&) const = default;
};

/// Everything that a predictor reads and writes.
Results results(Case& c, const std::string& file, bool device) {
  const auto array = [&](Values<float>& values) {
    return device ? Numbers(values.there(), kGpu) : Numbers(values.host);
  };
  Solver& s = c.solver;
  MeshPredictor predictor(c.runtime, file);
  predictor.set_mesh(device ? s.on_device() : s.on_host());
  predictor.record_steps(true);
  predictor.set_field("u", array(s.next));
  predictor.set_previous_field("u", array(s.u));
  predictor.set_field("load", array(s.load));
  predictor.predict(2);
  predictor.set_boundary("u", array(s.u));
  predictor.predict();
  Results all;
  Values<float> out{std::vector<float>(s.u.host.size())},
      positions{std::vector<float>(s.positions.host.size())};
  out.place(c.runtime);
  positions.place(c.runtime);
  const auto get = [&](const auto& call, Values<float>& to) {
    call(device ? WritableNumbers(to.there(), kGpu) : WritableNumbers(to.host));
    all.values.push_back(device ? to.read(c.runtime) : to.host);
  };
  get([&](WritableNumbers to) { predictor.get_field("u", to); }, out);
  predictor.set_gradient("u", array(s.load));
  predictor.backward();
  get([&](WritableNumbers to) { predictor.get_gradient("u", to); }, out);
  get([&](WritableNumbers to) { predictor.get_gradient("load", to); }, out);
  get([&](WritableNumbers to) { predictor.get_previous_gradient("u", to); }, out);
  get([&](WritableNumbers to) { predictor.get_position_gradient(to); }, positions);
  return all;
}

TEST_CASE("arrays in GPU memory give the bits of host arrays") {
  Case c;
  const std::string file = c.trained(false, Prediction::second_change);
  const Results here = results(c, file, false);
  CHECK(results(c, file, true) == here);
  for (const std::vector<float>& values : here.values) {
    double size = 0;
    for (const float value : values) size += std::abs(static_cast<double>(value));
    CHECK(size > 0);
  }
  c.trained(true, Prediction::second_change);
  CHECK(results(c, file, false) == here);
}

TEST_CASE("an array on another device than the runtime's is refused") {
  Case c;
  const std::string file = c.trained(false);
  Runtime cpu({.threads = 1});
  MeshPredictor predictor(cpu, file);
  const auto refused = [](auto&& call) {
    return test::contains(test::message_of(call), "an array on cuda:0, and a runtime of cpu");
  };
  CHECK(refused([&] { predictor.set_mesh(c.solver.on_device()); }));
  predictor.set_mesh(c.solver.on_host());
  CHECK(refused([&] { predictor.set_field("u", {c.solver.u.there(), kGpu}); }));
  predictor.set_field("u", c.solver.u.host);
  CHECK(refused([&] { predictor.get_field("u", {c.solver.u.there(), kGpu}); }));
}

TEST_CASE("an array that is not allocated on the GPU is refused") {
  Case c;
  MeshPredictor predictor(c.runtime, c.trained(false));
  predictor.set_mesh(c.solver.on_device());
  const auto refused = [](auto&& call) {
    return test::contains(test::message_of(call), "needed 64 bytes of memory of cuda:0, got 0x");
  };
  std::vector<float>& host = c.solver.u.host;
  CHECK(refused([&] { predictor.set_field("u", {std::span<const float>(host), kGpu}); }));
  CHECK(refused([&] { predictor.set_field("load", {std::span<const float>(host), kGpu}); }));
  predictor.set_field("u", host);
  CHECK(refused([&] { predictor.get_field("u", {std::span(host), kGpu}); }));
  const auto elsewhere = [&] { predictor.set_field("u", {c.solver.u.there(), Device{DeviceKind::cuda, 1}}); };
  CHECK(test::contains(test::message_of(elsewhere), "an array on cuda:1, and a runtime of cuda:0"));
}

TEST_CASE("f32 host arrays are read in place, others rounded") {
  HeldNumbers held;
  const std::vector<float> single{1.5f, 2.5f};
  held.hold(single, {}, {});
  CHECK(held.read().data() == single.data());
  const std::vector<double> wide{1.5, 2.5}, next{3.5, 4.5};
  held.hold(wide, {0.5}, {});
  const float* const rounded = held.read().data();
  CHECK(static_cast<const void*>(rounded) != static_cast<const void*>(wide.data()));
  CHECK(held.read()[1] == 2.0f);
  held.hold(next, {0.5}, {});
  CHECK(held.read().data() == rounded);
  CHECK(held.read()[1] == 4.0f);
}

}  // namespace
}  // namespace meshgrad::device_arrays_test
