// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

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

namespace {

bool is_manifest(const std::filesystem::path& path) {
  ConvertOptions options;
  options.input = path;
  return take_manifest(options).has_value();
}

}  // namespace

void write_manifest(const ConvertOptions& given, const std::filesystem::path& target) {
  ConvertOptions options = given;
  const std::optional<Manifest> manifest = take_manifest(options);
  const Dataset data = Dataset::open(options.output);
  const std::string source = data.source();  // "FOLDER (FORMAT)"
  const size_t format = source.rfind('(');
  const std::string text =
      manifest_text(options, source.substr(format + 1, source.size() - format - 2), data.manifest(), target);
  std::error_code none;
  if (std::filesystem::is_regular_file(target, none) && read_file(target, text.size() + 1) == text) return;
  std::vector<std::filesystem::path> taken = files_read(given);
  taken.push_back(given.output);
  check_output({.path = target,
                .option = "--manifest",
                .kind = "a manifest",
                .is_of_kind = is_manifest,
                .replace = given.replace,
                .taken = std::move(taken)});
  write_file_atomically(target, text);
}

}  // namespace meshgrad
