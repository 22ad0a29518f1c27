// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/io/host_memory_error.h>
#include <meshgrad/train/run/make_model.h>
#include <meshgrad/train/run/precision.h>
#include <meshgrad/train/run/predictor.h>

#include <fmt/format.h>
#include <meshgrad/train/run/training_data.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// The folder that train ran in, from BASE/run.dir/checkpoints/NAME; nothing when the run was moved.
std::optional<fs::path> training_folder(const Config& config, const fs::path& checkpoint) {
  const fs::path run = fs::path(config.run.dir).lexically_normal();
  if (run.is_absolute()) return {};
  const fs::path actual = fs::absolute(checkpoint).lexically_normal().parent_path().parent_path();
  fs::path base = actual;
  for ([[maybe_unused]] const fs::path& part : run) base = base.parent_path();
  if ((base / run).lexically_normal() != actual) return {};
  return base;
}

/// The data set of a run. An evaluation may be started in another folder than the training.
std::string data_of(const Config& config, const fs::path& checkpoint, const std::string& given) {
  if (!given.empty()) return given;
  const fs::path path = config.data.path;
  if (path.is_absolute()) return path.string();
  const std::optional<fs::path> folder = training_folder(config, checkpoint);
  if (folder && path_exists(*folder / path))
    return (*folder / path).lexically_proximate(fs::current_path()).string();
  if (path_exists(path)) return path.string();
  throw data_error(path.string(), "the run's data set, at a path relative to the folder that train ran in",
                   folder ? "none in " + folder->string() : "none in " + fs::current_path().string(),
                   "name the packed file with --data");
}

}  // namespace

Predictor::Predictor(Runtime& runtime, const std::filesystem::path& checkpoint, const std::string& data_path)
    : runtime_(runtime),
      config_(checkpoint_config(checkpoint)),
      task_(make_task(config_, Dataset::open(data_of(config_, checkpoint, data_path)))),
      model_(make_model(config_.model, task_.sizes())),
      normalizers_(task_.online_normalizers()) {
  check_precision(runtime.device(), config_.precision);
  if (data_path.empty() && checkpoint_data_fingerprint(checkpoint) != dataset().fingerprint()) {
    warnings_.push_back(fmt::format(
        "[{}] has other content than the data that {} was trained on, so its splits may contain that data",
        dataset().path().string(), checkpoint.string()));
  }
  if (const auto trained = checkpoint_training_data(checkpoint)) {
    check_training_data(checkpoint.string(), *trained, dataset(), config_);
    const bool dynamics = config_.task.name == TaskName::mesh_dynamics;
    if (dynamics && (trained->dt > 0) != (dataset().dt() > 0)) {
      const auto text = [](double dt) {
        return dt > 0 ? fmt::format("dt = {} s", dt) : std::string("no dt");
      };
      warnings_.push_back(fmt::format("[{}] has {}, and {} was trained on data with {}, so they may differ",
                                      dataset().path().string(), text(dataset().dt()), checkpoint.string(),
                                      text(trained->dt)));
    }
  }
  model_.parameters.allocate(runtime, config_.precision, 0);
  state_ = load_checkpoint(checkpoint, runtime.stream(), model_.parameters, nullptr, normalizers_);
}

Evaluation evaluate(const Predictor& predictor, const EvaluateOptions& options) {
  const TrainedModel trained = predictor.trained();
  EvaluateOptions resolved = options;
  if (!resolved.boundary) resolved.boundary = predictor.config().rollout.boundary;
  return with_host_memory_named(predictor.dataset().path(), !trained.runtime.stream().on_gpu(), "to evaluate",
                                [&] { return evaluate(trained, resolved); });
}

}  // namespace meshgrad
