// SPDX-License-Identifier: Apache-2.0
// Files of XDMF with their numbers in themselves, and the grids and trajectories made of them.
#include <meshgrad/train/convert/sources/vtk_trajectory.h>
#include <meshgrad/train/convert/sources/xdmf_grid.h>

#include "fuzz/fuzz.h"

using namespace meshgrad;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fuzz::expect_value_or_error([&] {
    const XdmfSeries series = parse_xdmf(fuzz::bytes_of(data, size), "fuzz");
    XdmfGridReader reader("no folder/fuzz",
                          [](const std::filesystem::path&, const std::string&) -> VtkValues {
                            throw data_error("fuzz", "no HDF5", "some", "none");
                          });
    VtkTrajectory trajectory(reader.read(series.frames.front()), "fuzz", "", {});
    for (size_t i = 1; i < series.frames.size(); ++i) {
      const VtkGrid grid = reader.read(series.frames[i]);
      if (VtkGrid frame = grid; trajectory.take_cell_order(frame)) trajectory.append(frame, "fuzz");
    }
    validate(trajectory.finish(false));
  });
  return 0;
}
