// SPDX-License-Identifier: Apache-2.0
// Trajectories with the content of one in another split: a model is tested there with what it was trained on.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include <meshgrad/train/data/packed_file_writer.h>

namespace meshgrad {

class LeakFinder {
 public:
  void add(const PackedFileWriter::Trajectory& trajectory);
  /// The first that was found, and how many more; empty: none.
  std::string text() const;

 private:
  struct Origin {
    std::string name, split;
  };
  std::map<std::pair<uint64_t, uint64_t>, Origin> contents_;  // by a hash of mesh and fields
  int64_t count_ = 0;
  std::string first_;
};

}  // namespace meshgrad
