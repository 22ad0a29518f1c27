// SPDX-License-Identifier: Apache-2.0
// Warnings of a conversion, of which there may be one for each trajectory.
#pragma once
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace meshgrad {

/// Keeps the first of each kind of warning (the text after its "[place]") and counts the others.
class WarningList {
 public:
  void add(const std::string& text) {
    const size_t end = text.find("] ");
    std::string kind = end == std::string::npos ? text : text.substr(end + 2);
    std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });  // counts and places differ
    for (Entry& entry : entries_) {
      if (entry.kind != kind) continue;
      ++entry.more;
      return;
    }
    entries_.push_back({kind, text, 0});
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> texts;
    for (const Entry& entry : entries_) {
      texts.push_back(entry.more == 0 ? entry.text
                                      : fmt::format("{} (and {} more like it)", entry.text, entry.more));
    }
    return texts;
  }

 private:
  struct Entry {
    std::string kind, text;
    int64_t more = 0;
  };
  std::vector<Entry> entries_;
};

}  // namespace meshgrad
