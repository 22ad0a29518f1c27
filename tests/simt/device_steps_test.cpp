// SPDX-License-Identifier: Apache-2.0
// Steps whose fields stay on the device: of meshes that move, of nodes that the solver moves, with frames
// before and offsets, in 16 bits and on several meshes. Against a predictor on the CPU, and bit by bit
// against arrays on the host.
#include <doctest/doctest.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/engine/tensor.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support.h"
#include "train/scratch_directory.h"
#include "transfers.h"

namespace meshgrad::device_steps_test {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};
constexpr int32_t kSide = 5, kNodes = kSide * kSide;

/// Numbers of a solver, handed over on the host or on the device.
template <class T>
class Array {
 public:
  Array(std::vector<T> values) : values_(std::move(values)) {}
  Numbers numbers(Runtime& runtime, bool device) const {
    if (!device) return values_;
    there_ = Tensor::from<T>(runtime, values_, {std::ssize(values_)}, Tag::host);
    return {std::span<const T>(there_.data<T>(), values_.size()), kGpu};
  }
  const std::vector<T>& values() const { return values_; }

 private:
  std::vector<T> values_;
  mutable Tensor there_;  // while it is borrowed
};

template <class T>
std::vector<T> wave(size_t count, double offset, double phase) {
  std::vector<T> values;
  for (size_t i = 0; i < count; ++i)
    values.push_back(static_cast<T>(offset + std::sin(0.7 * static_cast<double>(i) + phase)));
  return values;
}

/// A solver's mesh; nodes of one side are of type 1.
struct Grid {
  std::vector<int32_t> cells, types;
  std::vector<double> positions;
  Grid() {
    for (int32_t i = 0; i < kNodes; ++i) {
      const double x = i % kSide, y = i / kSide;
      positions.insert(positions.end(), {0.2 * x, 0.2 * y + 0.01 * x});
      types.push_back(i % kSide == 0 ? 1 : 0);
      if (i % kSide + 1 < kSide && i + kSide < kNodes)
        cells.insert(cells.end(), {i, i + 1, i + kSide + 1, i + kSide});
    }
  }
  MeshArrays arrays(const Numbers& at) const {
    return {.positions = at, .cells = cells, .nodes_per_cell = 4, .node_type = types};
  }
};

Config base_config() {
  Config config;
  config.data.node_types = 2;
  config.data.predicted_types = {0};
  config.model.width = 8;
  config.model.blocks = 1;
  config.model.activation = Activation::silu;
  config.train.noise = 0.0;
  config.normalize.max_samples = 8;
  return config;
}

/// What a predictor has given, one field after another.
using Results = std::vector<std::vector<double>>;
/// Runs a predictor on arrays of the host or of the device.
using Run = std::function<Results(Runtime& runtime, MeshPredictor& predictor, bool device)>;

/// Whether these are equal up to rounding, and anything but zeros.
bool near(const Results& a, const Results& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    double largest = 0.0, difference = 0.0;
    for (size_t j = 0; j < a[i].size(); ++j) {
      largest = std::max(largest, std::abs(a[i][j]));
      difference = std::max(difference, std::abs(a[i][j] - b[i][j]));
    }
    if (!(largest > 0.0 && difference < 2e-4 * largest)) return false;
  }
  return true;
}

/// Trains by `train`, and compares what `run` gives.
void compare(const Config& config, const OnlineOptions& options,
             const std::function<void(OnlineTrainer&)>& train, const Run& run) {
  const test::ScratchDirectory scratch;
  const std::string file = scratch.path / "model.safetensors";
  Runtime cpu({.threads = 1});
  {
    OnlineTrainer trainer(cpu, config, options);
    train(trainer);
    trainer.save(file);
  }
  MeshPredictor on_cpu(cpu, file);
  const Results expected = run(cpu, on_cpu, false);
  const std::shared_ptr<void> stream(gpu::create_stream(0), gpu::destroy_stream);
  Runtime runtime({.device = kGpu, .threads = 1, .stream = stream.get()});
  MeshPredictor from_host(runtime, file), from_device(runtime, file);
  const Results host = run(runtime, from_host, false), device = run(runtime, from_device, true);
  CHECK(host == device);
  CHECK(near(expected, host));
}

/// Three frames of a field on the grid.
template <class T>
void append_frames(OnlineTrainer& trainer, const std::string& name, size_t count, double offset, T) {
  for (int frame = 0; frame < 5; ++frame) {
    trainer.set_field(name, wave<T>(count, offset, 0.1 * frame));
    trainer.append();
  }
  trainer.train(2);
}

