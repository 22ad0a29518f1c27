// SPDX-License-Identifier: Apache-2.0
// MeshPredictor: the same bits as predictions on a packed file, from arrays of the caller.
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/learn/task/task.h>

#include <sys/mman.h>

#include <cmath>

#include "support.h"
#include "train/mesh_arrays.h"
#include "train/moving_data.h"
#include "train/npz_arrays.h"
#include "train/process.h"
#include "train/small_run.h"

namespace meshgrad::mesh_predictor_test {
namespace {

namespace fs = std::filesystem;
using test::arrays_of;
using test::contains;
using test::message_of;
using Frames = std::vector<std::vector<float>>;

constexpr int64_t kSteps = 5;

/// A run on waves, and what its rollout gives on the first test trajectory.
struct Waves {
  test::ScratchDirectory scratch;
  Config config;
  Runtime runtime{RuntimeOptions{.threads = 2}};
  std::optional<Predictor> packed;
  std::string checkpoint;

  explicit Waves(Prediction predict = Prediction::change, DType precision = DType::f32, int64_t slices = 0) {
    config = test::small_config(scratch.path, test::pack_waves(scratch.path));
    if (slices > 0) {
      config.model.slices = slices;
      config.model.slices_every = 1;
    }
    config.data.predict = predict;
    config.precision = precision;
    config.train.steps = 6;
    config.train.validate_every = 0;
    test::train_here(config);
    checkpoint = config.run.dir + "/checkpoints/last.safetensors";
    packed.emplace(runtime, checkpoint);
  }
  TrajectoryView trajectory(std::string_view split = "test", int64_t i = 0) const {
    return packed->dataset().trajectory(split, i);
  }
  Frames rollout(RolloutBoundary boundary, std::string_view split = "test", int64_t i = 0) const {
    Frames frames;
    roll_out(packed->trained(), packed->mesh_dynamics(), trajectory(split, i),
             {.steps = kSteps, .boundary = boundary},
             [&](const RolloutFrame& frame) { frames.push_back(frame.ours); });
    return frames;
  }
};

std::vector<float> values_of(const MeshPredictor& predictor, std::string_view field, size_t size,
                             int64_t mesh = 0) {
  std::vector<float> values(size);
  predictor.get_field(field, values, mesh);
  return values;
}

TEST_CASE("steps from memory have the bits of a rollout") {
  for (const Prediction predict : {Prediction::change, Prediction::second_change}) {
    for (const DType precision : {DType::f32, DType::bf16, DType::f64}) {
      CAPTURE(std::string(name_of(precision)));
      Waves waves(predict, precision);
      const TrajectoryView trajectory = waves.trajectory();
      const int64_t first = predict == Prediction::second_change ? 1 : 0;
      MeshPredictor predictor(waves.runtime, waves.checkpoint);
      CHECK(predictor.dim() == 2);
      REQUIRE(predictor.targets().size() == 1);
      CHECK(predictor.targets().front().components == 2);
      for (const RolloutBoundary boundary : {RolloutBoundary::initial, RolloutBoundary::data}) {
        predictor.set_mesh(arrays_of(trajectory.mesh()));
        predictor.set_field("velocity", trajectory.field("velocity").frame(first));
        if (first == 1) predictor.set_previous_field("velocity", trajectory.field("velocity").frame(0));
        const Frames frames = waves.rollout(boundary);
        REQUIRE(frames.size() == kSteps);
        for (int64_t t = 0; t < kSteps; ++t) {
          predictor.predict();
          if (boundary == RolloutBoundary::data)
            predictor.set_boundary("velocity", trajectory.field("velocity").frame(first + t + 1));
          const std::vector<float>& frame = frames[static_cast<size_t>(t)];
          CHECK(values_of(predictor, "velocity", frame.size()) == frame);
        }
      }
    }
  }
}

TEST_CASE("f64 arrays give the bits of f32 arrays") {
  Waves waves;
  const TrajectoryView trajectory = waves.trajectory();
  const auto wide = [](std::span<const float> values) {
    return std::vector<double>(values.begin(), values.end());
  };
  const std::vector<double> positions = wide(trajectory.mesh().positions);
  const std::vector<double> velocity = wide(trajectory.field("velocity").frame(0));
  MeshPredictor predictor(waves.runtime, waves.checkpoint);
  predictor.set_mesh({.positions = positions,
                      .first = trajectory.mesh().senders,
                      .second = trajectory.mesh().receivers,
                      .node_type = trajectory.mesh().node_type});
  predictor.set_field("velocity", velocity);
  predictor.predict(kSteps);
  const Frames frames = waves.rollout(RolloutBoundary::initial);
  CHECK(values_of(predictor, "velocity", velocity.size()) == frames.back());
  std::vector<double> read(velocity.size());
  predictor.get_field("velocity", read);
  CHECK(read == wide(frames.back()));
}

TEST_CASE("meshes predicted together have the bits of each alone") {
  for (const int64_t slices : {0, 4}) {  // which join all nodes of a mesh
    Waves waves(Prediction::change, DType::f32, slices);
    const TrajectoryView both[] = {waves.trajectory("train", 1), waves.trajectory("train", 0)};
    const MeshArrays meshes[] = {arrays_of(both[0].mesh()), arrays_of(both[1].mesh())};
    MeshPredictor predictor(waves.runtime, waves.checkpoint);
    predictor.set_meshes(meshes);
    for (int64_t i = 0; i < 2; ++i) predictor.set_field("velocity", both[i].field("velocity").frame(0), i);
    predictor.predict(kSteps);
    for (int64_t i = 0; i < 2; ++i) {
      const std::vector<float> alone = waves.rollout(RolloutBoundary::initial, "train", 1 - i).back();
      CHECK(values_of(predictor, "velocity", alone.size(), i) == alone);
    }
  }
}

TEST_CASE("edge features follow positions that move") {
  Waves waves;
  const TrajectoryView trajectory = waves.trajectory();
  std::vector<float> positions(trajectory.mesh().positions.begin(), trajectory.mesh().positions.end());
  MeshArrays mesh = arrays_of(trajectory.mesh());
  mesh.positions = positions;
  const std::span<const float> start = trajectory.field("velocity").frame(0);
  const auto predicted = [&](MeshPredictor& predictor) {
    predictor.set_field("velocity", start);
    predictor.predict();
    return values_of(predictor, "velocity", start.size());
  };
  MeshPredictor predictor(waves.runtime, waves.checkpoint);
  predictor.set_mesh(mesh);
  const std::vector<float> before = predicted(predictor);
  for (float& x : positions) x *= 1.25f;
  CHECK(predicted(predictor) == before);  // not read again yet
  predictor.positions_changed();
  const std::vector<float> after = predicted(predictor);
  CHECK(after != before);
  MeshPredictor fresh(waves.runtime, waves.checkpoint);
  fresh.set_mesh(mesh);
  CHECK(predicted(fresh) == after);
}

/// Fields far from zero, which the packed file stores less an offset.
TEST_CASE("a steady field far from zero is that of the file") {
  const test::ScratchDirectory scratch;
  constexpr int kSide = 9;
  std::vector<double> positions, u, flow;
  std::vector<int32_t> cells, types(kSide * kSide, 0);
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      positions.insert(positions.end(), {5e6 + 0.5 * x + 0.07 * std::sin(y), 5e6 + 0.5 * y});
      u.push_back(1e7 + std::sin(0.3 * x * y));
      flow.insert(flow.end(), {std::cos(0.2 * x), 1e7 + std::sin(0.1 * y)});
      if (x == 0) types[static_cast<size_t>(y * kSide)] = 4;
      if (x + 1 == kSide || y + 1 == kSide) continue;
      const int32_t at = y * kSide + x;
      for (const int32_t node : {at, at + 1, at + kSide + 1, at + kSide}) cells.push_back(node);
    }
  }
  const test::NpzArrays arrays{{"mesh_pos", test::npy<double>("<f8", "(81, 2)", positions)},
                               {"cells", test::npy<int32_t>("<i4", "(64, 4)", cells)},
                               {"node_type", test::npy<int32_t>("<i4", "(81,)", types)},
                               {"u", test::npy<double>("<f8", "(1, 81)", u)},
                               {"flow", test::npy<double>("<f8", "(1, 81, 2)", flow)}};
  fs::create_directories(scratch.path / "in");
  test::write_npz(scratch.path / "in/train.npz", arrays, false);
  ConvertOptions options;
  options.input = scratch.path / "in";
  options.output = scratch.path / "far.mgd";
  convert(options);
  Config config = test::small_config(scratch.path, options.output);
  config.task.name = TaskName::steady_field;
  config.data.inputs = {"flow"};
  config.data.targets = {"u"};
  config.train.noise = 0;
  config.train.steps = 4;
  config.train.validate_every = 0;
  test::train_here(config);
  const std::string checkpoint = config.run.dir + "/checkpoints/last.safetensors";
  Runtime runtime({.threads = 1});
  const Predictor packed(runtime, checkpoint);
  const TrajectoryView trajectory = packed.dataset().trajectory(0);
  REQUIRE(packed.dataset().field("u").offset_of(0) != 0);
  REQUIRE(trajectory.mesh().origin[0] != 0);
  const std::vector<float> theirs = predict_steady(packed, trajectory, 0);
  MeshPredictor predictor(runtime, checkpoint);
  predictor.set_mesh({.positions = positions, .cells = cells, .nodes_per_cell = 4, .node_type = types});
  predictor.set_field("flow", flow);
  predictor.set_field("u", u);
  predictor.predict();
  std::vector<double> ours(u.size());
  predictor.get_field("u", ours);
  for (size_t i = 0; i < ours.size(); ++i) {
    CAPTURE(i);
    CHECK(ours[i] == static_cast<double>(theirs[i]) + packed.dataset().field("u").offset_of(0));
  }
  // Inputs stay borrowed: a changed array is read by the next prediction.
  for (double& value : flow) value *= 0.5;
  predictor.set_field("u", u);
  predictor.predict();
  std::vector<double> changed(u.size());
  predictor.get_field("u", changed);
  CHECK(changed != ours);
}

