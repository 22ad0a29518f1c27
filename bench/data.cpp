// SPDX-License-Identifier: Apache-2.0
// A data set of very many small graphs: how soon the first batch is there, how fast all are read, and what
// that takes of the memory, beside reading the whole file.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/data/packed_file_writer.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/train.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "benchmark.h"
#include "timing.h"

namespace meshgrad::bench {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kDataSeed = 5;
constexpr int64_t kFrames = 4;
constexpr int64_t kLongFrames = 600;
constexpr int64_t kBatch = 32;

struct ScratchFolder {
  fs::path path = fs::temp_directory_path() / fmt::format("meshgrad-bench-{}", getpid());
  ScratchFolder() { fs::create_directories(path); }
  ~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
};

/// Strips of triangles of 20 to 60 nodes, each another mesh, with a velocity over 4 frames.
void write_graphs(const fs::path& path, int64_t graphs) {
  PackedFileWriter writer(path, 2, {FieldInfo{"velocity", 2, true, ""}});
  DataStatistics statistics;
  statistics.fields.emplace_back(2);
  statistics.edges.resize(3);
  std::vector<float> positions, velocity;
  std::vector<int32_t> types, cells;
  for (int64_t g = 0; g < graphs; ++g) {
    const auto graph = static_cast<uint64_t>(g);
    const auto nodes = 20 + static_cast<int64_t>(41.0 * uniform(kDataSeed, 0, graph));
    positions.clear();
    velocity.clear();
    types.assign(static_cast<size_t>(nodes), 0);
    cells.clear();
    for (int64_t n = 0; n < nodes; ++n) {
      positions.push_back(static_cast<float>(n / 2) +
                          0.3f * static_cast<float>(uniform(kDataSeed, 1, graph)));
      positions.push_back(static_cast<float>(n % 2));
      if (n < 2) types[static_cast<size_t>(n)] = 4;
      if (n + 2 >= nodes) continue;
      for (int64_t i = 0; i < 3; ++i) cells.push_back(static_cast<int32_t>(n + i));
    }
    for (int64_t i = 0; i < kFrames * nodes * 2; ++i) {
      velocity.push_back(static_cast<float>((i * 37 + g) % 1000) * 1e-3f);
    }
    const PackedMesh mesh{.dim = 2,
                          .cell_kind = CellKind::triangle,
                          .positions = positions,
                          .node_type = types,
                          .cells = cells};
    const auto key = PackedFileWriter::mesh_key(mesh, {});
    int64_t number = writer.find_mesh(key);
    if (number < 0) {
      number = writer.add_mesh(key, mesh, edges_from_cells(cells, CellKind::triangle, nodes, "strip"));
    }
    writer.add_trajectory({.name = fmt::format("strip {}", g),
                           .split = "train",
                           .mesh = number,
                           .frames = kFrames,
                           .first_frame = 0,
                           .dt = 0.01,
                           .fields = {velocity}});
    statistics.fields[0].add(velocity, types, kFrames);
    statistics.count_nodes(types, kFrames);
    for (Moments& edge : statistics.edges) edge.add(static_cast<double>(g % 3));
  }
  writer.finish({"train"}, statistics, "train", "strips of triangles");
}

/// Trajectories of 600 frames on a triangulated square of `side` x `side` nodes.
void write_trajectories(const fs::path& path, int64_t trajectories, int side) {
  PackedFileWriter writer(path, 2, {FieldInfo{"velocity", 2, true, ""}});
  DataStatistics statistics;
  statistics.fields.emplace_back(2);
  statistics.edges.resize(3);
  std::vector<float> positions;
  std::vector<int32_t> types, cells;
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x) {
      positions.push_back(static_cast<float>(x));
      positions.push_back(static_cast<float>(y));
      types.push_back(x == 0 ? 4 : 0);
      if (x + 1 == side || y + 1 == side) continue;
      const int32_t at = y * side + x;
      for (const int32_t node : {at, at + 1, at + side, at + 1, at + side + 1, at + side})
        cells.push_back(node);
    }
  }
  const auto nodes = static_cast<int64_t>(types.size());
  const PackedMesh mesh{
      .dim = 2, .cell_kind = CellKind::triangle, .positions = positions, .node_type = types, .cells = cells};
  const auto key = PackedFileWriter::mesh_key(mesh, {});
  writer.add_mesh(key, mesh, edges_from_cells(cells, CellKind::triangle, nodes, "square"));
  std::vector<float> velocity(static_cast<size_t>(kLongFrames * nodes * 2));
  for (size_t i = 0; i < velocity.size(); ++i) velocity[i] = static_cast<float>(i * 37 % 1000) * 1e-3f;
  statistics.fields[0].add(velocity, types, kLongFrames);
  statistics.count_nodes(types, kLongFrames);
  for (Moments& edge : statistics.edges) {
    for (int i = 0; i < 3; ++i) edge.add(static_cast<double>(i));
  }
  for (int64_t i = 0; i < trajectories; ++i) {
    velocity[0] = static_cast<float>(i);
    writer.add_trajectory({.name = fmt::format("square {}", i),
                           .split = "train",
                           .mesh = 0,
                           .frames = kLongFrames,
                           .first_frame = 0,
                           .dt = 0.01,
                           .fields = {velocity}});
  }
  writer.finish({"train"}, statistics, "train", "squares");
}

