// SPDX-License-Identifier: Apache-2.0
// ReplayBuffer: a bounded choice of the samples that a solver has made, as data that tasks read.
#pragma once
#include <meshgrad/train/data/memory_data.h>
#include <meshgrad/train/embed/ghost_rows.h>
#include <meshgrad/train/embed/held_arrays.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>

#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

/// Where a sample went; no place when it was not kept.
struct StoredSample {
  std::string_view split;
  std::optional<int64_t> trajectory;
};

class ReplayBuffer {
 public:
  /// Samples are `frames` long. `node_types` is one more than the largest.
  ReplayBuffer(const OnlineOptions& options, int64_t frames, int64_t node_types, uint64_t seed,
               std::string train_split, std::string valid_split);

  /// Of arrays on the host, as set_field. `numbers`: of a mesh in parts, node_numbers.
  void set_mesh(const MeshArrays& mesh, std::vector<int32_t> numbers = {});
  void set_field(std::string_view name, Numbers values);
  /// Returns its index in the options.
  size_t forget_field(std::string_view name);
  /// Ends a frame; nothing where it makes no sample.
  std::optional<StoredSample> append();
  /// Throws InvalidArgument where append() would.
  void check_frame() const;
  void forget_frames() { window_.clear(); }
  /// As before the first set_mesh, but with the samples so far.
  void forget_mesh();
  /// Of the current frame; it has a mesh, and the field values.
  const MeshView& mesh() const { return data_->meshes[static_cast<size_t>(mesh_)].view; }
  std::span<float> current(std::string_view field);
  /// Of its mesh; null: there is none, or it is whole.
  const GivenPart* part() const;

  const OnlineOptions& options() const { return options_; }
  /// Of each mesh in data(); empty: meshes are whole.
  std::vector<GivenPart> parts() const;
  int64_t training_samples() const { return std::ssize(train_); }
  int64_t held_out_samples() const { return std::ssize(valid_); }
  int64_t seen() const { return seen_; }
  /// What it holds now; a later call of anything above makes it invalid.
  std::shared_ptr<const MemoryData> data();

  /// For a checkpoint; it refers to this buffer.
  CheckpointExtra saved() const;
  /// Into an empty buffer of the same options. Throws DataError for what saved() did not write.
  void load(const SafetensorsView& view);
  /// The options that saved() wrote, but for dim, dt and fields.
  static OnlineOptions saved_options(const SafetensorsView& view);

 private:
  using Values = std::vector<float>;  // all fields side by side, each [frames, rows, components]
  struct Mesh {
    Values positions;
    std::vector<int32_t> node_type;
    std::optional<GivenPart> part;
    std::vector<int32_t> numbers;  // of a part
  };
  struct Sample {
    int64_t mesh = 0;
    Values values;
  };
  size_t size_of_field(size_t field, int64_t mesh) const;
  Sample sample_of_window() const;
  std::optional<int64_t> place(std::deque<Sample>& in, Sample sample, int64_t number, int64_t capacity,
                               bool reservoir) const;
  void drop_unused_meshes();
  int64_t add_mesh(Mesh mesh, const MeshArrays& connections);

  OnlineOptions options_;
  int64_t frames_;
  uint64_t seed_;
  std::shared_ptr<MemoryData> data_;
  std::deque<Mesh> meshes_;      // that data_->meshes refer to
  int64_t mesh_ = -1;            // of the current frame
  std::vector<Values> current_;  // by field; empty: not set
  std::deque<Values> window_;    // the last frames, on mesh_
  std::deque<Sample> train_, valid_;
  int64_t seen_ = 0, learned_ = 0, held_ = 0;  // samples so far: all, for training, held out
};

}  // namespace meshgrad
