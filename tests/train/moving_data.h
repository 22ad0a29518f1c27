// SPDX-License-Identifier: Apache-2.0
// Small data sets of moving meshes.
#pragma once
#include <doctest/doctest.h>
#include <meshgrad/train/convert/convert.h>
#include <meshgrad/train/data/dataset.h>

#include <filesystem>
#include <string>

#include "train/process.h"
#include "train/scratch_directory.h"

namespace meshgrad::test {

/// Data of examples/moving-meshes, converted: 2 train trajectories, 1 valid, 1 test.
struct Moving {
  ScratchDirectory scratch;
  std::filesystem::path file;

  explicit Moving(const std::string& kind, int frames = 8) {
    const std::filesystem::path folder = scratch.path / kind;
    const Outcome made = Process({kind, "-o", folder.string(), "--size", "5", "--frames",
                                  std::to_string(frames), "--trajectories", "2,1,1"},
                                 source_file("examples/moving-meshes"))
                             .wait();
    REQUIRE(made.code == 0);
    file = scratch.path / (kind + ".mgd");
    ConvertOptions options;
    options.input = folder;
    options.output = file;
    convert(options);
  }
  Dataset dataset() const { return Dataset::open(file); }
};

}  // namespace meshgrad::test
