// SPDX-License-Identifier: Apache-2.0
// Text in the XML and HTML files of a run.
#pragma once
#include <string>
#include <string_view>

namespace meshgrad {

/// The text as the content of an element or of an attribute in double quotes.
inline std::string escaped_xml(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

}  // namespace meshgrad
