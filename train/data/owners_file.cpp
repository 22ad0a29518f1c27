// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/mapped_file.h>
#include <meshgrad/train/data/owners_file.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace meshgrad {

std::vector<int32_t> parse_owners(std::string_view text, std::string_view file) {
  constexpr size_t kShown = 40;
  std::vector<int32_t> owners;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    int32_t owner = -1;
    const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), owner);
    if (error != std::errc() || stop != line.data() + line.size() || owner < 0) {
      throw data_error(fmt::format("{}:{}", file, owners.size() + 1),
                       "the number of a rank, and nothing else",
                       fmt::format("\"{}\"", line.substr(0, kShown)),
                       "write a line for each node of the mesh, as METIS's gpmetis and mpmetis do");
    }
    owners.push_back(owner);
  }
  return owners;
}

std::vector<int32_t> read_owners(const std::filesystem::path& path) {
  const MappedFile file(path);
  return parse_owners({reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
                      path.string());
}

}  // namespace meshgrad
