// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/tools/extras/page.h>

namespace meshgrad {

std::string make_page(std::string_view page, std::string_view json) {
  constexpr std::string_view kPlace = "id=\"data\">";
  const size_t at = page.find(kPlace);
  check_internal(at != page.npos, "a page without an element #data");
  std::string text(page.substr(0, at + kPlace.size()));
  text.reserve(page.size() + json.size());
  for (const char c : json) c == '<' ? text += "\\u003c" : text += c;  // only "</" could end the element
  return text += page.substr(at + kPlace.size());
}

}  // namespace meshgrad
