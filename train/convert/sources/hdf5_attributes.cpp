// SPDX-License-Identifier: Apache-2.0
#ifdef MESHGRAD_HAVE_HDF5
#include <meshgrad/train/convert/sources/hdf5_attributes.h>

#include <algorithm>
#include <cmath>

#include <meshgrad/engine/error.h>
#include <meshgrad/train/convert/sources/hdf5_dataset.h>

namespace meshgrad {

std::string hdf5_text(hid_t object, const char* attribute_name) {
  if (H5Aexists(object, attribute_name) <= 0) return {};
  const Hdf5Handle attribute(H5Aopen(object, attribute_name, H5P_DEFAULT), H5Aclose);
  const Hdf5Handle type(H5Aget_type(attribute.id()), H5Tclose);
  const Hdf5Handle space(H5Aget_space(attribute.id()), H5Sclose);
  if (!attribute || !type || !space || H5Tget_class(type.id()) != H5T_STRING) return {};
  const hssize_t points = H5Sget_simple_extent_npoints(space.id());
  if (points < 1 || points > 65535) return {};
  const auto count = static_cast<size_t>(points);
  std::string all;
  if (H5Tis_variable_str(type.id()) > 0) {
    std::vector<char*> texts(count, nullptr);
    const Hdf5Handle memory(H5Tcopy(H5T_C_S1), H5Tclose);
    H5Tset_size(memory.id(), H5T_VARIABLE);
    H5Tset_cset(memory.id(), H5Tget_cset(type.id()));
    if (H5Aread(attribute.id(), memory.id(), texts.data()) < 0) return {};
    for (const char* text : texts) all += std::string(text == nullptr ? "" : text) + ",";
    H5Dvlen_reclaim(memory.id(), space.id(), H5P_DEFAULT, texts.data());
  } else {
    const size_t width = H5Tget_size(type.id());
    std::string texts(width * count, '\0');
    if (H5Aread(attribute.id(), type.id(), texts.data()) < 0) return {};
    for (size_t i = 0; i < count; ++i) all += texts.substr(i * width, width) + ",";
  }
  std::erase(all, '\0');
  return all;
}

std::vector<std::string> hdf5_names(hid_t object, const char* attribute) {
  std::vector<std::string> names(1);
  for (const char c : hdf5_text(object, attribute)) {
    if (c == ',') {
      names.emplace_back();
    } else if (c != ' ') {
      names.back() += c;
    }
  }
  std::erase(names, "");
  return names;
}

std::optional<double> hdf5_number(hid_t object, const char* attribute_name) {
  if (H5Aexists(object, attribute_name) <= 0) return std::nullopt;
  const Hdf5Handle attribute(H5Aopen(object, attribute_name, H5P_DEFAULT), H5Aclose);
  const Hdf5Handle space(H5Aget_space(attribute.id()), H5Sclose);
  double value = 0;
  const bool single = attribute && space && H5Sget_simple_extent_npoints(space.id()) == 1;
  if (single && H5Aread(attribute.id(), H5T_NATIVE_DOUBLE, &value) >= 0) return value;
  return std::nullopt;
}

bool Hdf5Packing::is_missing(double stored) const {
  return std::ranges::any_of(
      missing, [&](double one) { return one == stored || (std::isnan(one) && std::isnan(stored)); });
}

Hdf5Packing hdf5_packing(hid_t dataset, const std::string& where) {
  const auto number_of = [&](const char* attribute) {
    const auto number = hdf5_number(dataset, attribute);
    if (!number && H5Aexists(dataset, attribute) > 0) {
      const std::vector<std::string> words = hdf5_names(dataset, attribute);
      throw data_error(where, fmt::format("one number as the attribute {}", attribute),
                       words.empty() ? "an array" : fmt::format("the text \"{}\"", words.front()),
                       "save the numbers themselves, and nan where one is missing");
    }
    return number;
  };
  Hdf5Packing packing;
  packing.scale = number_of("scale_factor").value_or(1);
  packing.offset = number_of("add_offset").value_or(0);
  packing.first_index = hdf5_number(dataset, "start_index").value_or(0);
  packing.connectivity = H5Aexists(dataset, "start_index") > 0 ||
                         hdf5_text(dataset, "cf_role").find("connectivity") != std::string::npos;
  for (const char* attribute : {"_FillValue", "missing_value"})
    if (const auto number = number_of(attribute)) packing.missing.push_back(*number);
  if (hdf5_text(dataset, "_Unsigned").starts_with("true")) {
    throw data_error(where, "numbers without the attribute _Unsigned", "_Unsigned = true",
                     "save them as unsigned integers");
  }
  return packing;
}

bool is_netcdf_dimension(hid_t dataset) {
  return hdf5_text(dataset, "CLASS").starts_with("DIMENSION_SCALE") &&
         hdf5_text(dataset, "NAME").starts_with("This is a netCDF dimension but not a netCDF variable");
}

}  // namespace meshgrad
#endif