/// Takes the file out of the system's cache; only pages that are written back and not mapped are dropped.
void make_cold(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) throw data_error(path.string(), "a file", "none", "see that the temporary folder has room");
  ::fdatasync(file);
  ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(file);
}

/// MiB of a line of /proc/self/status.
double status_mib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(key + ":")) return std::strtod(line.c_str() + key.size() + 1, nullptr) / 1024.0;
  }
  return 0.0;
}

/// The open data set with what makes batches of it.
struct Reader {
  Runtime& runtime;
  DataConfig config;
  Dataset dataset;
  Task task;
  Sampler sampler;
  Normalizers normalizers;
  Reader(Runtime& own, const fs::path& path)
      : runtime(own),
        dataset(Dataset::open(path)),
        task(MeshDynamics(dataset, config)),
        sampler(task, config.train_split, kDataSeed),
        normalizers(task.dataset_normalizers({})) {}
  void batch(int64_t first, int64_t end) {
    std::vector<Sample> samples;
    for (int64_t i = first; i < end; ++i) samples.push_back(sampler.at(i));
    training_batch(task, runtime, DType::f32, config.train_split, samples, {}, normalizers);
  }
  /// As many samples as there are graphs, shuffled over them; graphs a second.
  double pass(int64_t begin, int64_t graphs) {
    const auto start = std::chrono::steady_clock::now();
    for (int64_t i = begin; i < begin + graphs; i += kBatch) batch(i, std::min(i + kBatch, begin + graphs));
    return static_cast<double>(graphs) / seconds_since(start);
  }
};

Figures small_graphs(int64_t graphs) {
  const ScratchFolder folder;
  const fs::path path = folder.path / "graphs.mgd";
  write_graphs(path, graphs);
  Figures figures{fmt::format("{} graphs of 20 to 60 nodes, batches of {}", graphs, kBatch), {}};
  const auto add = [&](const char* name, double value) { figures.values.emplace_back(name, value); };
  add("file_mib", static_cast<double>(fs::file_size(path)) / (1 << 20));
  Runtime runtime({.threads = 1});
  const auto first_batch = [&](const char* name) {
    const auto start = std::chrono::steady_clock::now();
    Reader reader(runtime, path);
    reader.batch(0, kBatch);
    add(name, 1e3 * seconds_since(start));
  };
  make_cold(path);
  const double before = status_mib("VmRSS");
  const double private_before = status_mib("RssAnon");
  {
    make_cold(path);
    const auto start = std::chrono::steady_clock::now();
    Reader reader(runtime, path);
    add("open_cold_ms", 1e3 * seconds_since(start));
    reader.batch(0, kBatch);
    add("first_batch_cold_ms", 1e3 * seconds_since(start));
    add("resident_after_first_batch_mib", status_mib("VmRSS") - before);
    add("graphs_per_s_cold", reader.pass(kBatch, graphs));
    add("graphs_per_s_warm", reader.pass(kBatch + graphs, graphs));
    add("resident_after_two_passes_mib", status_mib("VmRSS") - before);
    add("of_these_private_mib", status_mib("RssAnon") - private_before);
  }
  first_batch("first_batch_warm_ms");
  make_cold(path);
  const auto start = std::chrono::steady_clock::now();
  const double before_reading = status_mib("VmRSS");
  std::vector<char> all(fs::file_size(path));
  std::ifstream(path, std::ios::binary).read(all.data(), static_cast<std::streamsize>(all.size()));
  add("read_everything_cold_ms", 1e3 * seconds_since(start));
  add("read_everything_private_mib", status_mib("VmRSS") - before_reading);
  return figures;
}

