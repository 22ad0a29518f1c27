// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/train/data/json_fault.h>
#include <meshgrad/train/embed/replay_buffer.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace meshgrad {
namespace {

using Json = nlohmann::json;
constexpr const char* kKey = "replay";

SafetensorsTensor tensor_of(std::string name, const std::vector<float>& values) {
  return {std::move(name), SafetensorsDtype::f32, {std::ssize(values)}, std::as_bytes(std::span(values))};
}

SafetensorsTensor tensor_of(std::string name, std::span<const int32_t> values) {
  return {std::move(name), SafetensorsDtype::i32, {std::ssize(values)}, std::as_bytes(values)};
}

template <class T>
std::vector<T> values_of(const SafetensorsView& view, const std::string& name) {
  const std::vector<double> wide = to_f64(view.at(name));
  return std::vector<T>(wide.begin(), wide.end());
}

/// Reports a faulty description as DataError.
template <class Read>
auto described(const SafetensorsView& view, Read&& read) {
  const std::string text = view.metadata_at(kKey);
  try {
    return read(Json::parse(text));
  } catch (const Json::exception& error) {
    throw data_error(view.file + ": " + kKey, "a description of a replay buffer", json_fault(text, error),
                     "use another file that OnlineTrainer saved");
  }
}

}  // namespace

ReplayBuffer::ReplayBuffer(const OnlineOptions& options, int64_t frames, int64_t node_types, uint64_t seed,
                           std::string train_split, std::string valid_split)
    : options_(options),
      frames_(frames),
      seed_(seed),
      data_(std::make_shared<MemoryData>()),
      current_(options.fields.size()) {
  if (options.capacity < 1 || options.held_out < 1 || options.held_out_every < 0) {
    throw invalid_argument(
        "OnlineOptions", "capacity and held_out of 1 or more, held_out_every of 0 or more",
        fmt::format("{}, {} and {}", options.capacity, options.held_out, options.held_out_every));
  }
  if (options.dim != 2 && options.dim != 3)
    throw invalid_argument("OnlineOptions::dim", "2 or 3", fmt::format("{}", options.dim));
  data_->dim = options.dim;
  data_->dt = options.dt;
  data_->node_types = node_types;
  data_->fields = options.fields;
  data_->splits = {{.name = std::move(train_split)}, {.name = std::move(valid_split)}};
}

std::vector<GivenPart> ReplayBuffer::parts() const {
  std::vector<GivenPart> parts;
  for (const Mesh& mesh : meshes_)
    if (mesh.part) parts.push_back(*mesh.part);
  return parts;
}

size_t ReplayBuffer::size_of_field(size_t field, int64_t mesh) const {
  const FieldInfo& info = options_.fields[field];
  const int64_t nodes = data_->meshes[static_cast<size_t>(mesh)].view.nodes;
  return static_cast<size_t>((info.on == FieldOn::node ? nodes : 1) * info.components);
}

std::span<float> ReplayBuffer::current(std::string_view field) {
  const auto found = std::ranges::find(options_.fields, field, &FieldInfo::name);
  return current_[static_cast<size_t>(found - options_.fields.begin())];
}

const GivenPart* ReplayBuffer::part() const {
  if (mesh_ < 0) return nullptr;
  const std::optional<GivenPart>& part = meshes_[static_cast<size_t>(mesh_)].part;
  return part ? &*part : nullptr;
}

void ReplayBuffer::set_mesh(const MeshArrays& mesh, std::vector<int32_t> numbers) {
  const auto dim = static_cast<size_t>(options_.dim);
  check_finite("OnlineTrainer: mesh: positions", mesh.positions, options_.dim, "give each node its place");
  Mesh own;
  own.positions.resize(mesh.positions.size());
  const std::vector<double> origin = far_origin(mesh.positions, options_.dim);
  round_to(own.positions, mesh.positions, origin);
  own.node_type.assign(mesh.node_type.values().begin(), mesh.node_type.values().end());
  if (own.node_type.empty()) own.node_type.resize(own.positions.size() / dim);
  if (own.node_type.size() * dim != own.positions.size()) {
    throw invalid_argument("OnlineTrainer: node_type",
                           fmt::format("one number a node, {}", own.positions.size() / dim),
                           fmt::format("{}", own.node_type.size()), "or leave it out: then all are 0");
  }
  if (mesh.in_parts) own.part = given_part(mesh, options_.dim);
  own.numbers = std::move(numbers);
  if (!meshes_.empty() && meshes_.front().part.has_value() != mesh.in_parts) {
    throw invalid_argument(
        "OnlineTrainer: mesh", "meshes that are all in parts, or all whole",
        mesh.in_parts ? "a mesh in parts after whole ones" : "a whole mesh after meshes in parts",
        "give ghost nodes with each mesh, or with none");
  }
  const int64_t added = add_mesh(std::move(own), mesh);
  for (size_t i = 0; mesh_ >= 0 && i < current_.size(); ++i)
    if (size_of_field(i, mesh_) != size_of_field(i, added)) current_[i].clear();
  mesh_ = added;
  window_.clear();
  drop_unused_meshes();
}

