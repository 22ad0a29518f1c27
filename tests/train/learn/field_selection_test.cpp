// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/memory_data.h>
#include <meshgrad/train/learn/task/task.h>

#include "support.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::message_of;

TEST_CASE("a task on meshes refuses a graph without positions") {
  auto data = std::make_shared<MemoryData>();
  data->fields = {{"u", 1, true, ""}};
  data->splits = {{"train", 0, 1}};
  const std::vector<int32_t> types{0, 0}, first{0}, second{1};
  data->add_mesh("graph", {}, types, first, second);
  const std::vector<float> u{1, 2, 3, 4};
  data->trajectories.push_back({0, 2, {u}});
  Config config;
  config.data.inputs = config.data.targets = {"u"};
  const auto error = [&] { return message_of([&] { make_task(config, Dataset::over(data)); }); };
  CHECK(contains(error(),
                 "[memory: mesh_pos] needed positions in 2 or 3 dimensions, which edge features are "
                 "made of, got a graph without positions; fix: "));
}
