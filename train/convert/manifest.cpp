// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/convert/convert_inputs.h>
#include <meshgrad/train/convert/manifest.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/data/packed_file.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// To be raised where the same files are read otherwise than before.
constexpr int kReading = 1;

constexpr std::string_view kStart = "{\"meshgrad_manifest\"";

/// All options that change what is packed; those that have their default are left out.
Json options_json(const ConvertOptions& options) {
  Json json = Json::object();
  const auto add = [&](const char* name, const auto& value) {
    if (value != std::decay_t<decltype(value)>()) json[name] = value;
  };
  add("fields", options.fields);
  add("map", options.map);
  add("axes", options.axes);
  if (options.first_node) json["first_node"] = *options.first_node;
  add("dt", options.dt);
  add("units", options.units);
  if (options.cells) json["cells"] = static_cast<int>(*options.cells);
  if (options.graph != GraphOn::automatic) json["graph"] = static_cast<int>(options.graph);
  add("displacement", options.displacement);
  if (options.directed) json["directed"] = *options.directed;
  add("node_types", options.node_types);
  add("series", options.series);
  add("separate", options.separate_frames);
  return json;
}

/// Of options that are not given.
void take_options(const Json& json, ConvertOptions& options) {
  const auto take = [&](const char* name, auto& value) {
    using Value = std::decay_t<decltype(value)>;
    if (json.contains(name) && value == Value()) value = json[name].get<Value>();
  };
  take("fields", options.fields);
  take("map", options.map);
  take("axes", options.axes);
  if (json.contains("first_node") && !options.first_node) options.first_node = json["first_node"].get<int>();
  take("dt", options.dt);
  take("units", options.units);
  if (json.contains("cells") && !options.cells)
    options.cells = static_cast<CellKind>(json["cells"].get<int>());
  if (json.contains("graph") && options.graph == GraphOn::automatic)
    options.graph = static_cast<GraphOn>(json["graph"].get<int>());
  take("displacement", options.displacement);
  if (json.contains("directed") && !options.directed) options.directed = json["directed"].get<bool>();
  take("node_types", options.node_types);
  take("series", options.series);
  take("separate", options.separate_frames);
}

class ManifestReader {
 public:
  ManifestReader(const Json& json, std::string name, std::optional<std::string> node_types)
      : json_(json), name_(std::move(name)), node_types_(std::move(node_types)) {}

  Manifest read(const fs::path& folder) {
    Manifest manifest{json_.at("format").get<std::string>(),
                      (folder / json_.at("folder").get<std::string>()).lexically_normal(),
                      {}};
    std::map<std::pair<std::vector<std::string>, int64_t>, size_t>
        known;  // VTK: by files; others: by the file
    size_t number = 0;
    for (const Json& entry : json_.at("trajectories")) {
      place_ = fmt::format("trajectory {}", number++);
      const auto files = entry.at("files").get<std::vector<std::string>>();
      const auto lists =
          entry.contains("lists") ? entry.at("lists").get<std::vector<size_t>>() : std::vector<size_t>();
      ListedPart part{entry.at("split").get<std::string>(), entry.at("record").get<int64_t>(),
                      entry.at("first_frame").get<int64_t>(), entry.at("frames").get<int64_t>()};
      check(files, lists, part);
      const auto [place, added] =
          known.try_emplace({lists.empty() ? std::vector{files.front()} : files, 0}, manifest.files.size());
      if (added) manifest.files.push_back({file_of(manifest.folder, files, lists), {}});
      ListedFile& listed = manifest.files[place->second];
      if (!lists.empty()) set_times(entry, part, listed.file);
      listed.parts.push_back(std::move(part));
    }
    if (manifest.files.empty()) throw wrong("trajectories", "none");
    return manifest;
  }

 private:
  DataError wrong(std::string_view needed, std::string_view got) const {
    return data_error(place_.empty() ? name_ : name_ + ": " + place_, needed, got,
                      "correct it, or write the manifest again: meshgrad convert --manifest FILE");
  }

  void check(const std::vector<std::string>& files, const std::vector<size_t>& lists,
             const ListedPart& part) const {
    constexpr std::array<std::string_view, 3> kSplits{"train", "valid", "test"};
    if (std::ranges::find(kSplits, part.split) == kSplits.end())
      throw wrong("the split train, valid or test", '"' + part.split + '"');
    if (files.empty()) throw wrong("at least one file", "none");
    if (part.record < 0 || part.first < 0 || part.count < 1)
      throw wrong("a record and a range of frames",
                  fmt::format("{}, {} and {}", part.record, part.first, part.count));
    size_t left = files.size();
    for (const size_t list : lists) {
      if (list < 1 || list > left) throw wrong("lists of files", fmt::format("{} of {} files", list, left));
      left -= list;
    }
  }

  FoundFile file_of(const fs::path& folder, const std::vector<std::string>& files,
                    const std::vector<size_t>& lists) const {
    FoundFile file{folder / files.front(), ""};
    file.node_types = node_types_;
    size_t at = 0;
    for (size_t list = 0; list < lists.size(); ++list) {
      FoundFile& to = list == 0 ? file : file.more.emplace_back(FoundFile{folder / files[at], ""});
      to.node_types = node_types_;
      for (size_t i = 0; i < lists[list]; ++i) to.frames.push_back({folder / files[at++], std::nullopt});
    }
    for (at = std::max<size_t>(at, 1); at < files.size(); ++at) file.parts.push_back(folder / files[at]);
    return file;
  }

