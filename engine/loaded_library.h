// SPDX-License-Identifier: Apache-2.0
// A shared library that is opened by name when it is first needed, instead of linked: programs run where it
// is not installed.
#pragma once
#include <fmt/format.h>

#include <dlfcn.h>

#include <string>
#include <vector>

namespace meshgrad {

/// Stays open until the process ends, as functions of it may be in use.
class LoadedLibrary {
 public:
  /// The first of `names` that can be opened.
  explicit LoadedLibrary(const std::vector<std::string>& names) : name_(names.front()) {
    for (const std::string& name : names) {
      file_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (file_ != nullptr) {
        name_ = name;
        break;
      }
      if (missing_.empty()) missing_ = dlerror();
    }
    if (file_ != nullptr) missing_.clear();
  }
  /// Sets the pointer to the function of this name, or to null.
  template <class Function>
  void load(Function& function, const char* symbol) {
    function = file_ == nullptr ? nullptr : reinterpret_cast<Function>(dlsym(file_, symbol));
    if (function == nullptr && missing_.empty()) missing_ = fmt::format("{} has no {}", name_, symbol);
  }
  /// Why the library or a function is not there, for messages; empty when all are.
  const std::string& missing() const { return missing_; }

 private:
  std::string name_;
  void* file_ = nullptr;
  std::string missing_;
};

}  // namespace meshgrad
