// SPDX-License-Identifier: Apache-2.0
// meshgrad.h as one table of cases, and the host applications that run them: on the CPU, on a device, each
// with a part of one mesh, or as several threads. A case fails by throwing, so that it can run on any thread.
#pragma once
#include <meshgrad/engine/runtime.h>
#include <meshgrad/engine/tensor.h>
#include <meshgrad/train/embed/c_border.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/meshgrad.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <source_location>
#include <stdexcept>
#include <thread>
#include <type_traits>

#include "simulated_ranks.h"
#include "train/given_parts_case.h"

namespace meshgrad::test::c_interface {

using At = std::source_location;

inline constexpr int kInvalid = MESHGRAD_INVALID_ARGUMENT;

[[noreturn]] inline void fail(const std::string& text, const At& at) {
  const std::string file = std::filesystem::path(at.file_name()).filename();
  throw std::runtime_error(fmt::format("{}:{}: {}", file, at.line(), text));
}

inline void expect(bool right, std::string_view what, At at = At::current()) {
  if (!right) fail(fmt::format("needed {}", what), at);
}

template <class T>
void same(const T& got, const T& expected, At at = At::current()) {
  if (got != expected) fail(fmt::format("needed {}, got {}", expected, got), at);
}

/// What a call returned, and then meshgrad_last_error() of its thread.
struct [[nodiscard]] Answer {
  int status = MESHGRAD_OK;
  std::string text{};
  void ok(At at = At::current()) const {
    if (status != MESHGRAD_OK) fail(fmt::format("needed success, got status {}: {}", status, text), at);
  }
  void refused(int needed, std::string_view part, At at = At::current()) const {
    if (status != needed || text.find(part) == std::string::npos)
      fail(fmt::format("needed status {} and \"{}\", got {}: {}", needed, part, status, text), at);
  }
};

/// Values of a host application in its own memory, or with `solver` in that of its device.
template <class T>
struct HostValues {
  std::vector<T> host;
  Runtime* solver;
  Tensor device{};
  meshgrad_array array;

