// SPDX-License-Identifier: Apache-2.0
// What a check says of a configuration and its data together.
#include <doctest/doctest.h>
#include <meshgrad/train/tools/extras/config_check.h>

#include <algorithm>

#include "train/process.h"
#include "train/small_run.h"

using namespace meshgrad;
using meshgrad::test::contains;
using meshgrad::test::run_meshgrad;
using meshgrad::test::ScratchDirectory;

namespace {

namespace fs = std::filesystem;

const Finding* finding_with(const std::vector<Finding>& findings, const std::string& text) {
  const auto at = std::ranges::find_if(findings, [&](const Finding& f) { return contains(f.what, text); });
  return at == findings.end() ? nullptr : &*at;
}

}  // namespace

TEST_CASE("a check says which targets are given, not predicted") {
  const ScratchDirectory scratch;
  const fs::path data = test::pack_waves(scratch.path);
  Config config = test::small_config(scratch.path, data);
  config.data.predicted_types = {0};
  const ConfigSummary summary = check_config(config, Dataset::open(data));
  const std::vector<double> counts = Dataset::open(data).node_type_counts();
  double all = 0;
  for (const double count : counts) all += count;
  REQUIRE(summary.predicted_share);
  CHECK(*summary.predicted_share == doctest::Approx(counts[0] / all));
  const Finding* given = finding_with(summary.findings, "change over time at nodes of type");
  REQUIRE(given != nullptr);
  CHECK(given->what == "targets change over time at nodes of type 4, 5 and 6, which are not predicted");
  CHECK(contains(given->remedy, "add 4, 5 and 6 to data.predicted_types, unless they are prescribed"));
  const std::string file = test::write_config(scratch.path, config);
  CHECK(contains(run_meshgrad({"check", file}).out, "predicted at 5"));
  config.data.predicted_types = {0, 4, 5, 6};
  CHECK(contains(run_meshgrad({"check", test::write_config(scratch.path, config)}).out,
                 "predicted at all nodes"));
}
