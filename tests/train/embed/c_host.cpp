// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/config/config_table.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "train/embed/c_cases.h"

namespace meshgrad::test::c_interface {
namespace {

constexpr const char* kCommon =
    "run.seed = 5\ndata.targets = ['velocity']\ntrain.batch = 2\ntrain.noise = 0.0\noptimizer.lr = 2e-3\n";

given_parts::Wave wave_in(const Place& place, int side) {
  given_parts::Wave wave(side > 0 ? side : place.on_device ? 4 : 6, 8, 0.3);
  if (place.ranks == 1) std::ranges::fill(wave.owners, 0);
  return wave;
}

}  // namespace

Host::Host(const Place& where, int own_number, Ranks* ranks, int side,
           const meshgrad_runtime_options* options)
    : place(where), number(own_number), wave(wave_in(place, side)), part(wave, place.ranks > 1 ? number : 0) {
  const Device device = place.on_device ? Device{DeviceKind::cuda, 0} : Device{};
  if (place.device_arrays)
    solver_ = std::make_unique<Runtime>(RuntimeOptions{.device = device, .threads = 1});
  if (ranks != nullptr) {
    runtime = new meshgrad_runtime{.runtime = Runtime({.device = device, .threads = 1}),
                                   .ranks = std::move(*ranks)};
    return;
  }
  meshgrad_runtime_options own;
  meshgrad_runtime_options_init(&own);
  own.device = place.on_device ? "cuda" : "cpu";
  own.threads = place.on_device ? 1 : 2;
  own.log = [](void* lines, int32_t, const char*) { ++*static_cast<std::atomic<int>*>(lines); };
  own.log_context = &lines_;
  call(meshgrad_runtime_create, options == nullptr ? &own : options, &runtime).ok();
}

Host::~Host() {
  if (std::uncaught_exceptions() > 0) {
    delete runtime;  // its ranks leave
  } else {
    meshgrad_runtime_destroy(runtime);
  }
}

Handle<meshgrad_predictor> Host::predictor(const std::string& checkpoint) const {
  meshgrad_predictor* made = nullptr;
  call(meshgrad_predictor_create, runtime, checkpoint.c_str(), &made).ok();
  return Handle<meshgrad_predictor>(made);
}

Answer Host::create_trainer(const std::string& config, meshgrad_trainer** made, bool has_fields) const {
  const meshgrad_field fields[] = {{"velocity", 2, 0, "m/s"}, {"load", 1, 0, nullptr}};
  const std::string all = kCommon + config;
  meshgrad_trainer_options options;
  meshgrad_trainer_options_init(&options);
  options.config = all.c_str();
  options.dt = 0.5;
  options.fields = has_fields ? fields : nullptr;
  options.field_count = 2;
  options.held_out_every = 3;
  return call(meshgrad_trainer_create, runtime, &options, made);
}

Handle<meshgrad_trainer> Host::trainer() const {
  meshgrad_trainer* made = nullptr;
  create_trainer(kFlow, &made).ok();
  return Handle<meshgrad_trainer>(made);
}

Config config_of(const std::string& config) { return parse_config(kCommon + config, "test"); }

OnlineOptions online_options(bool has_load) {
  OnlineOptions options{
      .dt = 0.5, .fields = {{.name = "velocity", .components = 2, .unit = "m/s"}}, .held_out_every = 3};
  if (has_load) options.fields.push_back({.name = "load", .components = 1});
  return options;
}

HostValues<float> Host::load(float change) const {
  std::vector<float> load;
  for (const int32_t node : part.nodes) {
    const bool ghost = std::ssize(load) >= part.owned;  // not read
    load.push_back(ghost ? -1e3f : std::cos(0.4f * static_cast<float>(node)) + change);
  }
  return values(std::move(load));
}

MeshArrays Host::arrays() const {
  MeshArrays arrays = part.arrays();
  arrays.in_parts = place.ranks > 1;
  return arrays;
}

std::vector<int32_t> Host::connections(int64_t columns) const {
  std::vector<int32_t> result;
  for (size_t cell = 0; cell < part.cells.size(); cell += 3) {
    const int32_t* const nodes = &part.cells[cell];
    if (columns != 2) result.insert(result.end(), nodes, nodes + 3);
    if (columns == 4) result.push_back(nodes[2]);
    for (size_t k = 0; k < 3 && columns == 2; ++k) {
      const int32_t first = nodes[k], second = nodes[(k + 1) % 3];
      if (std::min(first, second) < part.owned) result.insert(result.end(), {first, second});
    }
  }
  return result;
}

Endings run_hosts(const Place& place, const std::function<void(Host&)>& body) {
  if (place.ranks > 1) {
    return try_on_ranks({.ranks = place.ranks, .timeout = std::chrono::minutes(10), .loss = {}},
                        [&](Ranks& ranks) {
                          const int rank = ranks.rank();
                          Host host(place, rank, &ranks);
                          body(host);
                        });
  }
  Endings endings(static_cast<size_t>(place.threads));
  const auto run = [&](int number) {
    try {
      Host host(place, number);
      body(host);
    } catch (const std::exception& error) {
      endings[static_cast<size_t>(number)] = error.what();
    }
  };
  std::vector<std::thread> threads;
  for (int number = 1; number < place.threads; ++number) threads.emplace_back(run, number);
  run(0);
  for (std::thread& thread : threads) thread.join();
  return endings;
}

SavedModel::SavedModel(const std::string& config, bool has_load) : path(scratch.path / "model") {
  const Host host({}, 0);
  Runtime runtime({.threads = 1});
  OnlineTrainer trainer(runtime, config_of(config), online_options(has_load));
  trainer.set_mesh(host.arrays());
  for (int64_t frame = 0; frame < host.wave.frames; ++frame) {
    trainer.set_field("velocity", host.velocity(frame).host);
    if (has_load) trainer.set_field("load", host.load().host);
    trainer.append();
  }
  trainer.train(2);
  trainer.save(path);
}

const std::string& flow_checkpoint() {
  static const SavedModel saved(kFlow);
  return saved.path;
}

const std::string& frames_checkpoint() {
  static const SavedModel saved(std::string(kFlow) + "data.history = 3\ndata.kinematic_types = [4]\n");
  return saved.path;
}

void Predictors::set_meshes(const meshgrad_mesh& mesh, int32_t count) {
  const std::vector<meshgrad_mesh> meshes(static_cast<size_t>(count), mesh);
  host.call(meshgrad_predictor_set_meshes, c, meshes.data(), count).ok();
  cpp.set_meshes(std::vector(meshes.size(), host.arrays()));
}

void Predictors::compare_values(int64_t columns, const std::string& what,
                                const std::function<Answer(const meshgrad_array*)>& get,
                                const std::function<void(WritableNumbers)>& expected) {
  std::vector<float> floats(static_cast<size_t>(host.nodes() * columns));
  std::vector<double> doubles(floats.size());
  const HostValues<float> narrow = host.values(floats, columns);
  const HostValues<double> wide = host.values(doubles, columns);
  get(&narrow.array).ok();
  get(&wide.array).ok();
  expected(floats);
  expected(doubles);
  expect(narrow.read() == floats && wide.read() == doubles, "the bits of C++ of " + what);
  const bool all = host.place.ranks == 1;  // a part may lack the nodes that have some
  expect(!all || std::ranges::count(floats, 0.0f) < std::ssize(floats), "values other than 0 of " + what);
}

}  // namespace meshgrad::test::c_interface
