// SPDX-License-Identifier: Apache-2.0
// OnlineTrainer: trains within a running solver. Frames are appended as the solver makes them, a bounded
// buffer keeps samples of them, and training takes as many steps, or as much time, as the solver gives.
#pragma once
#include <filesystem>
#include <limits>
#include <memory>
#include <string_view>
#include <vector>

#include <meshgrad/train/data/field_info.h>
#include <meshgrad/train/embed/arrays.h>
#include <meshgrad/train/learn/config/config.h>

#pragma GCC visibility push(default)
namespace meshgrad {

class MeshPredictor;
class Ranks;
class Runtime;

enum class Replay : uint8_t {
  reservoir,   ///< each sample so far is in the buffer with the same probability (Vitter's algorithm R, 1985)
  most_recent  ///< the newest samples
};

struct OnlineOptions {
  int dim = 2;                    ///< of positions: 2 or 3
  double dt = 0;                  ///< seconds between frames; 0: unknown
  std::vector<FieldInfo> fields;  ///< the configuration's inputs and targets: name, components, on, unit
  Replay replay = Replay::reservoir;
  int64_t capacity = 256;      ///< samples kept for training; one is 2 frames (3 of second changes), or more
                               ///< with data.history and unroll.steps
  int64_t held_out_every = 8;  ///< every n-th sample is only for evaluation; 0: none
  int64_t held_out = 32;       ///< of these, the newest are kept
};

/// One thread at a time may use it, and no other may use its Runtime meanwhile. All choices depend on
/// run.seed and on what was appended, never on time: the same calls give the same bits, also across save and
/// load. In a child of fork() it is as a MeshPredictor there.
class OnlineTrainer {
 public:
  /// Of `config` these count: task, data (but no file), model, precision, optimizer, schedule (train.steps is
  /// its end), train.batch, noise, field_noise, noise_warmup_steps, gamma and clip_norm, unroll, loss_scale,
  /// normalize.max_samples, run.seed. Throws ConfigError for settings that do not fit. The runtime outlives
  /// it.
  ///
  /// With `ranks`, which outlive it, they train one model, each on frames of its own. Where one cannot make
  /// its trainer, the others throw DataError. The constructors, train, held_out_loss, save and a
  /// MeshPredictor of the trainer are then collective: all ranks call them in the same order. Each step is
  /// taken by all of them, those without a sample included. Throws RankError when one does not come.
  ///
  /// Or they train on one mesh that is in parts (MeshArrays::in_parts): then all ranks make all calls, in the
  /// same order, and a frame is one of the whole mesh. Noise is that of the whole mesh with its nodes
  /// numbered rank after rank, and the ghosts' rows of fields do not count. Not with data.world_radius.
  OnlineTrainer(Runtime& runtime, const Config& config, const OnlineOptions& options, Ranks* ranks = nullptr);
  /// Goes on where save() was called, on as many ranks. Throws DataError for a file of anything else.
  OnlineTrainer(Runtime& runtime, const std::filesystem::path& saved, Ranks* ranks = nullptr);
  ~OnlineTrainer();
  OnlineTrainer(OnlineTrainer&&) noexcept;
  OnlineTrainer& operator=(OnlineTrainer&&) noexcept;

  const Config& config() const;
  const OnlineOptions& options() const;

  /// The mesh of the frames from now on, which is copied. Frames before it are not continued. In parts:
  /// throws on every rank when one does or they disagree on their borders, and then no mesh is set.
  void set_mesh(const MeshArrays& mesh);
  /// A field of the frame that is being made, [nodes, components]; copied. A field that is not set again
  /// keeps its values; one whose new values were refused has none.
  void set_field(std::string_view name, Numbers values);
  /// It has no values then, until set_field.
  void forget_field(std::string_view name);
  /// Ends the frame. With enough frames before it there is a sample more, which the normalisers learn from
  /// unless it is held out. Throws InvalidArgument when a field is not set, and ConfigError for more world
  /// edges than data.world_edges_per_node; then nothing is stored. train() throws the latter where the noise
  /// makes more.
  void append();
  /// The frames from now on do not continue those before: the solver was started anew.
  void restart_trajectory();

  struct Trained {
    int64_t steps = 0;  ///< taken by this call
    double loss =
        0;  ///< of the last step, of normalised targets: the mean squared error, or what [loss] says
    double seconds = 0;  ///< that the call took
  };
  /// Takes up to `steps` steps; fewer where the next one, as long as the longest so far, would not end within
  /// `seconds`. None while there is no sample. Of several ranks all take as many as the one that may take the
  /// fewest. Throws DataError when the loss is not finite.
  Trained train(int64_t steps, double seconds = std::numeric_limits<double>::infinity());

  /// The loss (its mean squared error, or what [loss] says) over the held-out samples of all ranks; NaN
  /// without any.
  double held_out_loss();

  int64_t steps() const;    ///< taken so far
  int64_t samples() const;  ///< in the buffer, for training
  int64_t seen() const;     ///< samples so far, kept or not

  /// Writes everything to one file, which is also a checkpoint: MeshPredictor opens it. (To predict with the
  /// present weights no file is needed: MeshPredictor takes the trainer.) The old file stays as
  /// it was when that fails. Each rank writes a path of its own: the model is the same in all, the buffer the
  /// rank's. Throws DataError.
  void save(const std::filesystem::path& path) const;

 private:
  friend class MeshPredictor;
  struct State;
  struct Delete {
    void operator()(State* state) const;
  };
  State& state() const;
  std::unique_ptr<State, Delete> state_;
};

}  // namespace meshgrad
#pragma GCC visibility pop
