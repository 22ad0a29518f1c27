// SPDX-License-Identifier: Apache-2.0
// SIGBUS: a mapped data file was cut short, or its disk failed.
#pragma once

namespace meshgrad::cli {

/// From now on reading such a file gives zeros, which the reader notices and reports as a DataError.
void catch_bus_errors();

}  // namespace meshgrad::cli
