// SPDX-License-Identifier: Apache-2.0
// From a frame of an XDMF file to its grid.
#pragma once
#include <meshgrad/train/convert/sources/vtk_grid.h>
#include <meshgrad/train/convert/sources/xdmf_document.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace meshgrad {

/// Reads a data set of an HDF5 file. Throws DataError.
using ReadHdf5Numbers =
    std::function<VtkValues(const std::filesystem::path& file, const std::string& dataset)>;

/// The file that holds the numbers of an item of an XDMF file; empty for text. Throws DataError for one that
/// is not in the document's folder or below.
std::filesystem::path file_of(const XdmfItem& item, const std::filesystem::path& document);

/// Reads frames one after another; the mesh is read once as long as it stays the same.
class XdmfGridReader {
 public:
  /// Files that items name are relative to the folder of `path`, the XDMF file.
  XdmfGridReader(std::filesystem::path path, ReadHdf5Numbers read_hdf5);
  /// The frame with the arrays that are `still`. Its cells are linear. Throws DataError naming file and array
  /// for numbers that are missing or do not fit.
  VtkGrid read(const XdmfFrame& frame, std::span<const XdmfArray> still = {});

 private:
  VtkValues numbers(const XdmfItem& item, const std::string& array) const;
  void read_array(const XdmfArray& array, VtkGrid& grid) const;
  void read_mesh(const XdmfMesh& mesh);
  void read_cells(const XdmfMesh& mesh);
  void read_mixed(const std::vector<int64_t>& stream);

  std::filesystem::path path_;
  ReadHdf5Numbers read_hdf5_;
  std::shared_ptr<const XdmfMesh> mesh_;  // of `known_`
  VtkGrid known_;
};

}  // namespace meshgrad
