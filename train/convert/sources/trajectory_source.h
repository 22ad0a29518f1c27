// SPDX-License-Identifier: Apache-2.0
// Trajectories as they come out of a file, one at a time, before they are packed.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <meshgrad/train/data/cell_list.h>
#include <meshgrad/train/data/field_info.h>

namespace meshgrad {

/// The numbers of a field; the type held is the field's dtype.
using FieldValues = std::variant<std::vector<float>, std::vector<int32_t>, std::vector<int64_t>>;

/// One field of a trajectory.
struct RawField {
  std::string name;
  int components = 1;
  bool dynamic = true;
  std::string unit;    ///< empty when unknown
  FieldValues values;  ///< [frames, rows, components]; [rows, components] when static
  FieldOn on = FieldOn::node;
  bool node_split = false;   ///< FieldInfo::node_split
  std::vector<double> wide;  ///< the same numbers where the source has f64 that f32 rounds coarsely; or empty
  /// Whether there is less in it than it has room for; the packer, which knows all trajectories, decides.
  bool third_is_empty = false;  ///< of 3 components in a plane the last is 0 or nan at every row
  bool repeats = false;         ///< it is dynamic, and the same in all frames

  DType dtype() const;
  size_t size() const;  ///< numbers in `values`
};

/// Cells of any shape by their faces: the sides of polygons, the faces of polyhedra.
struct FacedCells {
  std::vector<int32_t> nodes;      ///< of all faces, in order around each; a side has two
  std::vector<int64_t> face_ends;  ///< [faces]: where a face's nodes end
  std::vector<int64_t> cell_ends;  ///< [cells]: where a cell's faces end

  int64_t count() const { return static_cast<int64_t>(cell_ends.size()); }
};

/// One trajectory on one mesh. One frame is a trajectory too: a steady solution.
struct RawTrajectory {
  std::string name;    ///< "data/train.tfrecord: record 3", for errors; the packed file keeps the end
  int64_t record = 0;  ///< which record of its file; parts of a record whose mesh changes share it
  int64_t first_frame = 0;
  int64_t frames = 1;
  int64_t nodes = 0;
  int dim = 0;                         ///< 2 or 3; 0: a graph without positions, of edges
  std::vector<float> positions;        ///< [nodes, dim]
  std::vector<double> wide_positions;  ///< the same where f32 rounds them coarsely; or empty
  std::array<double, 3> origin{};      ///< what was subtracted from positions
  std::vector<int32_t> node_type;      ///< [nodes], or empty when the file has none
  std::vector<int32_t> cells;          ///< [cells, nodes_per_cell], or empty
  int nodes_per_cell = 0;
  std::optional<CellKind> cell_kind;  ///< where the source says what cells are, and not only their size
  FacedCells faced;                   ///< polygons or polyhedra in place of `cells`; packed as their edges
  std::vector<int32_t>
      cell_type;  ///< [cells]: the types of nodes in a graph on cells (cell_graph.h), or empty
  /// [2, edges]: senders, then receivers; or empty. Without cells they make the mesh, given one way or both
  /// ways. With cells, whose sides are the edges, they only say which edge each row of an edge field means.
  std::vector<int32_t> edges;
  bool directed = false;  ///< `edges` are packed as they are (listed_edges.h)
  /// Where `cells` are not those of the source (cell_graph.h): its cells, and its points [points, dim] in a
  /// graph on cells.
  CellList source_cells;
  std::vector<double> source_points;
  std::vector<std::string> frame_files;  ///< [frames], for errors, where each frame is a file; or empty
  double dt = 0;                         ///< seconds; 0 when unknown
  std::vector<double> times;             ///< [frames] in seconds; empty when unknown
  std::vector<RawField> fields;
  std::map<std::string, std::string> read_as;  ///< of arrays by name: which of them is what (array_map.h)

  /// Rows of a field as the source gives them: edge fields have one for each column of `edges`.
  int64_t rows(FieldOn on) const;
};

/// Called with one line of text for anything repaired or assumed.
using WarningCallback = std::function<void(const std::string&)>;

/// Reads trajectories in the order of the file.
class TrajectorySource {
 public:
  virtual ~TrajectorySource() = default;
  /// How many records next() will read, known before reading them.
  virtual int64_t records() const = 0;
  /// The next trajectory, or nothing at the end. Throws DataError naming file, record and field.
  virtual std::optional<RawTrajectory> next() = 0;
  /// Bytes of input read so far.
  virtual uint64_t bytes_read() const = 0;
};

/// Throws DataError, naming the trajectory and the field, when sizes disagree, a value is not finite, a node
/// type is negative or not below kMaxNodeTypes, a mesh has neither cells nor edges, two fields share a name,
/// or there is nothing in it.
void validate(const RawTrajectory& trajectory);

/// For a message: in double quotes, control characters as \xNN.
std::string escaped(std::string_view text);

/// The distance of times that are evenly spaced, to 0.1 % of it, and ascend; nothing for others and fewer
/// than two.
std::optional<double> even_spacing(std::span<const double> times);

/// What to say of times that even_spacing refuses.
std::string uneven_text(std::span<const double> times);

/// A dt that a file gives, in seconds. Throws DataError with `where` unless it is finite and above 0.
double checked_dt(double dt, std::string_view where);

/// Frames first..first + count - 1 of a trajectory.
RawTrajectory cut_frames(const RawTrajectory& trajectory, int64_t first, int64_t count);

}  // namespace meshgrad
