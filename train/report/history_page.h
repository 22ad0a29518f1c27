// SPDX-License-Identifier: Apache-2.0
// The parts of the history's page that are the same for every history.
#pragma once
#include <string_view>

namespace meshgrad {

/// Colours, for light and dark, with one variable --tag-N for each Tag; and the layout.
extern const std::string_view kHistoryPageStyle;

/// Draws #timeline and #map from the JSON in #data.
extern const std::string_view kHistoryPageScript;

}  // namespace meshgrad
