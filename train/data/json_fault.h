// SPDX-License-Identifier: Apache-2.0
// What is wrong with a JSON text, in words for the user.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace meshgrad {

/// What follows "got" in an error about `text`, in which the JSON library found `fault`.
std::string json_fault(std::string_view text, const nlohmann::json::exception& fault);

}  // namespace meshgrad
