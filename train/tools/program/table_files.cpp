// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/program/markup.h>
#include <meshgrad/train/tools/program/npz_file.h>
#include <meshgrad/train/tools/program/prediction_folder.h>
#include <meshgrad/train/tools/program/table_files.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace meshgrad {

TableFiles write_table(const PredictedTable& table, const std::string& source,
                       const std::filesystem::path& directory,
                       const std::vector<std::filesystem::path>& inputs) {
  const TableFiles files{directory / "predictions.csv", directory / "predictions.npz"};
  begin_folder(
      directory,
      [](const std::string& name) { return name == "predictions.csv" || name == "predictions.npz"; }, inputs);
  const std::vector<std::string> names = table.column_names();
  std::string text =
      fmt::format("# {}: {}, by the number of each {} from 0\n{}{}{},{}\n", kMarkWords, printable(source),
                  table.rows, table.rows, table.frames.empty() ? "" : ",frame",
                  table.classes.empty() ? "" : ",class", fmt::join(names, ","));
  const auto rows = std::ssize(table.numbers);
  for (size_t i = 0; i < table.numbers.size(); ++i) {
    text += fmt::format("{}", table.numbers[i]);
    if (!table.frames.empty()) text += fmt::format(",{}", table.frames[i]);
    if (!table.classes.empty()) text += fmt::format(",{}", table.classes[i]);
    for (size_t c = 0; c < names.size(); ++c)
      text += fmt::format(",{:.9g}", table.values[i * names.size() + c]);
    text += '\n';
  }
  write_file_atomically(files.csv, text);
  NpzFile npz;
  npz.add<int64_t>(table.rows, {rows}, table.numbers);
  if (!table.frames.empty()) npz.add<int64_t>("frame", {rows}, table.frames);
  if (!table.classes.empty()) npz.add<int32_t>("class", {rows}, table.classes);
  size_t first = 0;
  for (const PredictedTable::Group& group : table.groups) {
    const auto width = static_cast<size_t>(group.width);
    std::vector<double> values;
    for (size_t i = 0; i < table.numbers.size(); ++i) {
      const auto row = std::span(table.values).subspan(i * names.size() + first, width);
      values.insert(values.end(), row.begin(), row.end());
    }
    npz.add<double>(group.name, {rows, group.width}, values);
    first += width;
  }
  npz.write(files.npz);
  return files;
}

void add_graph_row(PredictedTable& table, const MeshPredictor& predictor, int64_t number, int64_t frame) {
  if (predictor.graph_targets().empty()) return;
  const bool first = table.groups.empty();
  table.rows = "graph";
  table.numbers.push_back(number);
  table.frames.push_back(frame);
  for (const FieldInfo& target : predictor.graph_targets()) {
    if (first) table.groups.push_back({target.name, target.components});
    std::vector<double> values(static_cast<size_t>(target.components));
    predictor.get_field(target.name, values);
    table.values.insert(table.values.end(), values.begin(), values.end());
  }
}

}  // namespace meshgrad
