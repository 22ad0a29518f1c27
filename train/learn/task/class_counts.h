// SPDX-License-Identifier: Apache-2.0
// ClassCounts: how many nodes or graphs of the data have each class, and what is wrong with their labels.
#pragma once
#include <meshgrad/engine/error.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshgrad {

class ClassCounts {
 public:
  /// `where`: the data and its field, for errors. `rows`: "node" or "graph". `classes`: data.classes.
  ClassCounts(std::string where, std::string_view rows, int64_t classes);

  /// `name()` says which node or graph it is.
  template <class Name>
  void add(int32_t label, bool trained, const Name& name) {
    if (fits(label)) {
      const auto at = static_cast<size_t>(label);
      if (at >= all_.size()) all_.resize(at + 1);
      if (all_[at].count++ == 0) all_[at].name = name();
      if (trained) ++all_[at].trained;
      return;
    }
    Wrong& wrong = label < 0 ? without_ : outside_;
    if (wrong.count++ > 0) return;
    wrong.label = label;
    wrong.name = name();
  }
  /// How many classes there are: data.classes, or without it one more than the largest label. Throws
  /// DataError, with the first node or graph and how many there are, for labels below 0, or outside the
  /// classes; and, without data.classes, for a class that the training split lacks.
  int64_t finish(std::string_view train_split);
  /// Of each class, how many are in the training split.
  const std::vector<int64_t>& trained() const { return trained_; }

 private:
  struct OfClass {
    int64_t count = 0, trained = 0;
    std::string name;  // of the first
  };
  struct Wrong {
    int64_t count = 0;
    int32_t label = 0;  // of the first
    std::string name;
  };
  static constexpr int64_t kMostClasses = 65536;
  bool fits(int32_t label) const;
  DataError wrong_label(const Wrong& wrong, const std::string& needed, const std::string& fix) const;

  std::string where_;
  std::string_view rows_;
  int64_t classes_;
  std::vector<OfClass> all_;
  std::vector<int64_t> trained_;
  Wrong without_, outside_;
};

}  // namespace meshgrad
