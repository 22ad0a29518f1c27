// SPDX-License-Identifier: Apache-2.0
// What a conversion read: a text that a user can look at, compare and correct, and that is read in place of
// the files themselves.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/found_files.h>

namespace meshgrad {

/// Frames of one record of some files, and the split that they belong to.
struct ListedPart {
  std::string split;
  int64_t record = 0, first = 0, count = 0;
};

/// A source of records, and which parts of them are read.
struct ListedFile {
  FoundFile file;
  std::vector<ListedPart> parts;
};

struct Inputs;  // convert_inputs.h

struct Manifest {
  std::string format;
  std::filesystem::path folder;  ///< below which the files are
  std::vector<ListedFile> files;
};

/// The manifest at `options.input`, if that is one: JSON that begins with {"meshgrad_manifest". `options`
/// gets its folder, its format, and what it says of options that are not given. Throws DataError naming the
/// place of what is no manifest.
std::optional<Manifest> take_manifest(ConvertOptions& options);

/// The files that the options name as inputs, which no output replaces.
std::vector<std::filesystem::path> files_read(const ConvertOptions& options);

/// Throws DataError where `output` may not be replaced (check_output).
void check_packed_output(const ConvertOptions& options);

/// The text of the manifest of a packed file, as `meshgrad info FILE --manifest` prints it, with what it
/// takes to read it: options, format, and the folder as seen from `target`, where it is to be written.
std::string manifest_text(const ConvertOptions& options, const std::string& format, const std::string& packed,
                          const std::filesystem::path& target);

/// The options that change what is packed, as JSON; those that have their default are left out.
std::string options_text(const ConvertOptions& options);

/// Identifies options, the manifest, and the names and contents of all files: equal for what gives equal
/// packed files.
std::string hash_of_input(const ConvertOptions& options, const std::optional<Manifest>& manifest,
                          const Inputs& inputs);

}  // namespace meshgrad