  HostValues(std::vector<T> values, int64_t columns, Runtime* on) : host(std::move(values)), solver(on) {
    constexpr int32_t dtype = std::is_same_v<T, float>     ? MESHGRAD_F32
                              : std::is_same_v<T, double>  ? MESHGRAD_F64
                              : std::is_same_v<T, int32_t> ? MESHGRAD_I32
                                                           : MESHGRAD_I64;
    array = meshgrad_host_array(host.data(), dtype, std::ssize(host) / columns, columns);
    if (solver == nullptr || host.empty()) return;
    device = Tensor::from<T>(*solver, host, Shape{std::ssize(host)}, Tag::host);
    write(host);
    array.data = device.raw();
    array.device = MESHGRAD_CUDA;
  }
  void write(const std::vector<T>& values) {
    std::ranges::copy(values, host.begin());
    if (solver == nullptr) return;
    copy(Tensor::borrow(host.data(), device.shape(), device.dtype()), device, solver->stream());
    solver->stream().synchronize();
  }
  std::vector<T> read() const {
    if (solver == nullptr) return host;
    const Tensor back = meshgrad::to_host(device, solver->stream());
    return {back.values<T>().begin(), back.values<T>().end()};
  }
};

/// A mesh as a host application gives it, with positions of type F and numbers of type I.
template <class F, class I>
struct HostMesh {
  HostValues<F> positions;
  HostValues<I> connections, types, ghost_owner, ghost_number;  // connections: cells or edges
  meshgrad_mesh mesh;
};

/// Where cases run.
struct Place {
  bool on_device = false;  ///< the runtime
  bool device_arrays = false;
  int ranks = 1;           ///< threads of the test, each with a part of the mesh
  int threads = 1;         ///< each with handles of its own, at the same time
  bool handed_on = false;  ///< every call is made by a new thread
};

struct Destroy {
  void operator()(meshgrad_predictor* predictor) const { meshgrad_predictor_destroy(predictor); }
  void operator()(meshgrad_trainer* trainer) const { meshgrad_trainer_destroy(trainer); }
};
template <class T>
struct Handle : std::unique_ptr<T, Destroy> {
  using std::unique_ptr<T, Destroy>::unique_ptr;
  operator T*() const { return this->get(); }
};

/// One thread or process of a host application: a solver on a square of triangles, with a wave's velocity
/// [nodes, 2] in some frames and a load [nodes].
class Host {
 public:
  /// On a runtime of `ranks`, or of `options`, or of its own; `side` of its square, 0: a small one.
  Host(const Place& where, int own_number, Ranks* ranks = nullptr, int side = 0,
       const meshgrad_runtime_options* options = nullptr);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  template <class... Parameters, class... Arguments>
  Answer call(int (*function)(Parameters...), const Arguments&... arguments) const {
    Answer answer;
    const auto run = [&] { answer = {function(arguments...), meshgrad_last_error()}; };
    if (place.handed_on) {
      std::thread(run).join();
    } else {
      run();
    }
    return answer;
  }
  Handle<meshgrad_predictor> predictor(const std::string& checkpoint) const;
  /// On velocity and load; `config` follows what all trainers here have.
  Answer create_trainer(const std::string& config, meshgrad_trainer** made, bool has_fields = true) const;
  Handle<meshgrad_trainer> trainer() const;  ///< of kFlow
  template <class T>
  HostValues<T> values(std::vector<T> host, int64_t columns = 1) const {
    return {std::move(host), columns, solver_.get()};
  }
  HostValues<float> velocity(int64_t frame) const { return values(part.rows(wave.velocity(frame)), 2); }
  HostValues<float> load(float change = 0) const;
  /// Its mesh, whose nodes are numbered from `first`, by so many `columns`: edges, triangles, or quads that
  /// repeat the last node of a triangle.
  template <class F = float, class I = int32_t>
  HostMesh<F, I> mesh(int32_t first = 0, int64_t columns = 3) const;
  /// The same for C++, always in the host's memory.
  MeshArrays arrays() const;
  int64_t nodes() const { return std::ssize(part.types); }
  /// Whether it gives what is to be refused on all ranks.
  bool spoils() const { return place.ranks == 1 || number == 1; }
  std::string file(const std::string& name) const { return scratch_.path / name; }

  const Place place;
  const int number;  ///< of the thread or rank
  given_parts::Wave wave;
  given_parts::Part part;
  meshgrad_runtime* runtime = nullptr;

 private:
  std::vector<int32_t> connections(int64_t columns) const;
  std::unique_ptr<Runtime> solver_;  // of its arrays on a device
  ScratchDirectory scratch_;
  std::atomic<int> lines_ = 0;
};

template <class F, class I>
HostMesh<F, I> Host::mesh(int32_t first, int64_t columns) const {
  const auto numbers = [&](const std::vector<int32_t>& from, int32_t added, int64_t of_row = 1) {
    std::vector<I> shifted(from.begin(), from.end());
    for (I& value : shifted) value += added;
    return values(std::move(shifted), of_row);
  };
  HostMesh<F, I> result{.positions = values(std::vector<F>(part.positions.begin(), part.positions.end()), 2),
                        .connections = numbers(connections(columns), first, columns),
                        .types = numbers(part.types, 0),
                        .ghost_owner = numbers(part.ghost_owner, 0),
                        .ghost_number = numbers(part.ghost_number, first),
                        .mesh = {}};
  meshgrad_mesh_init(&result.mesh);
  result.mesh.positions = result.positions.array;
  (columns == 2 ? result.mesh.edges : result.mesh.cells) = result.connections.array;
  result.mesh.node_type = result.types.array;
  result.mesh.first_node = first;
  if (place.ranks == 1) return result;
  result.mesh.ghost_owner = result.ghost_owner.array;
  result.mesh.ghost_number = result.ghost_number.array;
  return result;
}

/// What trainers here are made with: the model of kFlow, and fields and options for C++.
inline constexpr const char* kFlow =
    "data.inputs = ['velocity', 'load']\nmodel.width = 16\nmodel.blocks = 2\n";
Config config_of(const std::string& config);
OnlineOptions online_options(bool has_load = true);

/// A frame of a trainer.
template <class T>
void append_frame(const Host& c, meshgrad_trainer* trainer, const HostValues<T>& velocity,
                  const HostValues<float>& load) {
  c.call(meshgrad_trainer_set_field, trainer, "velocity", &velocity.array).ok();
  c.call(meshgrad_trainer_set_field, trainer, "load", &load.array).ok();
  c.call(meshgrad_trainer_append, trainer).ok();
}

/// Runs `body` for every host of a place at once: how each ended.
Endings run_hosts(const Place& place, const std::function<void(Host&)>& body);

/// The file of a trainer that has taken two steps on the CPU; `config` as for Host::create_trainer.
struct SavedModel {
  explicit SavedModel(const std::string& config, bool has_load = true);
  ScratchDirectory scratch{};
  std::string path;
};
/// Of velocity and load; and one that also reads three frames, and moves nodes of type 4.
const std::string& flow_checkpoint();
const std::string& frames_checkpoint();

/// A predictor through C beside one through C++ on the same runtime, whose arrays are the host's own: they
/// get the same calls, and have to give the same bits.
struct Predictors {
  Host& host;
  Handle<meshgrad_predictor> c;
  MeshPredictor cpp;