TEST_CASE("what does not fit is refused with its place and the fix") {
  Waves waves;
  const TrajectoryView trajectory = waves.trajectory();
  MeshPredictor predictor(waves.runtime, waves.checkpoint);
  const auto refusal = [&](auto&& call) { return message_of([&] { call(); }); };
  CHECK(contains(refusal([&] { predictor.predict(); }), "fix: call set_mesh first"));
  predictor.set_mesh(arrays_of(trajectory.mesh()));
  CHECK(contains(refusal([&] { predictor.predict(); }),
                 "[MeshPredictor: mesh 0, field velocity] needed values, got none; fix: call set_field"));
  const std::span<const float> velocity = trajectory.field("velocity").frame(0);
  CHECK(contains(refusal([&] { predictor.set_field("speed", velocity); }), "got \"speed\""));
  CHECK(contains(refusal([&] { predictor.set_field("velocity", velocity.subspan(1)); }),
                 "needed [49, 2] on mesh 0, got 97 numbers"));
  CHECK(contains(refusal([&] { predictor.set_field("velocity", velocity, 1); }), "one of the 1 meshes"));
  CHECK(contains(refusal([&] { predictor.set_previous_field("velocity", velocity); }), "second changes"));
  predictor.set_field("velocity", velocity);
  CHECK(contains(refusal([&] { predictor.predict(0); }), "needed 1 or more, got 0"));

  std::vector<int32_t> cells(trajectory.mesh().cells.begin(), trajectory.mesh().cells.end());
  cells[4] = 49;
  MeshArrays wrong = arrays_of(trajectory.mesh());
  wrong.cells = cells;
  CHECK(contains(refusal([&] { predictor.set_mesh(wrong); }), "MeshPredictor: mesh 0"));
  const std::vector<int32_t> types(49, 9);
  wrong = arrays_of(trajectory.mesh());
  wrong.node_type = types;
  CHECK(contains(refusal([&] { predictor.set_mesh(wrong); }), "type of node 0] needed 0..8, got 9"));
  // A refused mesh leaves the one before.
  predictor.predict(kSteps);
  CHECK(values_of(predictor, "velocity", velocity.size()) == waves.rollout(RolloutBoundary::initial).back());
}

