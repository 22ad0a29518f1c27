// SPDX-License-Identifier: Apache-2.0
// Data of any format that convert() reads, as a data set in memory-mapped pages without a file's name.
#pragma once
#include <meshgrad/train/convert/convert.h>

namespace meshgrad::cli {

/// Whether a path is a packed file, or by its name meant to be one: a damaged one is no input of a
/// conversion.
bool names_packed_file(const std::filesystem::path& path);

/// Converts `options.input` into a file in TMPDIR that has no name once this returns: then nothing is left of
/// it however the process ends. Throws as convert() does, and DataError for TMPDIR.
Dataset packed_copy(ConvertOptions options, ConvertReport& report);

/// The notes of a conversion, and what it read, a line each.
void print_read(const ConvertReport& report);

}  // namespace meshgrad::cli
