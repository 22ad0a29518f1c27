// SPDX-License-Identifier: Apache-2.0
// The table of cases of meshgrad.h.
#include "train/embed/c_cases.h"

#include <cmath>
#include <cstddef>

namespace meshgrad::test::c_interface {
namespace {

void give_version(Host&) {
  same(std::string(meshgrad_version()),
       fmt::format("{}.{}.{}", MESHGRAD_VERSION_MAJOR, MESHGRAD_VERSION_MINOR, MESHGRAD_VERSION_PATCH));
}

void read_own_errors(Host& c) {
  const std::string device = fmt::format("device{}", c.number);
  meshgrad_runtime_options options;
  meshgrad_runtime_options_init(&options);
  options.device = device.c_str();
  for (int again = 0; again < 100; ++again) {
    meshgrad_runtime* runtime = c.runtime;
    c.call(meshgrad_runtime_create, &options, &runtime).refused(kInvalid, device);
    expect(runtime == nullptr, "no runtime");
  }
  options.device = "cpu";
  options.cuda_stream = &options;
  meshgrad_runtime* runtime = nullptr;
  c.call(meshgrad_runtime_create, &options, &runtime).refused(kInvalid, "stream");
  c.call(meshgrad_runtime_create, nullptr, &runtime).ok();
  meshgrad_runtime_destroy(runtime);
  std::string other = "untouched";
  std::thread([&] { other = meshgrad_last_error(); }).join();
  same(other, std::string());
}

void describe_model(Host& c) {
  const Handle<meshgrad_predictor> predictor = c.predictor(flow_checkpoint());
  int32_t dim = 0, components = 0, on_graph = 7;
  double dt = -1;
  const char* name = nullptr;
  const auto field = [&] { return fmt::format("{} [{}]", name, components); };
  c.call(meshgrad_predictor_dim, predictor, &dim).ok();
  c.call(meshgrad_predictor_dt, predictor, &dt).ok();
  same(dim, 2);
  same(dt, 0.5);
  c.call(meshgrad_predictor_input, predictor, 0, &name, &components, &on_graph).ok();
  same(field(), std::string("velocity [2]"));
  same(on_graph, 0);
  c.call(meshgrad_predictor_input, predictor, 1, &name, &components, nullptr).ok();
  same(field(), std::string("load [1]"));
  c.call(meshgrad_predictor_input, predictor, 2, &name, nullptr, nullptr).refused(kInvalid, "0..1");
  c.call(meshgrad_predictor_target, predictor, 0, &name, &components).ok();
  same(field(), std::string("velocity [2]"));
  c.call(meshgrad_predictor_target, predictor, -1, &name, &components).refused(kInvalid, "0..0");
}

/// Three steps on a mesh, and from fields, of these types.
template <class F, class I>
void predict_on(Predictors& both, int32_t first = 0, int64_t columns = 3) {
  const auto as_given = [&](const HostValues<float>& from, int64_t width) {
    return both.host.values(std::vector<F>(from.host.begin(), from.host.end()), width);
  };
  const HostMesh<F, I> mesh = both.host.mesh<F, I>(first, columns);
  const HostValues<F> velocity = as_given(both.host.velocity(0), 2), load = as_given(both.host.load(), 1);
  both.set_meshes(mesh.mesh);
  both.set_fields(velocity, load);
  both.predict(3);
  both.compare_field();
}

void predict_from_all_types(Host& c) {
  Predictors both(c, flow_checkpoint());
  predict_on<float, int32_t>(both);
  predict_on<double, int32_t>(both, 1);
  predict_on<float, int64_t>(both);
  predict_on<double, int64_t>(both, 1, 4);
  predict_on<float, int32_t>(both, 0, 2);
  predict_on<float, int64_t>(both, 1, 2);
}

void open_with_own_runtime(Host& c) {
  Host on_cpu({}, c.number);
  Predictors both(on_cpu, flow_checkpoint());
  meshgrad_predictor* made = nullptr;
  c.call(meshgrad_predictor_open, flow_checkpoint().c_str(), &made).ok();
  both.c.reset(made);
  predict_on<float, int32_t>(both);
}

/// Positions, the velocity and what is predicted in one array of structures, and components in arrays of
/// their own.
void predict_from_strided_arrays(Host& c) {
  struct Node {
    double x, y;
    float u, v, load;
  };
  Predictors both(c, flow_checkpoint());
  HostMesh mesh = c.mesh<double>();
  const HostValues<float> velocity = c.velocity(0), load = c.load();
  both.set_meshes(mesh.mesh);
  both.set_fields(velocity, load);
  std::vector<Node> nodes;
  std::vector<float> u, v;
  for (size_t i = 0; std::cmp_less(i, c.nodes()); ++i) {
    nodes.push_back({mesh.positions.host[2 * i], mesh.positions.host[2 * i + 1], velocity.host[2 * i],
                     velocity.host[2 * i + 1], load.host[i]});
    u.push_back(nodes[i].u);
    v.push_back(nodes[i].v);
  }
  mesh.mesh.positions = meshgrad_strided(meshgrad_f64(&nodes[0].x, c.nodes(), 2), sizeof(Node));
  const meshgrad_array rows = meshgrad_strided(meshgrad_f32(&nodes[0].u, c.nodes(), 2), sizeof(Node)),
                       apart = meshgrad_components(meshgrad_f32(u.data(), c.nodes(), 1), v.data(), nullptr),
                       loads = meshgrad_strided(meshgrad_f32(&nodes[0].load, c.nodes(), 1), sizeof(Node));
  for (const meshgrad_array& from : {rows, apart}) {
    c.call(meshgrad_predictor_set_mesh, both.c, &mesh.mesh).ok();
    c.call(meshgrad_predictor_set_field, both.c, 0, "velocity", &from).ok();
    c.call(meshgrad_predictor_set_field, both.c, 0, "load", &loads).ok();
    both.cpp.set_field("velocity", velocity.host);
    both.predict(2);
    both.compare_field();
  }
  const meshgrad_array gathered = meshgrad_components(
      meshgrad_strided(meshgrad_f32(&nodes[0].u, c.nodes(), 1), sizeof(Node)), &nodes[0].v, nullptr);
  std::vector<float> expected(velocity.host.size()), got;
  both.cpp.get_field("velocity", expected);
  c.call(meshgrad_predictor_get_field, both.c, 0, "velocity", &gathered).ok();
  for (const Node& node : nodes) got.insert(got.end(), {node.u, node.v});
  same(got, expected);
  const auto refused = [&](const meshgrad_array& array, const char* text) {
    c.call(meshgrad_predictor_set_field, both.c, 0, "velocity", &array).refused(kInvalid, text);
  };
  refused(loads, "in Fortran the components are the first extent");
  refused(meshgrad_strided(rows, sizeof(Node)), "needed an array of rank 1 to 3, without gaps");
  refused(meshgrad_strided(velocity.array, 0), "from each to the next row_bytes other than 0");
  refused(meshgrad_strided(velocity.array, int64_t{1} << 31), "one stride below 2 GiB");
  meshgrad_array there = rows;
  there.device = MESHGRAD_CUDA;
  refused(there, c.place.on_device ? "without gaps, in a device's memory" : "copy it to the host");
  mesh.mesh.node_type = meshgrad_strided(mesh.types.array, 8);
  c.call(meshgrad_predictor_set_mesh, both.c, &mesh.mesh).refused(kInvalid, "mesh: node_type] needed");
}

void differentiate_on_several_meshes(Host& c) {
  Predictors both(c, flow_checkpoint());
  const HostMesh mesh = c.mesh();
  HostValues<float> velocity = c.velocity(0), load = c.load(), boundary = c.velocity(3);
  both.set_meshes(mesh.mesh, 2);
  c.call(meshgrad_predictor_backward, both.c).refused(kInvalid, "");
  both.call(meshgrad_predictor_record_steps, &MeshPredictor::record_steps, 1);
  for (int32_t i = 0; i < 2; ++i) both.set_fields(velocity, load, i);
  both.predict(2);
  both.set(meshgrad_predictor_set_boundary, &MeshPredictor::set_boundary, "velocity", boundary, 1);
  both.predict(1);
  both.compare_field(1);
  both.set(meshgrad_predictor_set_gradient, &MeshPredictor::set_gradient, "velocity", velocity, 1);
  both.call(meshgrad_predictor_backward, &MeshPredictor::backward);
  both.compare(meshgrad_predictor_get_gradient, &MeshPredictor::get_gradient, "velocity", 1);
  both.compare(meshgrad_predictor_get_gradient, &MeshPredictor::get_gradient, "load", 1);
  both.compare(meshgrad_predictor_get_boundary_gradient, &MeshPredictor::get_boundary_gradient, "velocity", 1,
               int64_t{2});
  both.compare_values(
      2, "positions",
      [&](auto* to) { return c.call(meshgrad_predictor_get_position_gradient, both.c, 1, to); },
      [&](WritableNumbers to) { both.cpp.get_position_gradient(to, 1); });
  // The mesh without a part in J has no gradient.
  c.call(meshgrad_predictor_get_gradient, both.c, 0, "velocity", &velocity.array).ok();
  same(velocity.read(), std::vector<float>(velocity.host.size()));
  c.call(meshgrad_predictor_get_previous_gradient, both.c, 1, "velocity", &velocity.array)
      .refused(kInvalid, "");
  velocity.array.shape[0] -= 1;
  c.call(meshgrad_predictor_get_position_gradient, both.c, 1, &velocity.array)
      .refused(kInvalid, "[nodes, dim]");
}

void differentiate_other_frames(Host& c) {
  constexpr auto kSetPrevious = [](MeshPredictor& cpp, const auto&... values) {
    cpp.set_previous_field(values...);
  };
  constexpr auto kPrevious = [](MeshPredictor& cpp, const auto&... to) { cpp.get_previous_gradient(to...); };
  Predictors both(c, frames_checkpoint());
  const HostMesh mesh = c.mesh();
  const HostValues<float> load = c.load(), got = c.velocity(0);
  both.set_meshes(mesh.mesh);
  both.set(meshgrad_predictor_set_field, &MeshPredictor::set_field, "load", load);
  both.call(meshgrad_predictor_record_steps, &MeshPredictor::record_steps, 1);
  for (const int64_t now : {2, 4}) {
    const HostValues<float> values = c.velocity(now), before = c.velocity(now - 1),
                            first = c.velocity(now - 2), next = c.velocity(now + 1);
    both.set(meshgrad_predictor_set_field, &MeshPredictor::set_field, "velocity", values);
    if (now == 2) both.set(meshgrad_predictor_set_previous_field, kSetPrevious, "velocity", before);
    for (int64_t steps = now == 2 ? 2 : 1; steps <= 2; ++steps)
      both.set(meshgrad_predictor_set_earlier_field, &MeshPredictor::set_previous_field, "velocity",
               steps == 1 ? before : first, 0, steps);
    c.call(meshgrad_predictor_set_earlier_field, both.c, 0, "velocity", 3, &first.array)
        .refused(kInvalid, "1 to 2 steps before");
    c.call(meshgrad_predictor_predict, both.c, 1).refused(kInvalid, "set_next_field");
    both.set(meshgrad_predictor_set_next_field, &MeshPredictor::set_next_field, "velocity", next);
    both.predict(1);
    both.compare_field();
    c.call(meshgrad_predictor_get_field, both.c, 0, "velocity", &got.array).ok();
    const std::vector<float> predicted = got.read();
    for (size_t i = 0; std::cmp_less(i, c.part.owned); ++i)
      if (c.part.types[i] == 4) same(predicted[2 * i], next.host[2 * i]);
    both.set(meshgrad_predictor_set_gradient, &MeshPredictor::set_gradient, "velocity", values);
    both.call(meshgrad_predictor_backward, &MeshPredictor::backward);
    both.compare(meshgrad_predictor_get_gradient, &MeshPredictor::get_gradient, "velocity");
    both.compare(meshgrad_predictor_get_previous_gradient, kPrevious, "velocity");
    both.compare(meshgrad_predictor_get_earlier_gradient, kPrevious, "velocity", 0, int64_t{2});
    both.compare(meshgrad_predictor_get_next_gradient, &MeshPredictor::get_next_gradient, "velocity", 0,
                 int64_t{0});
  }
  const auto refused = [&](auto get, const char* name, const HostValues<float>& to, int64_t step,
                           const char* text) {
    c.call(get, both.c, 0, name, step, &to.array).refused(kInvalid, text);
  };
  refused(meshgrad_predictor_get_earlier_gradient, "velocity", got, 3, "1 to 2 steps before");
  refused(meshgrad_predictor_get_next_gradient, "velocity", got, 1, "a step from 0 to 0");
  refused(meshgrad_predictor_get_next_gradient, "load", load, 0, "data.world_position");
  refused(meshgrad_predictor_get_boundary_gradient, "velocity", got, 2, "a step from 0 to 1");
}

void read_borrowed_arrays(Host& c) {
  Predictors both(c, flow_checkpoint());
  HostMesh mesh = c.mesh<double>();
  HostValues<float> velocity = c.velocity(0), load = c.load();
  both.set_meshes(mesh.mesh);
  both.set_fields(velocity, load);
  both.predict(1);
  both.compare_field();
  double excess = -1;
  const char* farthest = nullptr;
  load.write(c.load(1000.0f).host);
  c.call(meshgrad_predictor_range_excess, both.c, 0, &excess, &farthest).ok();
  expect(excess > 1 && excess == both.cpp.range_excess().excess, "an excess, the same in C");
  expect(farthest != nullptr && std::string(farthest) == "load", "the farthest field");
  load.write(c.load(0.25f).host);
  both.predict(1);
  both.compare_field();
  for (float& value : c.part.positions) value *= 1.5f;
  mesh.positions.write({c.part.positions.begin(), c.part.positions.end()});
  both.call(meshgrad_predictor_positions_changed, &MeshPredictor::positions_changed);
  both.predict(1);
  both.compare_field();
}

/// A trainer through C beside one through C++, as Predictors.
struct Trainers {
  Host& host;
  Handle<meshgrad_trainer> c;
  OnlineTrainer cpp;