TEST_CASE("a checkpoint without fields says how to get one") {
  Waves waves;
  const fs::path old = waves.scratch.path / "old.safetensors";
  const SafetensorsFile file(waves.checkpoint);
  std::map<std::string, std::string> metadata = file.view().metadata;
  metadata["data"] = R"({"dt": 0.5, "offsets": {}})";
  metadata["checksum"] = checkpoint_checksum(file.view().tensors, metadata);
  write_safetensors(old, file.view().tensors, metadata);
  const Predictor still_reads(waves.runtime, old);  // with its data set
  CHECK(contains(message_of([&] { MeshPredictor predictor(waves.runtime, old); }),
                 "old.safetensors] needed a description of the fields"));
}

TEST_CASE("predictions after the first take no memory from the system") {
  Waves waves;
  const TrajectoryView trajectory = waves.trajectory();
  MeshPredictor predictor(waves.runtime, waves.checkpoint);
  predictor.set_mesh(arrays_of(trajectory.mesh()));
  predictor.set_field("velocity", trajectory.field("velocity").frame(0));
  predictor.predict();
  const MemoryStats before = waves.runtime.allocator().stats();
  for (int i = 0; i < 10; ++i) {
    predictor.set_field("velocity", trajectory.field("velocity").frame(0));
    predictor.predict(2);
  }
  const MemoryStats after = waves.runtime.allocator().stats();
  CHECK(after.source_calls == before.source_calls);
  CHECK(after.allocated.current == before.allocated.current);
  CHECK(after.reserved.current == before.reserved.current);
}

