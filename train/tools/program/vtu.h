// SPDX-License-Identifier: Apache-2.0
// Simulation frames for ParaView and VTK: one VTU file a frame, one PVD file that lists the frames of a
// series.
#pragma once
#include <meshgrad/train/tools/program/point_field.h>

#include <filesystem>
#include <span>
#include <string>

namespace meshgrad {

/// Writes an UnstructuredGrid (VTK XML 1.0, UInt64 headers, raw appended data) with point fields. Positions
/// and two-component fields are padded with a zero to three, as VTK wants vectors. The mesh's node types, if
/// it has them, become the i32 field node_type. Cells are those of
/// the source: triangles among quads, wedges, pyramids, polygons. In a graph on cells the mesh is that of the
/// source, and fields are of cells, unless it moves. Without cells the edges of the data become lines (not
/// those that were made, nor across a periodic border), and without edges each node a vertex. `time` is
/// stored as the field TimeValue, which ParaView shows. Numbers with an offset are written as Float64. Goes
/// through AtomicFile. InvalidArgument when sizes do not fit or a name is empty or occurs twice; DataError
/// when the file cannot be written. `positions`, if given, of 2 or 3 components, stand for the mesh's.
void write_vtu(const std::filesystem::path& path, const MeshView& mesh, std::span<const PointField> fields,
               double time, const PointField* positions = nullptr);

struct PvdEntry {
  double time = 0;
  std::string file;  ///< relative to the PVD file
};

/// Writes the list of frames that opens as one animation.
void write_pvd(const std::filesystem::path& path, std::span<const PvdEntry> entries);

}  // namespace meshgrad
