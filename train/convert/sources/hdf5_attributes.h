// SPDX-License-Identifier: Apache-2.0
// Attributes of HDF5 objects, and what those of NetCDF say of a data set's numbers. Sources: CF Metadata
// Conventions 1.11 (sections 2.5.1 and 8.1), UGRID 1.0 (start_index), and the dimension scales of netCDF-4.
#pragma once
#include <hdf5.h>

#include <optional>
#include <string>
#include <vector>

namespace meshgrad {

/// The text of an attribute, several joined by commas; empty where there is none.
std::string hdf5_text(hid_t object, const char* attribute);
/// Its names, which commas separate, without blanks.
std::vector<std::string> hdf5_names(hid_t object, const char* attribute);
/// The number of an attribute of one.
std::optional<double> hdf5_number(hid_t object, const char* attribute);

/// How stored numbers give the values of a data set.
struct Hdf5Packing {
  double scale = 1, offset = 0;  ///< scale_factor, add_offset
  std::vector<double> missing;   ///< stored numbers that mean no value: _FillValue, missing_value
  double first_index = 0;        ///< start_index: where connectivity begins to count
  bool connectivity = false;     ///< numbers of points, where no value is -1

  /// Whether the values are no longer integers.
  bool scales() const { return scale != 1 || offset != 0; }
  bool is_missing(double stored) const;
};
/// Throws DataError naming `where` for signed numbers that are to be read as unsigned.
Hdf5Packing hdf5_packing(hid_t dataset, const std::string& where);

/// Whether a data set is only a dimension of netCDF-4, which has no values.
bool is_netcdf_dimension(hid_t dataset);

}  // namespace meshgrad