void ReplayBuffer::forget_mesh() {
  mesh_ = -1;
  window_.clear();
  for (Values& values : current_) values.clear();
  drop_unused_meshes();
}

int64_t ReplayBuffer::add_mesh(Mesh mesh, const MeshArrays& arrays) {
  constexpr const char* kName = "OnlineTrainer: mesh";
  Mesh& own = meshes_.emplace_back(std::move(mesh));
  data_->in_parts = own.part.has_value();
  try {
    if (arrays.nodes_per_cell == 0) {
      data_->add_mesh(kName, own.positions, own.node_type, arrays.first.values(), arrays.second.values());
    } else {
      const CellKind kind = cell_kind_of(arrays.nodes_per_cell, options_.dim, kName);
      data_->add_mesh(kName, own.positions, own.node_type, kind, arrays.cells.values());
    }
    MeshView& view = data_->meshes.back().view;
    view.points = own.numbers;
    return view.index;
  } catch (...) {
    meshes_.pop_back();
    throw;
  }
}

/// Meshes are numbered anew, without those that no sample needs.
void ReplayBuffer::drop_unused_meshes() {
  std::set<int64_t> used;
  if (mesh_ >= 0) used.insert(mesh_);
  for (const auto* samples : {&train_, &valid_})
    for (const Sample& sample : *samples) used.insert(sample.mesh);
  if (std::cmp_equal(used.size(), meshes_.size())) return;
  std::vector<int64_t> now(meshes_.size());
  std::deque<Mesh> kept;
  std::deque<MemoryMesh> views;
  for (size_t i = 0; i < meshes_.size(); ++i) {
    if (!used.contains(static_cast<int64_t>(i))) continue;
    now[i] = std::ssize(kept);
    kept.push_back(std::move(meshes_[i]));
    views.push_back(std::move(data_->meshes[i]));
    views.back().view.index = now[i];
  }
  meshes_ = std::move(kept);
  data_->meshes = std::move(views);
  if (mesh_ >= 0) mesh_ = now[static_cast<size_t>(mesh_)];
  for (auto* samples : {&train_, &valid_})
    for (Sample& sample : *samples) sample.mesh = now[static_cast<size_t>(sample.mesh)];
}

size_t ReplayBuffer::forget_field(std::string_view name) {
  if (mesh_ < 0) throw invalid_argument("OnlineTrainer: set_field", "a mesh", "none", "call set_mesh first");
  const auto field = std::ranges::find(options_.fields, name, &FieldInfo::name);
  if (field == options_.fields.end()) {
    std::string names;
    for (const FieldInfo& known : options_.fields) names += (names.empty() ? "" : ", ") + known.name;
    throw invalid_argument("OnlineTrainer: field", "one of " + names, fmt::format("\"{}\"", name),
                           "name one of them");
  }
  const auto index = static_cast<size_t>(field - options_.fields.begin());
  current_[index].clear();
  return index;
}

void ReplayBuffer::set_field(std::string_view name, Numbers values) {
  const size_t index = forget_field(name);  // refused values leave none: the frame before has others
  if (values.size() != size_of_field(index, mesh_)) {
    throw invalid_argument(fmt::format("OnlineTrainer: field {}", name),
                           fmt::format("{} numbers", size_of_field(index, mesh_)),
                           fmt::format("{}", values.size()), "give all components of all its rows");
  }
  check_finite(fmt::format("OnlineTrainer: field {}", name), values, options_.fields[index].components,
               "leave the frame out, and call restart_trajectory");
  std::vector<float> rounded(values.size());
  round_to(rounded, values, {});
  current_[index] = std::move(rounded);
}

void ReplayBuffer::check_frame() const {
  if (mesh_ < 0) throw invalid_argument("OnlineTrainer: append", "a mesh", "none", "call set_mesh first");
  for (size_t i = 0; i < current_.size(); ++i) {
    if (!current_[i].empty() || size_of_field(i, mesh_) == 0) continue;
    throw invalid_argument("OnlineTrainer: field " + options_.fields[i].name, "values", "none",
                           "call set_field before append");
  }
}

