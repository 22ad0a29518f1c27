// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/xdmf_source.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <set>
#include <utility>

#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/convert/sources/grid_frames.h>
#include <meshgrad/train/convert/sources/hdf5_arrays.h>
#include <meshgrad/train/convert/sources/xdmf_grid.h>
#include <meshgrad/train/data/mapped_file.h>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

XdmfSeries series_of(const fs::path& path) {
  const MappedFile file(path);
  return parse_xdmf(file.bytes(), path.string());
}

std::vector<fs::path> files_of(const XdmfSeries& series, const fs::path& document) {
  std::set<fs::path> files;
  const auto add = [&](const XdmfItem& item) {
    if (fs::path file = file_of(item, document); !file.empty()) files.insert(std::move(file));
  };
  for (const XdmfFrame& frame : series.frames) {
    add(frame.mesh->cells);
    add(frame.mesh->points);
    for (const XdmfArray& array : frame.arrays) add(array.item);
  }
  for (const XdmfArray& array : series.still) add(array.item);
  return {files.begin(), files.end()};
}

/// Data sets of the HDF5 files beside the XDMF file. The latest few stay open: a series may have a file a
/// frame.
class Hdf5Numbers {
 public:
  VtkValues read(const fs::path& file, const std::string& dataset) {
    constexpr size_t kOpen = 16;
    if (files_.size() >= kOpen && !files_.contains(file)) files_.clear();
    auto& arrays = files_[file];
    if (!arrays) {
      const RegularFile exists(file);
      arrays = std::make_unique<Hdf5Arrays>(file);
    }
    const NamedArray array = arrays->read(dataset, dataset, file.string());
    if (!array.numbers) {
      throw data_error(fmt::format("{}: {}", file.string(), dataset), "a data set of numbers", "none",
                       "copy both files again");
    }
    return vtk_values(array.bytes, {array.array.kind, static_cast<size_t>(array.array.bytes)}, false);
  }

 private:
  std::map<fs::path, std::unique_ptr<Hdf5Arrays>> files_;
};

/// Of a frame's numbers, as f64.
uint64_t unpacked_bytes(const XdmfFrame& frame) {
  int64_t numbers = frame.mesh->cells.size() + frame.mesh->points.size();
  for (const XdmfArray& array : frame.arrays) numbers += array.item.size();
  constexpr int64_t kMost = int64_t{1} << 36;  // what a file says is not believed beyond
  return numbers < 0 || numbers > kMost ? 0 : static_cast<uint64_t>(numbers) * sizeof(double);
}

std::unique_ptr<TrajectorySource> open_here(const fs::path& path, const std::string& node_types,
                                            const WarningCallback& warn, const AliveCallback& alive) {
  XdmfSeries series = series_of(path);
  auto hdf5 = std::make_shared<Hdf5Numbers>();
  auto reader = std::make_shared<XdmfGridReader>(
      path, [hdf5](const fs::path& file, const std::string& dataset) { return hdf5->read(file, dataset); });
  uint64_t bytes = RegularFile(path).bytes();
  for (const fs::path& file : files_of(series, path)) bytes += RegularFile(file).bytes();
  const auto still = std::make_shared<const std::vector<XdmfArray>>(std::move(series.still));
  std::vector<GridFrame> frames;
  const auto count = static_cast<uint64_t>(series.frames.size());
  for (size_t i = 0; i < series.frames.size(); ++i) {
    XdmfFrame& frame = series.frames[i];
    std::string name = i == 0 ? path.string() : fmt::format("{}: frame {}", path.string(), i);
    frames.push_back(
        {std::move(name), frame.time, bytes / count, [reader, alive, still, frame = std::move(frame)] {
           alive(unpacked_bytes(frame));
           return reader->read(frame, *still);
         }});
  }
  if (!series.left_out.empty() && warn) {
    frames.front().read =
        [read = frames.front().read, warn,  // once, with the data
         text = fmt::format("[{}] left out: {}", path.string(), fmt::join(series.left_out, "; "))] {
          warn(text);
          return read();
        };
  }
  return open_grids(std::move(frames), node_types, warn);
}

}  // namespace

std::vector<fs::path> files_of_xdmf(const fs::path& path) {
  std::vector<fs::path> files = files_of(series_of(path), path);
  for (const fs::path& file : files) {
    if (std::error_code none; fs::exists(file, none)) continue;
    throw data_error(path.string(), "the files that it names", "no " + file.filename().string(),
                     "copy the missing files beside it");
  }
  return files;
}

std::unique_ptr<TrajectorySource> open_xdmf(const fs::path& path, const std::string& node_types,
                                            const WarningCallback& warn) {
  uint64_t bytes = RegularFile(path).bytes();
  for (const fs::path& file : files_of_xdmf(path)) bytes += RegularFile(file).bytes();
  return hdf5_in_child(
      path, bytes,
      [path, node_types](const WarningCallback& in_child, const AliveCallback& alive) {
        return open_here(path, node_types, in_child, alive);
      },
      warn);
}

}  // namespace meshgrad
