// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <system_error>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/found_files.h>
#include <meshgrad/train/convert/split_names.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

bool is_openfoam_case(const fs::path& folder) {
  std::error_code none;
  return fs::is_regular_file(folder / "system" / "controlDict", none);
}

// Beside the mesh it has folders with the surfaces of patches.
bool is_foam_to_vtk(const fs::path& folder) {
  const fs::path named = folder.has_filename() ? folder : folder.parent_path();
  return named.filename() == "VTK" && is_openfoam_case(folder / "..");
}

class Listing {
 public:
  Listing(bool every, const std::function<bool(const fs::path&)>& is_data)
      : every_(every), is_data_(is_data) {}

  /// `split` is the folder's, empty where no name says one.
  void add(const fs::path& folder, const std::string& split) {
    if (!read_.insert(fs::weakly_canonical(folder)).second) return;  // a link to it, or to what it is in
    if (is_openfoam_case(folder)) {
      add_case(folder, split);
      return;
    }
    const size_t before = files.size();
    const std::vector<fs::path> folders = add_files(folder, split);
    const bool blocks = std::any_of(files.begin() + static_cast<std::ptrdiff_t>(before), files.end(),
                                    [](const FoundFile& file) { return file.path.extension() == ".vtm"; });
    if (blocks || is_foam_to_vtk(folder)) return;
    for (const fs::path& inner : folders) {
      const std::string name = inner.filename().string();
      if (every_ || !split.empty() || is_split_folder(name)) {
        add(inner, split.empty() ? split_of_name(name) : split);
      } else if (!has_list(before, name) && contains_data(inner)) {
        left_out.push_back(inner.string());
      }
    }
  }

  std::vector<FoundFile> files;
  std::vector<std::string> left_out;

 private:
  /// Only those of the folder; returns the folders in it.
  std::vector<fs::path> add_files(const fs::path& folder, const std::string& split) {
    std::vector<fs::path> folders;
    std::error_code error;
    for (auto entry = fs::directory_iterator(folder, error); entry != fs::end(entry);
         entry.increment(error)) {
      std::error_code unreadable;
      const fs::path& path = entry->path();
      if (path.filename().string().starts_with(".")) continue;  // of editors, macOS and interrupted copies
      if (entry->is_regular_file(unreadable) && is_data_(path)) {
        files.push_back({path, split.empty() ? split_of_name(path.stem().string()) : split});
      } else if (entry->is_directory(unreadable)) {
        folders.push_back(path);
      }
    }
    if (error)
      throw data_error(folder.string(), "a readable folder", error.message(), "check its permissions");
    std::stable_partition(folders.begin(), folders.end(), [](const fs::path& inner) {
      std::error_code none;
      return !fs::is_symlink(inner, none);
    });
    return folders;
  }

  void add_case(const fs::path& folder, const std::string& split) {
    const size_t before = files.size();
    std::error_code none;
    if (fs::is_directory(folder / "VTK", none)) add_files(folder / "VTK", split);
    if (files.size() > before) return;
    throw data_error(folder.string(), "files that foamToVTK wrote, in the folder VTK of a case of OpenFOAM",
                     fs::is_directory(folder / "VTK", none) ? "VTK without files to read" : "no folder VTK",
                     fmt::format("scripts/to-vtu {} -o FOLDER, which keeps the patches as node types, or "
                                 "foamToVTK -case {}",
                                 folder.string(), folder.string()));
  }

  /// ParaView saves the frames of flow.pvd in the folder flow.
  bool has_list(size_t begin, const std::string& folder) const {
    return std::any_of(files.begin() + static_cast<std::ptrdiff_t>(begin), files.end(),
                       [&](const FoundFile& file) { return file.path.stem() == folder; });
  }

  bool contains_data(const fs::path& folder) const {
    std::error_code error;
    for (auto entry = fs::directory_iterator(folder, error); entry != fs::end(entry); entry.increment(error))
      if (is_data_(entry->path())) return true;
    return false;
  }

  bool every_;
  std::set<fs::path> read_;
  const std::function<bool(const fs::path&)>& is_data_;
};

}  // namespace

std::vector<FoundFile> find_files(const fs::path& input, bool every,
                                  const std::function<bool(const fs::path&)>& is_data,
                                  const WarningCallback& warn) {
  std::error_code error;
  if (!fs::exists(input, error)) {
    throw data_error(input.string(), "a folder or a file", error ? error.message() : "a missing path",
                     "check the path");
  }
  if (!fs::is_directory(input, error)) return {{input, split_of_name(input.stem().string())}};
  Listing listing(every, is_data);
  listing.add(input, "");
  if (listing.files.empty() && !every) {  // a folder for each simulation
    Listing all(true, is_data);
    all.add(input, "");
    listing.files = std::move(all.files);
    listing.left_out.clear();
  }
  std::sort(listing.left_out.begin(), listing.left_out.end());
  for (const std::string& folder : listing.left_out)
    warn(fmt::format(
        "[{}] this folder was not read: beside files of data only folders train, valid and test are",
        folder));
  std::sort(listing.files.begin(), listing.files.end(),
            [](const FoundFile& a, const FoundFile& b) { return a.path < b.path; });
  return std::move(listing.files);
}

fs::path folder_of(const fs::path& input) {
  std::error_code none;
  return fs::is_directory(input, none) ? input : input.parent_path();
}

std::string name_within(const fs::path& input, const fs::path& file) {
  return file.lexically_relative(folder_of(input)).generic_string();
}

}  // namespace meshgrad
