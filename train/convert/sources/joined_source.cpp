// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/joined_source.h>
#include <meshgrad/train/convert/sources/moving_positions.h>

namespace meshgrad {
namespace {

/// The first place where two lists differ, or their lengths; empty where they are equal.
template <class T>
std::string list_difference(const char* what, const std::vector<T>& a, const std::vector<T>& b) {
  if (a.size() != b.size()) return fmt::format("{} of {} numbers, not {}", what, b.size(), a.size());
  const auto at = std::ranges::mismatch(a, b).in1 - a.begin();
  return at == std::ssize(a) ? "" : fmt::format("{} {} at {}", what, b[static_cast<size_t>(at)], at);
}

/// Of `b`, in what differs from `a`; empty where the meshes are the same.
std::string mesh_difference(const RawTrajectory& a, const RawTrajectory& b) {
  if (a.dim != b.dim) return fmt::format("a mesh in {}-D", b.dim);
  for (const std::string& found :
       {list_difference("coordinates", a.positions, b.positions), list_difference("cells", a.cells, b.cells),
        list_difference("edges", a.edges, b.edges), list_difference("faces", a.faced.nodes, b.faced.nodes),
        list_difference("ends of faces", a.faced.face_ends, b.faced.face_ends)})
    if (!found.empty()) return found;
  return {};
}

std::string list_difference(const FieldValues& a, const FieldValues& b) {
  if (a.index() != b.index()) return "coordinates of a different type";
  return std::visit(
      [&](const auto& values) {
        return list_difference("coordinates", values, std::get<std::remove_cvref_t<decltype(values)>>(b));
      },
      a);
}

void make_static(RawTrajectory& t) {
  for (RawField& field : t.fields) field.dynamic = false;
}

void add_fields(RawTrajectory& to, RawTrajectory from) {
  if (const std::string found = mesh_difference(to, from); !found.empty()) {
    throw data_error(from.name, "the points and cells of " + to.name + ", whose fields belong to it", found,
                     "write all fields of a simulation on one mesh, or convert them apart");
  }
  if (to.frames != from.frames && to.frames != 1 && from.frames != 1) {
    throw data_error(from.name, fmt::format("{} frames, as {} has, or 1", to.frames, to.name),
                     fmt::format("{}", from.frames), "write all fields of a simulation at the same times");
  }
  if (to.frames < from.frames) make_static(to);
  if (from.frames < to.frames) make_static(from);
  to.frames = std::max(to.frames, from.frames);
  if (to.dt == 0) to.dt = from.dt;
  if (to.times.size() < from.times.size()) to.times = from.times;
  if (!to.node_type.empty() && !from.node_type.empty() && to.node_type != from.node_type) {
    throw data_error(from.name, "the node types of " + to.name,
                     list_difference("types", to.node_type, from.node_type),
                     "write one array of node types, and name it by --node-types");
  }
  if (to.node_type.empty()) {
    to.node_type = std::move(from.node_type);
    to.cell_type = std::move(from.cell_type);
  }
  to.frame_files.clear();  // two for each frame
  for (RawField& field : from.fields) {
    // Each file has the points of a mesh that moves.
    const auto same = std::ranges::find(to.fields, field.name, &RawField::name);
    if (field.name != kWorldPosition || same == to.fields.end()) {
      to.fields.push_back(std::move(field));
    } else if (same->values != field.values) {
      throw data_error(from.name, "the points of " + to.name + " in each frame",
                       list_difference(same->values, field.values),
                       "write all fields of a simulation on one mesh, or convert them apart");
    }
  }
}

class JoinedSource : public TrajectorySource {
 public:
  explicit JoinedSource(std::vector<std::unique_ptr<TrajectorySource>> sources)
      : sources_(std::move(sources)) {}

  int64_t records() const override { return sources_.front()->records(); }
  uint64_t bytes_read() const override {
    uint64_t bytes = 0;
    for (const auto& source : sources_) bytes += source->bytes_read();
    return bytes;
  }

  std::optional<RawTrajectory> next() override {
    std::optional<RawTrajectory> joined = sources_.front()->next();
    for (size_t i = 1; i < sources_.size(); ++i) {
      std::optional<RawTrajectory> more = sources_[i]->next();
      if (joined.has_value() != more.has_value()) {
        const std::string name = joined ? joined->name : more->name;
        throw data_error(name, "fields of one simulation on one mesh at all times",
                         "a mesh that changes in the files of some fields only",
                         "write all fields on the same meshes, or convert them apart");
      }
      if (more) add_fields(*joined, std::move(*more));
    }
    if (joined) std::ranges::sort(joined->fields, {}, &RawField::name);
    return joined;
  }

 private:
  std::vector<std::unique_ptr<TrajectorySource>> sources_;
};

}  // namespace

FieldsOnMesh fields_on_mesh(const RawTrajectory& t) {
  FieldsOnMesh on;
  const auto mix = [&](const auto& values) {
    const XXH128_hash_t hash =
        XXH3_128bits_withSeed(values.data(), values.size() * sizeof(values[0]), on.mesh[0]);
    on.mesh = {hash.low64, hash.high64 ^ (on.mesh[1] * 3)};
  };
  mix(t.positions);
  mix(t.cells);
  mix(t.edges);
  mix(t.faced.nodes);
  mix(t.faced.face_ends);
  for (const RawField& field : t.fields) on.fields.push_back(field.name);
  if (!t.node_type.empty()) on.fields.emplace_back();
  return on;
}

std::vector<std::vector<size_t>> fields_of_one_trajectory(std::span<const FieldsOnMesh> all) {
  const auto share = [](const FieldsOnMesh& a, const FieldsOnMesh& b) {
    return std::ranges::any_of(a.fields, [&](const std::string& name) {
      return !name.empty() && std::ranges::find(b.fields, name) != b.fields.end();
    });
  };
  // Of several simulations in one folder, the lists of one have the same number at the end of their names.
  bool several = false;
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < i; ++j) several = several || (all[i].mesh == all[j].mesh && share(all[i], all[j]));
  std::vector<std::vector<size_t>> groups;
  for (size_t i = 0; i < all.size(); ++i) {
    const auto found = std::ranges::find_if(groups, [&](const std::vector<size_t>& group) {
      return all[group.front()].mesh == all[i].mesh &&
             (!several || all[group.front()].number == all[i].number) &&
             std::ranges::none_of(group, [&](size_t other) { return share(all[other], all[i]); });
    });
    if (found == groups.end()) {
      groups.push_back({i});
    } else {
      found->push_back(i);
    }
  }
  return groups;
}

std::unique_ptr<TrajectorySource> join_fields(std::vector<std::unique_ptr<TrajectorySource>> sources) {
  return std::make_unique<JoinedSource>(std::move(sources));
}

}  // namespace meshgrad
