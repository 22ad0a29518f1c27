// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/program/errors_text.h>

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace meshgrad::cli {

nlohmann::ordered_json errors_json(const std::vector<FieldError>& fields) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const FieldError& field : fields) {
    json[field.name] = {{"unit", field.unit},
                        {"rmse", field.rmse},
                        {"mae", field.mae},
                        {"relative_l2", field.relative_l2},
                        {"baseline_rmse", field.baseline_rmse}};
    if (std::isfinite(field.nearest_rmse)) json[field.name]["nearest_case_rmse"] = field.nearest_rmse;
  }
  return json;
}

std::string errors_header(std::string_view title) {
  return fmt::format("{:<26} {:>9} {:>9} {:>11} {:>9}  unit\n", title, "RMSE", "MAE", "relative L2",
                     "/baseline");
}

std::string errors_lines(const std::vector<FieldError>& fields, std::string_view where) {
  std::string text;
  for (const FieldError& field : fields) {
    const std::string name = where.empty() ? field.name : fmt::format("{}, {}", field.name, where);
    const double l2 = field.relative_l2;  // large where the truth is close to 0
    const std::string relative = !std::isfinite(l2) ? "-"
                                 : l2 < 1e3         ? fmt::format("{:.4f}", l2)
                                                    : fmt::format("{:.3e}", l2);
    const double ratio = field.rmse / field.baseline_rmse;
    text += fmt::format("{:<26} {:>9.3e} {:>9.3e} {:>11} {:>9}  {}\n", name, field.rmse, field.mae, relative,
                        std::isfinite(ratio) ? fmt::format("{:.3f}", ratio) : "-",
                        field.unit.empty() ? "-" : field.unit);
  }
  return text;
}

std::string note_lines(std::string_view text) {
  return wrapped(text, kTextWidth, "note      ", "          ") + "\n";
}

std::vector<std::string> fields_worse_than_baseline(const std::vector<FieldError>& fields) {
  std::vector<std::string> names;
  for (const FieldError& field : fields)
    if (!(field.rmse <= field.baseline_rmse)) names.push_back(field.name);
  return names;
}

std::string baseline_notes(std::string_view baseline, const std::vector<FieldError>& fields) {
  if (baseline.empty()) return "";
  const std::vector<std::string> worse = fields_worse_than_baseline(fields);
  std::string text =
      note_lines(fmt::format("baseline: {}; /baseline is RMSE over that of the baseline", baseline));
  std::vector<std::string> nearest, worse_than_nearest;
  for (const FieldError& field : fields) {
    if (!std::isfinite(field.nearest_rmse)) continue;
    nearest.push_back(fmt::format("{:.3f} ({})", field.rmse / field.nearest_rmse, field.name));
    if (!(field.rmse <= field.nearest_rmse)) worse_than_nearest.push_back(field.name);
  }
  if (!nearest.empty()) {
    text += note_lines("RMSE over that of the nearest training case, alike in what the model reads: " +
                       listed(nearest));
  }
  if (!worse_than_nearest.empty())
    text += note_lines("worse than the nearest training case: " + listed(worse_than_nearest));
  std::vector<std::string> centred;
  for (const FieldError& field : fields)
    if (field.centred) centred.push_back(field.name);
  if (!centred.empty())
    text += note_lines("far from zero, so that relative L2 is relative to the variation: " + listed(centred));
  if (!worse.empty()) text += note_lines("worse than the baseline: " + listed(worse));
  return text;
}

std::string given_notes(const std::vector<std::string>& inputs_from_data,
                        const std::vector<std::string>& held_types, RolloutBoundary boundary) {
  std::string text;
  if (!inputs_from_data.empty()) {
    text += note_lines("inputs that are not predicted, which rollouts read from the data at every step: " +
                       listed(inputs_from_data));
  }
  if (held_types.empty()) return text;
  return text +
         note_lines(fmt::format(
             "nodes of type {} are not predicted and count in no error: rollouts {}", listed(held_types),
             boundary == RolloutBoundary::data ? "give them the values of the data at every step"
                                               : "hold their values of the first frame"));
}

}  // namespace meshgrad::cli
