// SPDX-License-Identifier: Apache-2.0
// Names of the files that predictions are written to, and the folders that hold them.
#pragma once
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

/// A name as part of a file's name: one such as "../x" must not lead out of the folder.
std::string file_name(std::string name);

/// Whether a name is `before`, a number or two joined by '_', and `after`.
bool is_numbered(std::string_view name, std::string_view before, std::string_view after);

/// Makes the folder, or removes from it what an earlier call wrote, so that none of it stays beside fewer new
/// files. `is_ours` knows all names that this call may write. Throws DataError, before it removes anything,
/// for a file of such a name that was written by another program or is one of `inputs`, for a folder that is
/// one of them, and for a link in its place.
void begin_folder(const std::filesystem::path& directory,
                  const std::function<bool(const std::string& name)>& is_ours,
                  const std::vector<std::filesystem::path>& inputs = {});

/// Throws DataError for a file that is there and was written by another program, or is one of `inputs`.
void check_prediction(const std::filesystem::path& file,
                      const std::vector<std::filesystem::path>& inputs = {});

/// Names of files after the sources of trajectories, and a suffix: "heat/run_3.vtu" gives "heat_run_3"; one
/// that is taken gets a number.
class SourceNames {
 public:
  std::string take(std::string_view source, std::string_view suffix = {});

 private:
  std::set<std::string> taken_;
};

}  // namespace meshgrad
