// SPDX-License-Identifier: Apache-2.0
// Packs simulation data of any known format into one file (.mgd) that Dataset opens.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <meshgrad/train/data/data_facts.h>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class SplitBy { automatic, trajectory, time };
enum class GraphOn { automatic, nodes, cells };

struct ConvertProgress {
  int64_t trajectories = 0;  ///< records read so far
  int64_t total_trajectories = 0;
  uint64_t bytes = 0;  ///< of input
  uint64_t total_bytes = 0;
};

struct ConvertOptions {
  std::filesystem::path input;  ///< a folder, a file, or a manifest of some
  std::filesystem::path output;
  std::string format = "auto";  ///< "auto", or one of format_names()
  /// Fractions of train, valid and test. Empty: the splits that the names of several files or their folders
  /// say (train, valid, test), and 0.8, 0.1, 0.1 where none says one.
  std::vector<double> split;
  /// automatic: by trajectory, in order; by time (contiguous ranges of frames) where there are fewer
  /// trajectories than splits.
  SplitBy split_by = SplitBy::automatic;
  /// A text file that names the files or trajectories of each split (split_list.h); instead of `split`.
  std::filesystem::path split_list;
  std::vector<std::string> fields;  ///< names of the rows of HDF5 nodal_data; empty: from the file
  /// Which array of an NPZ or HDF5 file is what: from "positions", "cells", "edges", "facets", "types",
  /// "cell:types", "facet:types" or the name of a field to the array's name, in HDF5 its path.
  std::map<std::string, std::string> map;
  /// Where to write the map of the first trajectory, given or guessed, as text (array_map.h).
  std::filesystem::path save_map;
  /// The axes of an array of NPZ or HDF5 whose shape has two readings: "components,nodes".
  std::map<std::string, std::string> axes;
  std::optional<int>
      first_node;  ///< the number of the first node in arrays of cells, edges and facets: 0 or 1
  double dt = 0;   ///< seconds between frames; 0: as in the file
  std::map<std::string, std::string> units;  ///< field -> unit
  /// What the cells are. Empty: what their size says; 4 nodes in 3-D are a quad or a tetrahedron by the
  /// shape of the first mesh (are_quads_in_space in mesh_check.h).
  std::optional<CellKind> cells;
  /// What becomes a node of the graph. automatic: cells where float fields are on cells and none on nodes.
  GraphOn graph = GraphOn::automatic;
  /// A field on nodes that tells how far they have moved: of a mesh whose positions are those at rest it
  /// makes the field "world_pos". Empty: a field of such a name; "none": no field.
  std::string displacement;
  /// true: edges that are listed stay as they are, one way, loops and parallel edges too; false: they join
  /// both ways, once, and loops are dropped. Nothing: false, except that a list of a graph without positions
  /// for which the two differ is an error.
  std::optional<bool> directed;
  std::string node_types;  ///< the array of node types; empty: "node_type", if there is one
  /// Which number in the names of VTK files, or of groups of HDF5, counts frames: "run_{case}_{frame}.vtu"
  /// (series_names.h). Empty: the one that changes, if only one can be meant.
  std::string series;
  /// Numbered files of VTK and groups of HDF5 are a trajectory each, and no frames of one.
  bool separate_frames = false;
  /// Whether a packed file at `output`, and a map at `save_map`, are replaced. Other files never are.
  bool replace = true;
  std::vector<std::filesystem::path> also_read;  ///< files that these options were read from: kept, too
  std::function<void(const ConvertProgress&)> progress;  ///< called after every record
};

/// A trajectory, or a part of one, and what it was read from.
struct ReadTrajectory {
  std::string name, split;
  int64_t frames = 0;
  double dt = 0;                   ///< 0: unknown
  std::vector<double> times;       ///< seconds; empty: unknown
  std::vector<std::string> files;  ///< below the input's folder
  std::string list;                ///< of VTK's frames (.pvd, .series), likewise; empty: none
};

/// The facts of what was packed, with extents, and how it was read.
struct ConvertReport : DataFacts {
  std::string format;
  /// Of NPZ and HDF5 files: which array of the first trajectory was read as what, as in the options.
  std::map<std::string, std::string> map;
  std::vector<ReadTrajectory> read;  ///< as they were packed, of each split in its order of `splits`
  uint64_t input_bytes = 0;
  uint64_t output_bytes = 0;
  std::vector<std::string> warnings;  ///< what was repaired or assumed; like ones are counted, not repeated
  std::vector<std::string> notes;     ///< what was decided where nothing said it; no reason to worry
};

/// Names of the formats that can be read: "deepmind", ...
std::vector<std::string> format_names();

/// Reads one trajectory at a time; memory does not grow with the data. The output appears when all is well,
/// or not at all. Throws DataError for bad data (naming file, record and field) and for an output that may
/// not be replaced, ConfigError for bad options. `input` may also be a manifest, as write_manifest writes it:
/// a text that says which frames of which files are a trajectory, and in which split.
ConvertReport convert(const ConvertOptions& options);

/// Sets in `options` what `packed` was read with, but for --series, which is about names of files, and --dt,
/// as other data have times of their own. Nothing for a file of an earlier version.
void use_options_of(const Dataset& packed, ConvertOptions& options);

/// Whether `output` is a packed file that convert() would make again: with these options, of files with the
/// names and contents that it was made of. Reads all files once, unless it was made otherwise.
bool is_up_to_date(const ConvertOptions& options);

/// Writes what `output` was read from as a text that convert() reads. Throws DataError where `target` is
/// there and is no manifest, or is the input, and without `replace` in the options also where it says
/// something else.
void write_manifest(const ConvertOptions& options, const std::filesystem::path& target);

}  // namespace meshgrad
#pragma GCC visibility pop
