// SPDX-License-Identifier: Apache-2.0
// What an XDMF file says of its frames, before their numbers are read. Source: "XDMF Model and Format"
// (xdmf.org), versions 2 and 3; and the files that FEniCS, DOLFINx and meshio write.
#pragma once
#include <meshgrad/train/convert/sources/vtk_numbers.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace meshgrad {

/// Where the numbers of an array are.
struct XdmfItem {
  enum class Format : uint8_t {
    text,    ///< in the XDMF file itself
    hdf5,    ///< "FILE:/path/of/dataset"
    binary,  ///< a file of only numbers
  };
  Format format = Format::text;
  std::vector<int64_t> shape;  ///< Dimensions
  VtkType type;                ///< of text and binary
  bool big_endian = false;
  uint64_t seek = 0;  ///< bytes before the numbers of a binary file
  std::string text;   ///< the numbers, or the file

  int64_t size() const;  ///< product of the shape
  bool operator==(const XdmfItem& other) const;
};

struct XdmfMesh {
  std::string type;            ///< TopologyType in lower case: "triangle", "mixed", ..
  int64_t nodes_per_cell = 0;  ///< NodesPerElement, where the type does not say it
  int64_t first_node = 0;      ///< BaseOffset
  XdmfItem cells;
  XdmfItem points;
  int dim = 3;  ///< of GeometryType: XY or XYZ
  bool operator==(const XdmfMesh& other) const = default;
};

struct XdmfArray {
  std::string name;
  bool of_points = true;  ///< Center: Node, not Cell
  XdmfItem item;
};

struct XdmfFrame {
  std::optional<double> time;
  std::shared_ptr<const XdmfMesh> mesh;
  std::vector<XdmfArray> arrays;
};

struct XdmfSeries {
  std::vector<XdmfFrame> frames;      ///< in the order of their times, where all have one; times are finite
  std::vector<XdmfArray> still;       ///< arrays of every frame, on the first one's mesh
  std::vector<std::string> left_out;  ///< "a: not on nodes or cells", for a warning
};

/// The frames of the temporal collections of the file, those of one time together; without one, its grid.
/// The first collection says which times there are: of a later one that lacks some, nothing is read.
/// Meshes that are included from another grid (xi:include) are resolved, by XPaths of names, attributes and
/// numbers alone, which take a time linear in the file. Defined for any bytes; throws
/// DataError naming the file and the element for what is not read: partitioned and structured grids, items
/// that are computed from others, FEniCS checkpoints.
XdmfSeries parse_xdmf(std::span<const std::byte> file, const std::string& name);

}  // namespace meshgrad
