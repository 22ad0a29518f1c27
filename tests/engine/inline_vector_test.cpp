// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/inline_vector.h>

#include <memory>

#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

TEST_CASE("an inline vector matches a vector up to its capacity") {
  InlineVector<std::string, 3> list{"a", "b"};
  list.push_back("c");
  CHECK(list.size() == 3);
  CHECK(list.front() + list[1] + list.back() == "abc");
  CHECK(std::vector<std::string>(list) == std::vector<std::string>{"a", "b", "c"});
  CHECK(contains(invalid_argument_text([&] { list.push_back("d"); }), "at most 3 values, got 4"));
  CHECK(contains(invalid_argument_text([] { InlineVector<int, 2>(std::vector{1, 2, 3}); }), "at most 2"));
  list.clear();
  CHECK(list.empty());
  list = std::vector<std::string>{"e"};
  CHECK(list.back() == "e");
}

TEST_CASE("an inline vector destroys cleared and assigned values") {
  const auto held = std::make_shared<int>(1);
  InlineVector<std::shared_ptr<int>, 2> list{held, held};
  CHECK(held.use_count() == 3);
  list = {held};
  CHECK(held.use_count() == 2);
  list.clear();
  CHECK(held.use_count() == 1);
}
