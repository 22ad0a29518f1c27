// SPDX-License-Identifier: Apache-2.0
// Files of VTK, in XML and in the legacy form, and the trajectories made of them.
#include <meshgrad/train/convert/sources/vtk_grid.h>
#include <meshgrad/train/convert/sources/vtk_trajectory.h>

#include "fuzz/fuzz.h"

using namespace meshgrad;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = fuzz::bytes_of(data, size);
  for (const auto parse : {parse_vtk_xml, parse_vtk_legacy}) {
    fuzz::expect_value_or_error([&] {
      const VtkGrid grid = parse(file, "fuzz");
      VtkTrajectory trajectory(grid, "fuzz", "", {});
      if (VtkGrid frame = grid; trajectory.take_cell_order(frame)) trajectory.append(frame, "fuzz");
      validate(trajectory.finish(false));
    });
  }
  return 0;
}
