// SPDX-License-Identifier: Apache-2.0
// Trainer: how difficult the training samples are (curriculum.*): scores of all of them, before the first
// window that draws by them.
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/score_file.h>
#include <meshgrad/train/learn/run/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace meshgrad {

/// Of a resumed run. Those that it was stopped in are made again.
void Trainer::load_scores(const std::filesystem::path& checkpoint) {
  Curriculum* const curriculum = loader_.curriculum();
  if (curriculum == nullptr) return;
  const SafetensorsFile file = open_checkpoint(checkpoint);
  const std::string& known = file.view().metadata_at(kScoresKey);
  std::istringstream hashes(known);
  if (std::string model; config_.curriculum.score == CurriculumScore::model && hashes >> model)
    curriculum->scored_by(model);
  for (std::string hash; !curriculum->complete() && hashes >> hash;) {
    const std::filesystem::path path = folder_.scores(curriculum->next_epoch());
    curriculum->add_scores(read_scores(path, hash, curriculum->samples()), hash);
  }
  const int64_t drawn = state_.micro > 0 ? state_.step : state_.step - 1;  // the last window
  if (curriculum->hashes() == known && (drawn < 0 || loader_.knows(drawn))) {
    if (config_.curriculum.score == CurriculumScore::model && !curriculum->complete()) load_scoring_model();
    return;
  }
  throw data_error(fmt::format("{}: {}", checkpoint.string(), kScoresKey),
                   fmt::format("the hashes of the scores that its {} drew by", counted(drawn + 1, "step")),
                   "\"" + known + "\"", "use another checkpoint of the run (--checkpoint FILE)");
}

/// What the next window draws by. False when the observer stopped it: then the resumed run makes these scores
/// again, by the same weights.
bool Trainer::score_samples() {
  if (loader_.knows(state_.step)) return true;
  const Span span("scores");
  pause();
  while (!loader_.knows(state_.step))
    if (!make_scores(*loader_.curriculum())) return false;
  scoring_model_.reset();
  return true;
}

/// The one that a resumed run was stopped with: a run's folder may have a new best model since.
void Trainer::load_scoring_model() {
  constexpr const char* kKey = "curriculum.model";
  scoring_model_ = load_model_of_task(runtime_, config_, task_, kKey, config_.curriculum.model);
  Curriculum& curriculum = *loader_.curriculum();
  if (curriculum.scorer().empty()) curriculum.scored_by(scoring_model_->hash);
  if (curriculum.scorer() == scoring_model_->hash) return;
  throw config_error(
      kKey, fmt::format("the model {}, with which the run began to score its samples", curriculum.scorer()),
      fmt::format("the model {} in {}", scoring_model_->hash, config_.curriculum.model),
      "name the same checkpoint, or start a new run with another run.dir");
}

/// Chunk by chunk, so that nothing but the scores grows with their number.
bool Trainer::make_scores(Curriculum& curriculum) {
  const Model& model = scoring_model_ ? scoring_model_->model : model_;
  Normalizers& normalizers = scoring_model_ ? scoring_model_->normalizers : normalizers_;
  const std::string& split = config_.data.train_split;
  const int64_t chunk = config_.curriculum.chunk;
  const std::optional<std::vector<double>> losses = sample_losses(
      runtime_, ranks_, task_, model, normalizers, config_, split, chunk,
      [&](int64_t done) { tell_scored(done, curriculum.samples()); }, options_.observer.stop,
      options_.long_batch, parts_ ? &*parts_ : nullptr);
  if (!losses) return false;
  std::vector<float> scores(losses->begin(), losses->end());
  check_scores(scores, task_, config_,
               scoring_model_ ? config_.curriculum.model : fmt::format("the model of step {}", state_.step));
  const std::filesystem::path path = folder_.scores(curriculum.next_epoch());
  tell_scores(curriculum.next_epoch(), scores, path);
  const std::string hash = ranks_.first() ? write_scores(path, scores, split) : std::string();
  curriculum.add_scores(std::move(scores), hash);
  return true;
}

/// After a chunk; at most ten lines of each scoring.
void Trainer::tell_scored(int64_t done, int64_t all) const {
  const int64_t before = std::max<int64_t>(0, done - config_.curriculum.chunk);
  if (done == all || done * 10 / all == before * 10 / all) return;
  tell(RunEventKind::scores, fmt::format("{} of {} training samples are scored", done, all),
       {{"scored", done}, {"samples", all}, {"memory_now", runtime_.allocator().stats().allocated.current}});
}

void Trainer::tell_scores(int64_t epoch, std::vector<float> scores, const std::filesystem::path& path) const {
  std::sort(scores.begin(), scores.end());
  const double least = scores.front(), median = scores[scores.size() / 2], most = scores.back();
  tell(RunEventKind::scores,
       fmt::format("before epoch {}, the loss of {} is from {:.4g} to {:.4g}, median {:.4g}: {}", epoch + 1,
                   counted(std::ssize(scores), "training sample"), least, most, median, path.string()),
       {{"epoch", epoch},
        {"samples", std::ssize(scores)},
        {"least", least},
        {"median", median},
        {"most", most},
        {"file", path.string()}});
}

}  // namespace meshgrad
