// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/train/tools/extras/field_roles.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

namespace meshgrad {
namespace {

constexpr int64_t kLooked = 8;  // trajectories

// Words of names; of known values first.
constexpr std::array<std::string_view, 14> kKnown{"inlet",   "inflow",   "boundary",   "bc",      "dirichlet",
                                                  "initial", "given",    "prescribed", "applied", "load",
                                                  "source",  "traction", "modulus",    "young"};
constexpr std::array<std::string_view, 10> kResults{"stress",        "strain",   "mises",    "displacement",
                                                    "deformation",   "pressure", "velocity", "temperature",
                                                    "concentration", "disp"};
constexpr std::array<std::string_view, 5> kLetters{"u", "v", "w", "p",
                                                   "t"};  // as papers and solvers name them

/// "WallShear_stress" -> wall, shear, stress.
std::set<std::string> words_of(const std::string& name) {
  std::set<std::string> words;
  std::string word;
  bool small = false;
  for (const char c : name + "_") {
    const auto letter = static_cast<unsigned char>(c);
    if (std::isalpha(letter) == 0 || (std::isupper(letter) != 0 && small)) {
      if (!word.empty()) words.insert(std::exchange(word, {}));
    }
    if (std::isalpha(letter) != 0) word += static_cast<char>(std::tolower(letter));
    small = std::islower(letter) != 0;
  }
  return words;
}

template <size_t N>
std::optional<std::string_view> word_in(const std::set<std::string>& name,
                                        const std::array<std::string_view, N>& words) {
  const auto found =
      std::ranges::find_if(words, [&](std::string_view word) { return name.contains(std::string(word)); });
  return found == words.end() ? std::nullopt : std::optional(*found);
}

/// What the values of a field are in the trajectories that were looked at.
struct ShownValues {
  bool one_a_mesh = true;                 // each component
  std::set<int32_t> not_zero;             // node types
  std::map<int32_t, int64_t> types = {};  // and their nodes
};

ShownValues look_at(const Dataset& dataset, const FieldInfo& field) {
  ShownValues values;
  const std::string& split = dataset.statistics_split();
  const auto components = static_cast<size_t>(field.components);
  for (int64_t i = 0; i < std::min(dataset.size(split), kLooked); ++i) {
    const TrajectoryView trajectory = dataset.trajectory(split, i);
    const std::span<const float> here = trajectory.field(field.name).frame(0);
    const std::span<const int32_t> node_type = trajectory.mesh().node_type;
    for (const int32_t type : node_type) ++values.types[type];
    for (size_t at = 0; at < here.size(); ++at) {
      values.one_a_mesh = values.one_a_mesh && here[at] == here[at % components];
      if (static_cast<double>(here[at]) + field.offset_of(at % components) != 0.0)
        values.not_zero.insert(node_type[at / components]);
    }
  }
  return values;
}

bool same_values(const Dataset& dataset, const std::string& a, const std::string& b, int32_t type) {
  const std::string& split = dataset.statistics_split();
  if (dataset.field(a).components != dataset.field(b).components || dataset.field(b).on != FieldOn::node)
    return false;
  const auto components = static_cast<size_t>(dataset.field(a).components);
  for (int64_t i = 0; i < std::min(dataset.size(split), kLooked); ++i) {
    const TrajectoryView trajectory = dataset.trajectory(split, i);
    const std::span<const float> left = trajectory.field(a).frame(0), right = trajectory.field(b).frame(0);
    for (size_t at = 0; at < left.size(); ++at)
      if (trajectory.mesh().node_type[at / components] == type && left[at] != right[at]) return false;
  }
  return true;
}

}  // namespace

bool follows_positions(const std::string& name) {
  std::string lower = name;
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const char* other : {"constrain", "restrain"})
    if (const size_t at = lower.find(other); at != std::string::npos)
      lower.erase(at, std::string_view(other).size());
  return std::ranges::any_of(std::array{"stress", "strain", "mises"},
                             [&](const char* word) { return lower.find(word) != std::string::npos; });
}

/// The one node type where a load is: a load is 0 at most nodes. A solution may be 0 at all of a boundary,
/// but not within.
std::optional<int32_t> loaded_type(const ShownValues& values) {
  if (values.types.size() < 2 || values.not_zero.size() != 1) return std::nullopt;
  constexpr int32_t kWithin = 0;
  const int32_t loaded = *values.not_zero.begin();
  if (loaded == kWithin) return std::nullopt;
  int64_t others = 0;
  for (const auto& [type, nodes] : values.types) others += type == loaded ? 0 : nodes;
  return values.types.at(loaded) < others ? std::optional(loaded) : std::nullopt;
}

FieldRole role_of(const Dataset& dataset, const FieldInfo& field) {
  using Kind = FieldRole::Kind;
  // A pressure on one face is a load, whatever its name.
  const ShownValues values = look_at(dataset, field);
  if (values.one_a_mesh && !values.not_zero.empty()) return {Kind::known, "one value on each mesh"};
  if (const auto type = loaded_type(values))
    return {Kind::known, fmt::format("0 but on nodes of type {}", *type)};
  const std::set<std::string> words = words_of(field.name);
  const auto known = word_in(words, kKnown), result = word_in(words, kResults);
  if (known && result) return {};
  if (result) return {Kind::result, fmt::format("named \"{}\"", *result)};
  if (known) return {Kind::known, fmt::format("named \"{}\"", *known)};
  if (words.size() == 1 && std::ranges::find(kLetters, *words.begin()) != kLetters.end())
    return {Kind::result, "named as solutions are"};
  return values.one_a_mesh ? FieldRole{Kind::known, "0 everywhere"} : FieldRole{};
}

std::vector<int64_t> types_to_predict(const Dataset& dataset, const std::vector<std::string>& inputs,
                                      const std::vector<std::string>& targets, bool over_time) {
  std::vector<int64_t> types;
  const std::vector<double>& counts = dataset.node_type_counts();
  for (size_t type = 0; type < counts.size(); ++type) {
    const auto number = static_cast<int32_t>(type);
    const bool predicted =
        counts[type] > 0 && std::ranges::any_of(targets, [&](const std::string& target) {
          if (dataset.field(target).on != FieldOn::node) return false;
          const FieldStatistics values = dataset.field_stats(target, NodeTypeSet{number},
                                                             over_time ? Quantity::change : Quantity::value);
          const auto differs = [](double value) { return value != 0.0; };
          const bool changes =
              over_time && std::ranges::any_of(values.mean, differs);  // perhaps by one number everywhere
          if (!changes && !std::ranges::any_of(values.std, differs)) return false;
          return over_time || std::ranges::none_of(inputs, [&](const std::string& input) {
                   return same_values(dataset, target, input, number);
                 });
        });
    if (predicted) types.push_back(number);
  }
  return types;
}

}  // namespace meshgrad