  void append(int64_t frame) {
    const std::vector<float> rows = host.velocity(frame).host;
    const HostValues<double> velocity = host.values(std::vector<double>(rows.begin(), rows.end()), 2);
    const HostValues<float> load = host.load(0.1f * static_cast<float>(frame));
    append_frame(host, c, velocity, load);
    cpp.set_field("velocity", velocity.host);
    cpp.set_field("load", load.host);
    cpp.append();
  }
  void train() {
    int64_t taken = -1;
    double loss = -1;
    host.call(meshgrad_trainer_train, c, 2, -1.0, &taken, &loss).ok();
    const OnlineTrainer::Trained expected = cpp.train(2);
    same(taken, expected.steps);
    same(loss, expected.loss);
  }
  void compare() {
    int64_t steps = -1, samples = -1, seen = -1;
    double loss = -1;
    host.call(meshgrad_trainer_counts, c, &steps, &samples, &seen).ok();
    same(std::array{steps, samples, seen}, std::array{cpp.steps(), cpp.samples(), cpp.seen()});
    host.call(meshgrad_trainer_held_out_loss, c, &loss).ok();
    same(loss, cpp.held_out_loss());
    expect(loss > 0, "held-out samples");
  }
};

void train_save_and_load(Host& c) {
  Trainers both{c, c.trainer(),
                OnlineTrainer(c.runtime->runtime, config_of(kFlow), online_options(), &c.runtime->ranks)};
  const HostMesh mesh = c.mesh<double, int64_t>(1, 4);
  const auto set_mesh = [&] {
    c.call(meshgrad_trainer_set_mesh, both.c, &mesh.mesh).ok();
    both.cpp.set_mesh(c.arrays());
  };
  set_mesh();
  for (int64_t frame = 0; frame < c.wave.frames; ++frame) {
    if (frame == 5) {
      c.call(meshgrad_trainer_restart_trajectory, both.c).ok();
      both.cpp.restart_trajectory();
    }
    both.append(frame);
    if (frame % 2 == 0) both.train();  // at first there is no sample
  }
  both.compare();
  c.call(meshgrad_trainer_save, both.c, c.file("c").c_str()).ok();
  both.cpp.save(c.file("cpp"));
  meshgrad_predictor* made = nullptr;
  c.call(meshgrad_predictor_create_from_trainer, nullptr, &made).refused(kInvalid, "[trainer] needed");
  c.call(meshgrad_predictor_create_from_trainer, both.c, &made).ok();
  Handle<meshgrad_predictor> of_trainer(made);
  meshgrad_trainer* loaded = nullptr;
  c.call(meshgrad_trainer_load, c.runtime, c.file("c").c_str(), &loaded).ok();
  both.c.reset(loaded);
  both.cpp = OnlineTrainer(c.runtime->runtime, c.file("cpp"), &c.runtime->ranks);
  set_mesh();
  both.append(0);
  both.append(1);
  both.train();
  both.compare();
  Predictors saved(c, c.file("c"));
  predict_on<float, int32_t>(saved);
  saved.c.swap(of_trainer);  // whose trainer has ended
  predict_on<float, int32_t>(saved);
}

void refuse_keys(Host& c) {
  meshgrad_trainer* trainer = nullptr;
  const auto refused = [&](const std::string& keys, const char* text) {
    c.create_trainer(kFlow + keys, &trainer).refused(MESHGRAD_CONFIG_ERROR, text);
    expect(trainer == nullptr, "no trainer");
  };
  refused("optimizer.momentum = 0.5\n", "optimizer.momentum");
  refused("schedule.final_lr = 1.0\n", "schedule.final_lr");
  refused("data.value_targets = ['v']\n", "data.value_targets");
  refused("train.epochs = 2\n", "[train.epochs] needed 0 with OnlineTrainer, got 2");
  refused("optimizer.weight_decay = 'fast'\n", "optimizer.weight_decay");
  const Answer answer = c.create_trainer(kFlow, &trainer, !c.spoils());
  if (c.spoils())
    answer.refused(kInvalid, "fields] needed a pointer");
  else
    answer.refused(MESHGRAD_DATA_ERROR, "got an error on rank ");
  c.trainer();  // the ranks are where they were
}

/// Gives each refused mesh to refused(status, text, mesh).
template <class Refused>
void spoil_meshes(const Host& c, const Refused& refused) {
  using Mesh = meshgrad_mesh&;
  using Wide = HostMesh<float, int64_t>;
  const HostMesh right = c.mesh();
  const auto spoilt = [&](int status, const std::string& text, auto&& spoil) {
    meshgrad_mesh mesh = right.mesh;
    spoil(mesh);
    refused(status, text, mesh);
  };
  spoilt(kInvalid, "mesh: positions] needed data, got a null pointer",
         [](Mesh m) { m.positions.data = nullptr; });
  spoilt(kInvalid, "[mesh: positions] needed 2 columns",
         [](Mesh m) { std::swap(m.positions.shape[0], m.positions.shape[1]); });
  spoilt(kInvalid, "node_type: dtype] needed MESHGRAD_I32", [](Mesh m) { m.node_type.dtype = MESHGRAD_F32; });
  spoilt(kInvalid, "cells: dtype] needed MESHGRAD_I32", [](Mesh m) { m.cells.dtype = MESHGRAD_F32; });
  spoilt(kInvalid, "fit in memory", [](Mesh m) { m.cells.shape[0] = INT64_MAX; });
  spoilt(kInvalid, "cells [cells, nodes of a cell] or edges", [](Mesh m) { m.cells.rank = 3; });
  spoilt(kInvalid, "[mesh] needed cells or edges, not both", [](Mesh m) { m.edges = m.cells; });
  spoilt(kInvalid, "device 7 on a runtime of c", [](Mesh m) { m.node_type.device = 7; });
  if (!c.place.on_device)
    spoilt(kInvalid, "copy it to the host", [](Mesh m) { m.positions.device = MESHGRAD_CUDA; });
  if (c.place.ranks > 1)
    spoilt(kInvalid, "ghost_owner: dtype] needed MESHGRAD_I32",
           [](Mesh m) { m.ghost_owner.dtype = MESHGRAD_F64; });
  spoilt(MESHGRAD_DATA_ERROR, "] needed node numbers in 1..", [](Mesh m) { m.first_node = 1; });
  for (const double bad : {std::nan(""), HUGE_VAL, -1e300}) {
    HostMesh<double, int32_t> there = c.mesh<double>();
    std::vector<double> positions = there.positions.host;
    positions[2 * 5 + 1] = bad;
    there.positions.write(positions);
    refused(MESHGRAD_DATA_ERROR, fmt::format("positions, row 5] needed finite numbers, got {}", bad),
            there.mesh);
  }
  // Numbers of 32 bits are not wrapped by first_node.
  constexpr const char* kTooMany = "[mesh: {}] needed numbers of 32 bits: below 2147483648, got {}";
  spoilt(MESHGRAD_DATA_ERROR,
         fmt::format(fmt::runtime(kTooMany), "cells, row 0", (int64_t{1} << 31) + c.part.cells[0]),
         [](Mesh m) { m.first_node = INT32_MIN; });
  const auto number = [&](const char* place, int64_t columns, auto values, size_t i, int64_t value) {
    Wide wide = c.mesh<float, int64_t>(1, columns);
    std::vector<int64_t> changed = (wide.*values).host;
    changed[i] = value;
    (wide.*values).write(changed);
    refused(MESHGRAD_DATA_ERROR, fmt::format(fmt::runtime(kTooMany), place, value), wide.mesh);
  };
  const int64_t node = c.part.cells[3 * 3 + 2] + 1;  // the second of these is a node where it is wrapped
  for (const int64_t value : {int64_t{1} << 31, (int64_t{1} << 32) + node, -(int64_t{1} << 40)})
    number("cells, row 3", 3, &Wide::connections, 3 * 3 + 2, value);
  number("edges, row 5", 2, &Wide::connections, 2 * 5 + 1, int64_t{1} << 31);
  number("node_type, row 7", 3, &Wide::types, 7, int64_t{1} << 40);
}

void refuse_meshes_on_all_ranks(Host& c) {
  Predictors both(c, flow_checkpoint());
  const Handle<meshgrad_trainer> trainer = c.trainer();
  const HostMesh right = c.mesh();
  const HostValues<float> velocity = c.velocity(0), load = c.load();
  both.set_meshes(right.mesh);
  both.set_fields(velocity, load);
  spoil_meshes(c, [&](int status, const std::string& text, const meshgrad_mesh& spoilt) {
    const meshgrad_mesh& given = c.spoils() ? spoilt : right.mesh;
    for (const Answer& answer : {c.call(meshgrad_predictor_set_mesh, both.c, &given),
                                 c.call(meshgrad_trainer_set_mesh, trainer, &given)}) {
      if (c.spoils()) answer.refused(status, text);
      expect(answer.status != MESHGRAD_OK && !answer.text.empty(), "an error on every rank: " + text);
    }
    c.call(meshgrad_trainer_set_mesh, trainer, &right.mesh).ok();
  });
  both.predict(2);  // the mesh before stayed
  both.compare_field();
  predict_on<float, int32_t>(both);
  for (int frame = 0; frame < 3; ++frame) append_frame(c, trainer, velocity, load);
  int64_t taken = 0;
  c.call(meshgrad_trainer_train, trainer, 1, -1.0, &taken, nullptr).ok();
  same(taken, int64_t{1});
}

void take_earlier_structures(Host& c) {
  struct EarlierMesh {
    size_t size;
    meshgrad_array positions, cells, edges, node_type;
    int32_t first_node;
  };
  static_assert(sizeof(EarlierMesh) == offsetof(meshgrad_mesh, ghost_owner));
  struct {
    EarlierMesh meshes[2];
    std::array<uint8_t, sizeof(meshgrad_mesh)> other;  // the program's, after its structures
  } stack;
  stack.other.fill(0xAB);
  HostMesh mesh = c.mesh();
  for (EarlierMesh& earlier : stack.meshes) {
    meshgrad_mesh_init_sized(reinterpret_cast<meshgrad_mesh*>(&earlier), sizeof earlier);
    same(earlier.size, sizeof earlier);
    earlier.positions = mesh.mesh.positions;
    earlier.cells = mesh.mesh.cells;
    earlier.node_type = mesh.mesh.node_type;
  }
  Predictors both(c, flow_checkpoint());
  MeshArrays whole = c.arrays();
  whole.in_parts = false;
  const auto* meshes = reinterpret_cast<const meshgrad_mesh*>(stack.meshes);
  c.call(meshgrad_predictor_set_meshes, both.c, meshes, 2).ok();
  both.cpp.set_meshes(std::vector{whole, whole});
  expect(std::ranges::count(stack.other, 0xAB) == std::ssize(stack.other), "other memory as it was");
  const HostValues<float> velocity = c.velocity(0), load = c.load();
  for (int32_t i = 0; i < 2; ++i) both.set_fields(velocity, load, i);
  both.predict(2);
  both.compare_field(1);

  meshgrad_runtime* runtime = nullptr;
  meshgrad_runtime_options options;
  meshgrad_runtime_options_init(&options);
  options.size += 8;
  c.call(meshgrad_runtime_create, &options, &runtime).refused(kInvalid, "meshgrad_runtime_options_init");
  meshgrad_trainer* trainer = nullptr;
  meshgrad_trainer_options training;
  meshgrad_trainer_options_init(&training);
  training.size -= 8;
  c.call(meshgrad_trainer_create, c.runtime, &training, &trainer)
      .refused(kInvalid, "meshgrad_trainer_options_init");
  if (c.place.ranks > 1) return;  // ranks do not go on after what is no mesh
  for (const size_t size : {sizeof(meshgrad_mesh) + 8, sizeof(meshgrad_mesh) - 8, size_t{4}, size_t{0}}) {
    mesh.mesh.size = size;
    c.call(meshgrad_predictor_set_mesh, both.c, &mesh.mesh).refused(kInvalid, "meshgrad_mesh_init");
  }
}

}  // namespace

std::span<const Case> cases() {
  static constexpr Case kCases[] = {
      {"the version of the header is that of the library", give_version},
      {"each thread reads its own error", read_own_errors},
      {"a predictor says what its model needs", describe_model},
      {"predictions have the bits of C++, from all dtypes", predict_from_all_types},
      {"a predictor opens with a runtime of its own", open_with_own_runtime},
      {"arrays with gaps have the bits of those without", predict_from_strided_arrays},
      {"gradients have the bits of C++, on several meshes", differentiate_on_several_meshes},
      {"fields of other frames are taken, with gradients", differentiate_other_frames},
      {"borrowed arrays are read when they are used", read_borrowed_arrays},
      {"trainers take the steps of C++, also after a restart", train_save_and_load},
      {"keys that contradict each other are refused", refuse_keys},
      {"a mesh that one rank cannot read is refused on all", refuse_meshes_on_all_ranks},
      {"fields that cannot be read are refused", refuse_fields},
      {"calls without handles or out of order are refused", refuse_calls},
      {"options out of range are refused", refuse_options},
      {"earlier structures are taken, later ones refused", take_earlier_structures},
  };
  return kCases;
}

}  // namespace meshgrad::test::c_interface
