// SPDX-License-Identifier: Apache-2.0
// Weights as a file for other frameworks, and such a file, edited or trained on elsewhere, as a checkpoint
// again. docs/weights.md describes the layout.
//
// Tensors: the parameters by their names, matrices as [out, in], in f32 (f64 of a run in f64), and
// normalizer.{nodes,edges,targets,world}.{mean,std} in f64. Metadata: "meshgrad", a JSON description of what
// no shape shows; "config", "data" and "data_fingerprint" as checkpoints have them.
#pragma once
#include <meshgrad/train/tools/extras/import_weights.h>

#include <filesystem>
#include <string>
#include <vector>

namespace meshgrad {

struct ExportReport {
  int64_t step = 0;
  int64_t parameters = 0;  ///< scalars
  bool average = false;    ///< the weights are the average that train.ema keeps
};

/// Writes the weights that a checkpoint predicts with. Throws DataError for a file that is no checkpoint, or
/// whose fields it does not describe; ConfigError for one of a task without meshes.
ExportReport export_weights(Runtime& runtime, const std::filesystem::path& checkpoint,
                            const std::filesystem::path& output);

/// Whether a file was written by export_weights.
bool is_exported(const std::filesystem::path& path);

/// Writes a checkpoint of step 0, with an optimizer that begins anew, from such a file: with the
/// configuration in it, and `settings` over that. Throws DataError for a description that is not that of the
/// configuration, and for tensors that are missing, without a place in the model, of another shape, or not
/// finite: with the tensor, what is needed and what is there.
ImportReport import_exported(Runtime& runtime, const std::filesystem::path& file,
                             const std::vector<std::string>& settings, const std::filesystem::path& output);

}  // namespace meshgrad