  Predictors(Host& on, const std::string& checkpoint)
      : host(on), c(on.predictor(checkpoint)), cpp(on.runtime->runtime, checkpoint, &on.runtime->ranks) {}
  /// A function of C, and a member of MeshPredictor with the same arguments.
  template <class Function, class Member, class... Arguments>
  void call(Function function, Member member, Arguments... arguments) {
    host.call(function, c, arguments...).ok();
    std::invoke(member, cpp, arguments...);
  }
  void predict(int64_t steps) { call(meshgrad_predictor_predict, &MeshPredictor::predict, steps); }
  /// The host's `mesh`, so many times.
  void set_meshes(const meshgrad_mesh& mesh, int32_t count = 1);
  /// The same for those that take values; `step` where both take one.
  template <class Set, class Member, class T, class... Step>
  void set(Set function, Member member, const char* name, const HostValues<T>& values, int32_t mesh = 0,
           Step... step) {
    host.call(function, c, mesh, name, step..., &values.array).ok();
    std::invoke(member, cpp, name, values.host, mesh, step...);
  }
  template <class T>
  void set_fields(const HostValues<T>& velocity, const HostValues<T>& load, int32_t mesh = 0) {
    set(meshgrad_predictor_set_field, &MeshPredictor::set_field, "velocity", velocity, mesh);
    set(meshgrad_predictor_set_field, &MeshPredictor::set_field, "load", load, mesh);
  }
  /// What both get, as f32 and as f64; of a whole mesh not all 0.
  template <class Get, class Member, class... Step>
  void compare(Get function, Member member, const char* name, int32_t mesh = 0, Step... step) {
    compare_values(
        name == std::string_view("load") ? 1 : 2, fmt::format("{}, mesh {}", name, mesh),
        [&](const meshgrad_array* to) { return host.call(function, c, mesh, name, step..., to); },
        [&](WritableNumbers to) { std::invoke(member, cpp, name, to, mesh, step...); });
  }
  void compare_field(int32_t mesh = 0) {
    compare(meshgrad_predictor_get_field, &MeshPredictor::get_field, "velocity", mesh);
  }
  void compare_values(int64_t columns, const std::string& what,
                      const std::function<Answer(const meshgrad_array*)>& get,
                      const std::function<void(WritableNumbers)>& expected);
};

struct Case {
  const char* name;
  void (*run)(Host&);
};
std::span<const Case> cases();
/// Of these, in a file of their own:
void refuse_fields(Host& c);
void refuse_calls(Host& c);
void refuse_options(Host& c);

}  // namespace meshgrad::test::c_interface