TEST_CASE("steps of a mesh that moves stay on the device") {
  Config config = base_config();
  config.data.inputs = {"x"};
  config.data.targets = {"x"};
  config.data.world_position = "x";
  config.data.history = 2;
  config.data.kinematic_types = {1};
  const Grid grid;
  constexpr size_t kValues = size_t{2} * kNodes;
  const auto train = [&](OnlineTrainer& trainer) {
    trainer.set_mesh(grid.arrays(grid.positions));
    append_frames(trainer, "x", kValues, 0.0, 1.0f);
  };
  compare(config, {.fields = {{.name = "x", .components = 2}}}, train,
          [&](Runtime& runtime, MeshPredictor& predictor, bool device) {
            const Array<double> positions(grid.positions);
            const Array<float> now(wave<float>(kValues, 0.0, 0.0)), before(wave<float>(kValues, 0.0, -0.1));
            const Array<double> next(wave<double>(kValues, 0.0, 0.1)), later(wave<double>(kValues, 0.0, 0.2));
            predictor.set_mesh(grid.arrays(positions.numbers(runtime, device)));
            predictor.record_steps(true);
            predictor.set_field("x", now.numbers(runtime, device));
            predictor.set_previous_field("x", before.numbers(runtime, device));
            Results results;
            for (const Array<double>* values : {&next, &later}) {
              const Numbers numbers = values->numbers(runtime, device);
              simt::take_transfers();
              predictor.set_next_field("x", numbers);
              predictor.predict();
              if (device) CHECK(simt::take_transfers() == simt::Transfers{});
            }
            results.emplace_back(kValues);
            predictor.get_field("x", results.back());
            predictor.set_gradient("x", now.numbers(runtime, device));
            predictor.backward();
            const auto gradient = [&](const auto& get) {
              results.emplace_back(kValues);
              get(WritableNumbers(results.back()));
            };
            gradient([&](WritableNumbers to) { predictor.get_gradient("x", to); });
            gradient([&](WritableNumbers to) { predictor.get_previous_gradient("x", to); });
            gradient([&](WritableNumbers to) { predictor.get_next_gradient("x", to, 0, 0); });
            gradient([&](WritableNumbers to) { predictor.get_position_gradient(to); });
            return results;
          });
}

TEST_CASE("steps that read given positions stay on the device") {
  Config config = base_config();
  config.data.inputs = {"u", "load"};
  config.data.targets = {"u"};
  config.data.world_position = "place";
  config.data.predict = Prediction::second_change;
  const Grid grid;
  const std::vector<FieldInfo> fields{{.name = "u", .components = 1},
                                      {.name = "load", .components = 1, .on = FieldOn::graph},
                                      {.name = "place", .components = 2}};
  constexpr size_t kPlaces = size_t{2} * kNodes;
  const auto train = [&](OnlineTrainer& trainer) {
    trainer.set_mesh(grid.arrays(grid.positions));
    for (int frame = 0; frame < 5; ++frame) {
      trainer.set_field("load", std::vector<float>{0.5f + 0.25f * static_cast<float>(frame)});
      trainer.set_field("place", wave<float>(kPlaces, 0.0, 0.3 * frame));
      trainer.set_field("u", wave<double>(kNodes, 0.0, 0.1 * frame));
      trainer.append();
    }
    trainer.train(2);
  };
  compare(config, {.fields = fields}, train, [&](Runtime& runtime, MeshPredictor& predictor, bool device) {
    const Array<double> positions(grid.positions), place(wave<double>(kPlaces, 0.0, 0.4));
    const Array<double> now(wave<double>(kNodes, 0.0, 0.0)), before(wave<double>(kNodes, 0.0, -0.1));
    const Array<float> load({0.75f});
    const MeshArrays mesh = grid.arrays(positions.numbers(runtime, device));
    const MeshArrays both[] = {mesh, mesh};
    predictor.set_meshes(both);
    const Numbers both_load = load.numbers(runtime, device);
    for (const int i : {0, 1}) {
      predictor.set_field("u", (i == 0 ? now : before).numbers(runtime, device), i);
      predictor.set_previous_field("u", before.numbers(runtime, device), i);
      predictor.set_field("load", both_load, i);
    }
    predictor.set_field("place", place.numbers(runtime, device), 0);
    const Array<double> elsewhere(wave<double>(kPlaces, 0.0, 0.9));
    predictor.set_field("place", elsewhere.numbers(runtime, device), 1);
    predictor.record_steps(true);
    predictor.predict(2);
    predictor.set_boundary("u", before.numbers(runtime, device), 1);
    Results results;
    for (const int i : {0, 1}) {
      results.emplace_back(kNodes);
      predictor.get_field("u", results.back(), i);
      predictor.set_gradient("u", now.numbers(runtime, device), i);
    }
    predictor.backward();
    results.emplace_back(kPlaces);
    predictor.get_gradient("place", results.back(), 1);
    return results;
  });
}

TEST_CASE("steps far from 0 keep their offset on the device, in 16 bits") {
  Config config = base_config();
  config.data.inputs = {"u"};
  config.data.targets = {"u"};
  config.precision = DType::bf16;
  const Grid grid;
  const test::ScratchDirectory scratch;
  const std::string file = scratch.path / "model.safetensors";
  std::vector<double> far = grid.positions;
  for (double& value : far) value += 5e6;
  Runtime runtime({.device = kGpu, .threads = 1});
  {
    OnlineTrainer trainer(runtime, config, {.fields = {{.name = "u", .components = 1}}});
    trainer.set_mesh(grid.arrays(grid.positions));
    append_frames(trainer, "u", kNodes, 0.0, 1.0);
    trainer.save(file);
  }
  const auto predicted = [&](const std::vector<double>& positions, bool device) {
    MeshPredictor predictor(runtime, file);
    const Array<double> at(positions);
    predictor.set_mesh(grid.arrays(at.numbers(runtime, device)));
    predictor.positions_changed();
    predictor.set_field("u", wave<double>(kNodes, 0.0, 0.2));
    predictor.predict(2);
    std::vector<double> values(kNodes);
    predictor.get_field("u", values);
    return values;
  };
  const std::vector<double> there = predicted(far, true);
  CHECK(there == predicted(far, false));
  const std::vector<double> near_zero = predicted(grid.positions, true);
  for (size_t i = 0; i < there.size(); ++i) CHECK(std::abs(there[i] - near_zero[i]) < 0.02);
}

}  // namespace
}  // namespace meshgrad::device_steps_test