/// A run of one step of the standard model.
Config one_step(const fs::path& data, const fs::path& run) {
  Config config;
  config.run.dir = run.string();
  config.run.device = "cpu";
  config.data.path = data.string();
  config.train.steps = 1;
  config.train.batch = 1;
  config.train.validate_every = 0;
  return config;
}

/// Seconds from the start of the process `meshgrad train` until its first step begins, as it tells; none
/// where the program is not beside this one.
std::optional<double> start_of_program(const Config& config, const fs::path& folder) {
  std::error_code ignored;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored).parent_path() / "meshgrad";
  if (!fs::exists(program, ignored)) return std::nullopt;
  const fs::path file = folder / "config.toml";
  std::ofstream(file) << to_toml(config);
  const std::string command = fmt::format("'{}' train '{}' --quiet --json", program.string(), file.string());
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "re"), pclose);
  std::string text;
  for (int c = 0; pipe != nullptr && (c = std::fgetc(pipe.get())) != EOF;) text += static_cast<char>(c);
  const auto result = nlohmann::json::parse(text, nullptr, false);
  if (!result.is_object() || !result.contains("start_seconds")) {
    throw data_error(program.string(), "the summary of a run", "none", "run it to see why: " + command);
  }
  return result["start_seconds"].get<double>();
}

/// From the call of train() to the first step, and from the start of the program.
Figures first_step(int64_t trajectories, int side) {
  const ScratchFolder folder;
  const fs::path path = folder.path / "squares.mgd";
  write_trajectories(path, trajectories, side);
  Figures figures{fmt::format("the standard model, {} trajectories of {} nodes, {} frames", trajectories,
                              side * side, kLongFrames),
                  {}};
  const auto add = [&](const std::string& name, double value) { figures.values.emplace_back(name, value); };
  add("file_mib", static_cast<double>(fs::file_size(path)) / (1 << 20));
  for (const std::string state : {"cold", "warm"}) {
    const bool cold = state == "cold";
    const Config config = one_step(path, folder.path / state);
    if (cold) make_cold(path);
    double seconds = 0.0;
    const auto start = std::chrono::steady_clock::now();
    {
      Runtime runtime;
      TrainOptions options;
      options.observer.progress = [&](const TrainObserver::Progress&) { seconds = seconds_since(start); };
      const TrainResult result = train(runtime, config, options);
      add("until_first_step_" + state + "_ms", 1e3 * (seconds - result.first_step_seconds));
      add("first_step_" + state + "_ms", 1e3 * result.first_step_seconds);
    }
    if (cold) make_cold(path);
    const auto program = start_of_program(one_step(path, folder.path / ("program_" + state)), folder.path);
    if (program) add("program_until_first_step_" + state + "_ms", 1e3 * *program);
    if (!program && cold) figures.description += "; no program meshgrad beside this one";
  }
  return figures;
}

}  // namespace

std::vector<Benchmark> data_benchmarks(const Selection& selection) {
  if (selection.device != DeviceKind::cpu) return {};
  const int64_t graphs = selection.quick ? 300 : 100'000;
  const int64_t trajectories = selection.quick ? 2 : 122;  // 1 GiB
  const int side = selection.quick ? 5 : 43;
  const auto row = [](const char* name, std::function<Figures(const Runtime&)> figures) {
    return Benchmark{.name = name, .prepare = {}, .on_host = true, .figures = std::move(figures)};
  };
  return {row("data/small_graphs", [=](const Runtime&) { return small_graphs(graphs); }),
          row("data/first_step", [=](const Runtime&) { return first_step(trajectories, side); })};
}

}  // namespace meshgrad::bench
