// SPDX-License-Identifier: Apache-2.0
// What to make of a warning of a conversion.
#pragma once
#include <string>
#include <string_view>

#include <meshgrad/train/convert/data_check.h>

namespace meshgrad {

/// A warning "[PLACE] TEXT" of a conversion with why it matters and what to do.
Finding finding_of_warning(const std::string& warning);

/// Whether the packed file keeps the warning, since nothing else in it shows the cause.
bool lasts_in_packed_file(std::string_view warning);

}  // namespace meshgrad
