# SPDX-License-Identifier: Apache-2.0
# The packages that a static libmeshgrad needs at link time.
find_dependency(fmt)
find_dependency(toml11)
find_dependency(nlohmann_json)
find_dependency(ZLIB)
find_dependency(PNG)
find_dependency(pugixml)
find_dependency(PkgConfig)
foreach(package IN ITEMS libzip libxxhash libhwy)
  pkg_check_modules(${package} REQUIRED IMPORTED_TARGET ${package})
endforeach()
