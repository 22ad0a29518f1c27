// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/convert/sources/hdf5_layout.h>

#include <algorithm>
#include <map>
#include <set>

namespace meshgrad {

Hdf5Layout hdf5_layout(const std::vector<std::string>& paths) {
  Hdf5Layout layout;
  // By the path of a group, at any depth, what is in it.
  std::map<std::string, std::vector<std::string>> contents;
  for (const std::string& path : paths) {
    for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1))
      contents[path.substr(0, slash + 1)].push_back(path.substr(slash + 1));
  }
  std::map<std::vector<std::string>, std::vector<std::string>> alike;
  for (const auto& [group, members] : contents) alike[members].push_back(group);
  for (const auto& [members, groups] : alike) {
    const bool more = groups.size() * members.size() > layout.groups.size() * layout.members.size();
    if (groups.size() < 2 || !more) continue;
    layout.groups = groups;
    layout.members = members;
  }
  if (layout.groups.empty()) return {{""}, paths, {}};
  std::sort(layout.groups.begin(), layout.groups.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;  // numbers by their values
  });
  const std::set<std::string> groups(layout.groups.begin(), layout.groups.end());
  for (const std::string& path : paths) {
    bool inside = false;
    for (size_t slash = path.find('/'); slash != std::string::npos; slash = path.find('/', slash + 1))
      inside = inside || groups.contains(path.substr(0, slash + 1));
    if (!inside) layout.shared.push_back(path);
  }
  return layout;
}

}  // namespace meshgrad
