// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/train/learn/task/class_counts.h>

#include <fmt/format.h>

#include <utility>

namespace meshgrad {

ClassCounts::ClassCounts(std::string where, std::string_view rows, int64_t classes)
    : where_(std::move(where)), rows_(rows), classes_(classes) {}

bool ClassCounts::fits(int32_t label) const {
  return label >= 0 && label < (classes_ > 0 ? classes_ : kMostClasses);
}

DataError ClassCounts::wrong_label(const Wrong& wrong, const std::string& needed,
                                   const std::string& fix) const {
  const std::string others = wrong.count == 1 ? "" : fmt::format(", the first of {}", wrong.count);
  return data_error(fmt::format("{}, {} {}", where_, rows_, wrong.name), needed,
                    fmt::format("{}{}", wrong.label, others), fix);
}

int64_t ClassCounts::finish(std::string_view train_split) {
  if (without_.count > 0) {
    throw wrong_label(without_, fmt::format("a class, from 0, of each {} of a split", rows_),
                      fmt::format("leave {}s without a class out of the splits", rows_));
  }
  if (outside_.count > 0) {
    throw wrong_label(outside_,
                      classes_ > 0 ? fmt::format("a class below {}, the number of classes", classes_)
                                   : fmt::format("a class below {}", kMostClasses),
                      "correct the labels, or data.classes");
  }
  all_.resize(static_cast<size_t>(classes_ > 0 ? classes_ : static_cast<int64_t>(all_.size())));
  trained_.clear();
  for (size_t number = 0; number < all_.size(); ++number) {
    const OfClass& one = all_[number];
    trained_.push_back(one.trained);
    if (one.trained > 0 || classes_ > 0) continue;
    const std::string elsewhere =
        one.count > 0 ? fmt::format("{} in other splits, the first {} {}", one.count, rows_, one.name)
                      : "0 in other splits";
    throw data_error(
        fmt::format("{}: split {}", where_, train_split), fmt::format("a {} of each class", rows_),
        fmt::format("0 of class {}, and {}", number, elsewhere),
        fmt::format("number the classes from 0 and split the data so that each is trained on, or "
                    "set data.classes = {}",
                    all_.size()));
  }
  return static_cast<int64_t>(all_.size());
}

}  // namespace meshgrad
