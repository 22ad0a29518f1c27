// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/convert/convert_inputs.h>
#include <meshgrad/train/convert/manifest.h>
#include <meshgrad/train/data/atomic_file.h>

namespace meshgrad {

bool is_up_to_date(const ConvertOptions& given) {
  const std::string packed = Dataset::open(given.output).manifest();
  const auto json = nlohmann::json::parse(packed, nullptr, false);
  if (json.is_discarded() || !json.contains("input")) return false;
  ConvertOptions options = given;
  const std::optional<Manifest> manifest = take_manifest(options);
  const Inputs inputs = open_inputs(options, manifest, [](const std::string&) {});
  return json["input"] == hash_of_input(options, manifest, inputs);
}

void write_manifest(const ConvertOptions& given, const std::filesystem::path& target, bool replace) {
  ConvertOptions options = given;
  const std::optional<Manifest> manifest = take_manifest(options);
  const Dataset data = Dataset::open(options.output);
  const std::string source = data.source();  // "FOLDER (FORMAT)"
  const size_t format = source.rfind('(');
  const std::string text =
      manifest_text(options, source.substr(format + 1, source.size() - format - 2), data.manifest(), target);
  std::error_code none;
  if (std::filesystem::exists(target, none)) {
    ConvertOptions known;
    known.input = target;
    const bool is_manifest =
        std::filesystem::is_regular_file(target, none) && take_manifest(known).has_value();
    if (is_manifest && read_file(target) == text) return;
    if (!is_manifest || !replace) {
      throw data_error(target.string(),
                       is_manifest ? "a new name for the manifest" : "a new name, or a manifest",
                       is_manifest ? "a manifest that says something else" : "a file of another kind",
                       is_manifest ? "--force replaces it" : "choose another name");
    }
  }
  write_file_atomically(target, text);
}

}  // namespace meshgrad