std::optional<StoredSample> ReplayBuffer::append() {
  check_frame();
  Values frame;
  for (const Values& values : current_) frame.insert(frame.end(), values.begin(), values.end());
  window_.push_back(std::move(frame));
  if (std::cmp_greater(window_.size(), frames_)) window_.pop_front();
  if (std::cmp_less(window_.size(), frames_)) return std::nullopt;
  const int64_t every = options_.held_out_every;
  const bool held_out = every > 0 && seen_ % every == every - 1;
  ++seen_;
  if (held_out)
    return StoredSample{data_->splits[1].name,
                        place(valid_, sample_of_window(), held_++, options_.held_out, false)};
  return StoredSample{data_->splits[0].name, place(train_, sample_of_window(), learned_++, options_.capacity,
                                                   options_.replay == Replay::reservoir)};
}

ReplayBuffer::Sample ReplayBuffer::sample_of_window() const {
  Sample sample{mesh_, {}};
  size_t begin = 0;
  for (size_t field = 0; field < options_.fields.size(); ++field) {
    const size_t size = size_of_field(field, mesh_);
    for (const Values& frame : window_) {
      const auto from = frame.begin() + static_cast<std::ptrdiff_t>(begin);
      sample.values.insert(sample.values.end(), from, from + static_cast<std::ptrdiff_t>(size));
    }
    begin += size;
  }
  return sample;
}

/// Keeps sample `number`, counted from 0, if it is chosen.
std::optional<int64_t> ReplayBuffer::place(std::deque<Sample>& in, Sample sample, int64_t number,
                                           int64_t capacity, bool reservoir) const {
  if (number < capacity) {
    in.push_back(std::move(sample));
    return number;
  }
  const auto all = static_cast<uint64_t>(number) + 1;
  const int64_t at = reservoir ? static_cast<int64_t>(uniform_below(seed_, hash_of("reservoir"),
                                                                    static_cast<uint64_t>(number), all))
                               : number % capacity;
  if (at >= capacity) return std::nullopt;
  in[static_cast<size_t>(at)] = std::move(sample);
  return at;
}

std::shared_ptr<const MemoryData> ReplayBuffer::data() {
  data_->trajectories.clear();
  for (const auto* samples : {&train_, &valid_}) {
    for (const Sample& sample : *samples) {
      MemoryTrajectory& trajectory = data_->trajectories.emplace_back();
      trajectory.mesh = sample.mesh;
      trajectory.frames = frames_;
      std::span<const float> rest(sample.values);
      for (size_t field = 0; field < options_.fields.size(); ++field) {
        const size_t size = size_of_field(field, sample.mesh) * static_cast<size_t>(frames_);
        trajectory.fields.push_back(rest.first(size));
        rest = rest.subspan(size);
      }
    }
  }
  data_->splits[0].count = std::ssize(train_);
  data_->splits[1].first = std::ssize(train_);
  data_->splits[1].count = std::ssize(valid_);
  return data_;
}

CheckpointExtra ReplayBuffer::saved() const {
  CheckpointExtra extra;
  Json json{{"most_recent", options_.replay == Replay::most_recent},
            {"capacity", options_.capacity},
            {"held_out_every", options_.held_out_every},
            {"held_out", options_.held_out},
            {"seen", seen_},
            {"learned", learned_},
            {"held", held_},
            {"mesh", mesh_},
            {"meshes", meshes_.size()},
            {"window", window_.size()}};
  for (size_t i = 0; i < meshes_.size(); ++i) {
    const std::string prefix = fmt::format("replay.mesh.{}.", i);
    extra.tensors.push_back(tensor_of(prefix + "positions", meshes_[i].positions));
    extra.tensors.push_back(tensor_of(prefix + "node_type", std::span<const int32_t>(meshes_[i].node_type)));
    extra.tensors.push_back(tensor_of(prefix + "senders", data_->meshes[i].view.senders));
    extra.tensors.push_back(tensor_of(prefix + "receivers", data_->meshes[i].view.receivers));
    if (!meshes_[i].part) continue;
    const auto add_list = [&](const char* name, const std::vector<int32_t>& list) {
      extra.tensors.push_back(tensor_of(prefix + name, std::span<const int32_t>(list)));
    };
    add_list("ghost_owner", meshes_[i].part->ghost_owner);
    add_list("ghost_number", meshes_[i].part->ghost_number);
    if (!meshes_[i].numbers.empty()) add_list("numbers", meshes_[i].numbers);
  }
  const auto add = [&](const char* name, const std::deque<Sample>& samples) {
    json[name] = Json::array();
    for (const Sample& sample : samples) {
      extra.tensors.push_back(tensor_of(fmt::format("replay.{}.{}", name, json[name].size()), sample.values));
      json[name].push_back(sample.mesh);
    }
  };
  add("train", train_);
  add("valid", valid_);
  for (size_t i = 0; i < window_.size(); ++i)
    extra.tensors.push_back(tensor_of(fmt::format("replay.window.{}", i), window_[i]));
  for (size_t i = 0; i < current_.size(); ++i)
    extra.tensors.push_back(tensor_of(fmt::format("replay.current.{}", i), current_[i]));
  extra.metadata[kKey] = json.dump();
  return extra;
}

