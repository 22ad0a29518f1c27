// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/data/json_fault.h>

#include <fmt/format.h>

#include <algorithm>

namespace meshgrad {

std::string json_fault(std::string_view text, const nlohmann::json::exception& fault) {
  using Parser = nlohmann::json;
  constexpr int kNoSuchKey = 403;
  if (const auto* syntax = dynamic_cast<const Parser::parse_error*>(&fault)) {
    const std::string_view before = text.substr(0, std::min(syntax->byte, text.size()));
    return fmt::format("an error in line {}", 1 + std::count(before.begin(), before.end(), '\n'));
  }
  if (dynamic_cast<const Parser::type_error*>(&fault) != nullptr) return "a value of another type";
  return fault.id == kNoSuchKey ? "one without a key that it needs" : "a number beyond the range of a double";
}

}  // namespace meshgrad
