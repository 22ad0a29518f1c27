// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/regular_file.h>
#include <meshgrad/train/tools/extras/page.h>

#include <utility>

namespace meshgrad {
namespace {

constexpr std::string_view kGenerator = "<meta name=\"generator\" content=\"meshgrad\">";

bool is_page(const std::filesystem::path& path) {
  constexpr std::size_t kHead = 1024;
  return read_file(path, kHead).find(kGenerator) != std::string::npos;
}

}  // namespace

std::string make_page(std::string_view page, std::string_view json) {
  constexpr std::string_view kPlace = "id=\"data\">";
  const size_t at = page.find(kPlace);
  check_internal(at != page.npos, "a page without an element #data");
  check_internal(page.find(kGenerator) != page.npos, "a page without its generator");
  std::string text(page.substr(0, at + kPlace.size()));
  text.reserve(page.size() + json.size());
  for (const char c : json) c == '<' ? text += "\\u003c" : text += c;  // only "</" could end the element
  return text += page.substr(at + kPlace.size());
}

OutputFile page_output(std::string option, std::filesystem::path path,
                       std::vector<std::filesystem::path> taken) {
  return {.path = std::move(path),
          .option = std::move(option),
          .kind = "a page of meshgrad",
          .is_of_kind = is_page,
          .taken = std::move(taken)};
}

}  // namespace meshgrad