  void set_times(const Json& entry, const ListedPart& part, FoundFile& file) const {
    const auto times = entry.at("times").get<std::vector<double>>();
    if (times.empty()) return;
    size_t frames = file.frames.size();  // of the longest list: another one may have one static frame
    for (const FoundFile& more : file.more) frames = std::max(frames, more.frames.size());
    if (std::ssize(times) != part.count || part.first + part.count > static_cast<int64_t>(frames))
      throw wrong(fmt::format("{} times of {} files", part.count, frames), fmt::format("{}", times.size()));
    const auto set = [&](FoundFile& list) {
      for (size_t i = 0; i < times.size(); ++i)
        list.frames[static_cast<size_t>(part.first) + i].time = times[i];
    };
    if (file.frames.size() == frames) set(file);
    for (FoundFile& more : file.more)
      if (more.frames.size() == frames) set(more);
  }

  const Json& json_;
  std::string name_, place_;
  std::optional<std::string> node_types_;
};

}  // namespace

std::optional<Manifest> take_manifest(ConvertOptions& options) {
  std::error_code none;
  if (!fs::is_regular_file(options.input, none)) return std::nullopt;
  std::string start = read_file(options.input, 4 * kStart.size());  // as a formatter may have left it
  std::erase_if(start, [](char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; });
  if (!start.starts_with(kStart)) return std::nullopt;
  const std::string name = options.input.string();
  const MappedFile file(options.input);
  const auto* begin = reinterpret_cast<const char*>(file.bytes().data());
  const std::string fix = "correct it, or write the manifest again: meshgrad convert --manifest FILE";
  try {
    const Json json = Json::parse(begin, begin + file.bytes().size());
    if (json.at("meshgrad_manifest") != 1)
      throw data_error(name, "a manifest of version 1", json.at("meshgrad_manifest").dump(), fix);
    take_options(json.at("options"), options);
    Manifest manifest = ManifestReader(json, name, options.node_types).read(options.input.parent_path());
    options.format = manifest.format;
    options.input = manifest.folder / "";
    return manifest;
  } catch (const Json::exception& error) {
    throw data_error(name, "a manifest, as convert --manifest writes it", error.what(), fix);
  }
}

std::vector<fs::path> files_read(const ConvertOptions& options) {
  std::vector<fs::path> files = options.also_read;
  files.insert(files.end(), {options.input, options.split_list});
  return files;
}

void check_packed_output(const ConvertOptions& options) {
  check_output({.path = options.output,
                .option = "-o",
                .kind = "a packed file",
                .is_of_kind = is_packed_file,
                .replace = options.replace,
                .taken = files_read(options),
                .fix = "choose another name for the output, such as one that ends in .mgd"});
}

std::string manifest_text(const ConvertOptions& options, const std::string& format, const std::string& packed,
                          const fs::path& target) {
  std::error_code none;
  const fs::path from = fs::absolute(target, none).parent_path();
  const fs::path input = fs::absolute(options.input, none);
  const fs::path folder = fs::relative(folder_of(input), from, none);
  Json json{{"meshgrad_manifest", 1},
            {"format", format},
            {"folder", none || folder.empty() ? folder_of(input).string() : folder.string()},
            {"options", options_json(options)}};
  const Json read = Json::parse(packed);
  json["read_as"] = read.at("read_as");
  json["trajectories"] = read.at("trajectories");
  return json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string options_text(const ConvertOptions& options) {
  return options_json(options).dump(-1, ' ', false, Json::error_handler_t::replace);
}

void use_options_of(const Dataset& packed, ConvertOptions& options) {
  const std::string text = packed.manifest();
  if (text.empty()) return;
  Json read = Json::parse(text).value("options", Json::object());
  read.erase("series");
  read.erase("dt");
  take_options(read, options);
}

std::string hash_of_input(const ConvertOptions& options, const std::optional<Manifest>& manifest,
                          const Inputs& inputs) {
  XXH3_state_t* const state = XXH3_createState();
  struct Freed {
    XXH3_state_t* state;
    ~Freed() { XXH3_freeState(state); }
  } const freed{state};
  XXH3_128bits_reset(state);
  const auto add = [&](std::string_view text) { XXH3_128bits_update(state, text.data(), text.size()); };
  Json json = options_json(options);
  json["version"] = kReading;
  json["format"] = options.format;
  json["split"] = options.split;
  json["split_by"] = static_cast<int>(options.split_by);
  if (!options.split_list.empty()) json["split_list"] = read_file(options.split_list);
  add(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  for (size_t i = 0; manifest && i < manifest->files.size(); ++i) {
    for (const ListedPart& part : manifest->files[i].parts)
      add(fmt::format("{} {} {} {} {}\n", i, part.split, part.record, part.first, part.count));
    for (const VtkFrame& frame : manifest->files[i].file.frames)
      add(fmt::format("{} ", frame.time.value_or(-1)));
  }
  std::set<fs::path> known;
  for (const InputFile& file : inputs.files) {
    std::vector<fs::path> all = file.files;
    all.push_back(file.path);  // a list, which has the times
    if (inputs.format == "deepmind") all.push_back(file.path.parent_path() / "meta.json");
    for (const fs::path& path : all) {
      add(name_within(options.input, path) + '\n');
      if (!known.insert(path).second) continue;
      const MappedFile content(path);
      XXH3_128bits_update(state, content.bytes().data(), content.bytes().size());
    }
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state);
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

}  // namespace meshgrad