/// Memory of a host application at ever lower addresses, as mmap gives it.
struct FallingMemory {
  static constexpr size_t kBytes = size_t{1} << 32;
  char* begin = static_cast<char*>(
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
  char* next = begin + kBytes;
  int64_t calls = 0;

  ~FallingMemory() { munmap(begin, kBytes); }
  std::shared_ptr<MemorySource> source() {
    constexpr int64_t kPage = 4096;
    return make_callback_memory({.allocate = [this](int64_t bytes) -> void* {
                                   ++calls;
                                   next -= (bytes + kPage - 1) / kPage * kPage;
                                   return next < begin ? nullptr : next;
                                 },
                                 .free = [](void*, int64_t) {}},
                                Device{}, kBytes / 2);
  }
};

TEST_CASE("predictions after the first borrow nothing, at any size") {
  const test::ScratchDirectory scratch;
  const std::string checkpoint = scratch.path / "wide.safetensors";
  Config config;
  config.model.width = 128;
  config.model.blocks = 2;
  config.train.noise = 0;
  {
    Runtime runtime({.threads = 1});
    OnlineTrainer(runtime, config, {.fields = {{.name = "velocity", .components = 2}}}).save(checkpoint);
  }
  for (const int side : {7, 24, 33, 45, 60, 80}) {  // of 80 x 80 nodes a second one once took more
    CAPTURE(side);
    const test::SquareRecord record = test::wave_record(side, 1, 0.0);
    FallingMemory memory;
    REQUIRE(memory.begin != MAP_FAILED);
    Runtime runtime({.threads = 1, .memory = memory.source()});
    MeshPredictor predictor(runtime, checkpoint);
    predictor.set_mesh({.positions = record.mesh_pos, .cells = record.cells, .nodes_per_cell = 3});
    const auto predict = [&] {
      predictor.set_field("velocity", record.velocity);
      predictor.predict();
      return memory.calls;
    };
    const int64_t first = predict();
    CHECK(first > 0);
    CHECK(predict() == first);
    CHECK(predict() == first);
  }
}

TEST_CASE("a value target needs no earlier value") {
  const test::Moving data("plate");
  Config config = test::small_config(data.scratch.path, data.file);
  config.data.inputs = {"stress"};
  config.data.predict = Prediction::second_change;
  config.data.world_position = "world_pos";
  config.data.targets = {"world_pos", "stress"};
  config.data.value_targets = {"stress"};
  config.train.steps = 2;
  test::train_here(config);
  const std::string checkpoint = config.run.dir + "/checkpoints/last.safetensors";
  Runtime runtime{RuntimeOptions{.threads = 1}};
  const Predictor packed(runtime, checkpoint);
  const TrajectoryView view = packed.dataset().trajectory("test", 0);
  MeshPredictor predictor(runtime, checkpoint);
  predictor.set_mesh(arrays_of(view.mesh()));
  predictor.set_field("world_pos", view.field("world_pos").frame(1));
  predictor.set_field("stress", view.field("stress").frame(1));
  CHECK(contains(message_of([&] { predictor.predict(); }), "field world_pos] needed values one step before"));
  predictor.set_previous_field("world_pos", view.field("world_pos").frame(0));
  predictor.predict();
  const MeshTask& task = packed.mesh_dynamics();
  const std::vector<float> next = predict_next(packed.trained(), task, view, 1, task.state_at(view, 1));
  std::vector<float> moved(next.size() / 4 * 3), stress(next.size() / 4);
  predictor.get_field("world_pos", moved);
  predictor.get_field("stress", stress);
  for (size_t i = 0; i < next.size(); ++i)
    if (view.mesh().node_type[i / 4] == 0)
      REQUIRE(next[i] == (i % 4 < 3 ? moved[i / 4 * 3 + i % 4] : stress[i / 4]));
}

}  // namespace
}  // namespace meshgrad::mesh_predictor_test
