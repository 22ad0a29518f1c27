// SPDX-License-Identifier: Apache-2.0
// Errors of predictions as text and JSON, alike in every command.
#pragma once
#include <meshgrad/train/learn/task/evaluation.h>

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad::cli {

/// An object: name -> {unit, rmse, mae, relative_l2, baseline_rmse, nearest_case_rmse where there is one}; a
/// value that is not finite is null.
nlohmann::ordered_json errors_json(const std::vector<FieldError>& fields);

/// The header of a table of errors: `title` over the names.
std::string errors_header(std::string_view title);
/// A line a field, in its unit; `where` follows the name ("velocity, steps 1 to 10").
std::string errors_lines(const std::vector<FieldError>& fields, std::string_view where = {});

/// Fields whose RMSE is not at most that of the baseline: larger, or NaN.
std::vector<std::string> fields_worse_than_baseline(const std::vector<FieldError>& fields);
/// What the baseline is (Evaluation::baseline), which fields are worse, and which are far from zero, as
/// notes.
std::string baseline_notes(std::string_view baseline, const std::vector<FieldError>& fields);

/// "note      TEXT", wrapped to 80 columns.
std::string note_lines(std::string_view text);
/// What a rollout takes from the data, as notes.
std::string given_notes(const std::vector<std::string>& inputs_from_data,
                        const std::vector<std::string>& held_types, RolloutBoundary boundary);

}  // namespace meshgrad::cli
