// SPDX-License-Identifier: Apache-2.0
// Entities that an XML file defines for itself, as PETSc's XDMF names its HDF5 file by one.
#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace meshgrad {

/// The text with the values of entities in place of &NAME;, where its document type defines some (<!ENTITY
/// NAME "VALUE">); nothing where it defines none. Throws DataError naming `file` for an entity that is
/// another file or has an entity in its value, and for values that make the text longer than its own length
/// and a MiB.
std::optional<std::string> with_entities(std::string_view text, const std::string& file);

}  // namespace meshgrad
