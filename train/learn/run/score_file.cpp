// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/data/safetensors.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/score_file.h>

#include <map>
#include <span>

namespace meshgrad {
namespace {

constexpr const char* kScoresFormat = "meshgrad scores 1";
constexpr const char* kScoresTensor = "scores";

}  // namespace

std::string write_scores(const std::filesystem::path& path, const std::vector<float>& scores,
                         std::string_view split) {
  const SafetensorsTensor tensor{
      kScoresTensor, SafetensorsDtype::f32, {std::ssize(scores)}, std::as_bytes(std::span(scores))};
  std::map<std::string, std::string> metadata{{"format", kScoresFormat}, {"split", std::string(split)}};
  const std::string hash = checkpoint_checksum({&tensor, 1}, metadata);
  metadata["checksum"] = hash;
  std::error_code ignored;  // writing says what is wrong
  std::filesystem::create_directories(path.parent_path(), ignored);
  write_safetensors(path, {&tensor, 1}, metadata);
  return hash;
}

std::vector<float> read_scores(const std::filesystem::path& path, const std::string& hash, int64_t samples) {
  constexpr const char* kFix = "restore the file, or resume from a checkpoint of an earlier step";
  const auto refuse = [&](const std::string& got) {
    throw data_error(path.string(), "scores of the hash " + hash + ", as the checkpoint has it", got, kFix);
  };
  if (!path_exists(path)) refuse("no such file");
  const SafetensorsFile file(path);
  const SafetensorsView& view = file.view();
  if (view.metadata_at("format") != kScoresFormat) refuse("\"" + view.metadata_at("format") + "\"");
  const std::string found = checkpoint_checksum(view.tensors, view.metadata);
  if (found != hash) refuse(found);
  const std::vector<int64_t> shape{samples};
  return to_f32(view.at(kScoresTensor, SafetensorsDtype::f32, shape));
}

}  // namespace meshgrad