OnlineOptions ReplayBuffer::saved_options(const SafetensorsView& view) {
  if (!view.metadata.contains(kKey)) {
    throw data_error(view.file, "a file that OnlineTrainer saved", "a checkpoint without its samples",
                     "open it with MeshPredictor, or start a new OnlineTrainer");
  }
  return described(view, [](const Json& json) {
    OnlineOptions options;
    options.replay = json.at("most_recent").get<bool>() ? Replay::most_recent : Replay::reservoir;
    options.capacity = json.at("capacity").get<int64_t>();
    options.held_out_every = json.at("held_out_every").get<int64_t>();
    options.held_out = json.at("held_out").get<int64_t>();
    return options;
  });
}

void ReplayBuffer::load(const SafetensorsView& view) {
  const auto check = [&](bool fits, const std::string& what, const auto& got) {
    if (!fits)
      throw data_error(view.file + ": " + what, "sizes that fit", fmt::format("{}", got), "use another file");
  };
  described(view, [&](const Json& json) {
    const auto meshes = json.at("meshes").get<int64_t>();
    for (int64_t i = 0; i < meshes; ++i) {
      const std::string prefix = fmt::format("replay.mesh.{}.", i);
      const auto senders = values_of<int32_t>(view, prefix + "senders");
      const auto receivers = values_of<int32_t>(view, prefix + "receivers");
      std::optional<GivenPart> part;
      std::vector<int32_t> numbers;
      if (view.contains(prefix + "ghost_owner")) {
        part = GivenPart{values_of<int32_t>(view, prefix + "ghost_owner"),
                         values_of<int32_t>(view, prefix + "ghost_number")};
        check(part->ghost_owner.size() == part->ghost_number.size() &&
                  part->ghost_owner.size() <= view.at(prefix + "node_type").elements(),
              prefix + "ghost_number", part->ghost_number.size());
        // Files of earlier versions have none: each rank then counts only its nodes.
        if (view.contains(prefix + "numbers")) numbers = values_of<int32_t>(view, prefix + "numbers");
        check(numbers.empty() || numbers.size() == view.at(prefix + "node_type").elements(),
              prefix + "numbers", numbers.size());
      }
      add_mesh({values_of<float>(view, prefix + "positions"), values_of<int32_t>(view, prefix + "node_type"),
                part, std::move(numbers)},
               {.first = senders, .second = receivers});
    }
    seen_ = json.at("seen").get<int64_t>();
    learned_ = json.at("learned").get<int64_t>();
    held_ = json.at("held").get<int64_t>();
    mesh_ = json.at("mesh").get<int64_t>();
    check(mesh_ >= -1 && mesh_ < meshes && seen_ >= 0 && learned_ >= 0 && held_ >= 0, kKey,
          fmt::format("mesh {}, {} samples seen, {} learned, {} held out", mesh_, seen_, learned_, held_));
    const auto size_on = [&](int64_t mesh) {
      size_t size = 0;
      for (size_t field = 0; field < options_.fields.size(); ++field) size += size_of_field(field, mesh);
      return size;
    };
    const auto read = [&](const char* name, std::deque<Sample>& samples, int64_t count, int64_t capacity) {
      check(std::cmp_equal(json.at(name).size(), std::min(count, capacity)), name, json.at(name).size());
      for (const Json& entry : json.at(name)) {
        const auto mesh = entry.get<int64_t>();
        check(mesh >= 0 && mesh < meshes, name, mesh);
        Sample sample{mesh, values_of<float>(view, fmt::format("replay.{}.{}", name, samples.size()))};
        check(sample.values.size() == size_on(mesh) * static_cast<size_t>(frames_), name,
              sample.values.size());
        samples.push_back(std::move(sample));
      }
    };
    read("train", train_, learned_, options_.capacity);
    read("valid", valid_, held_, options_.held_out);
    const auto window = json.at("window").get<int64_t>();
    check(window >= 0 && window <= frames_ && (window == 0 || mesh_ >= 0), "window", window);
    for (int64_t i = 0; i < window; ++i) {
      window_.push_back(values_of<float>(view, fmt::format("replay.window.{}", i)));
      check(window_.back().size() == size_on(mesh_), "window", window_.back().size());
    }
    for (size_t i = 0; i < current_.size(); ++i) {
      current_[i] = values_of<float>(view, fmt::format("replay.current.{}", i));
      check(current_[i].empty() || (mesh_ >= 0 && current_[i].size() == size_of_field(i, mesh_)), "current",
            current_[i].size());
    }
    return 0;
  });
}

}  // namespace meshgrad
