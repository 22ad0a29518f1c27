// SPDX-License-Identifier: Apache-2.0
// An op is complete when every backend has it, the mutants of its family meet a test, and its gradient is
// checked. Its benchmark is meshgrad-bench's own check.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "gradcheck.h"
#include "paths.h"
#include "support.h"

namespace meshgrad::test {
namespace {

const std::filesystem::path kSource = test::source_file("");

/// What scripts/kernel-mutants says in TESTS: the tests to run, by how a file of kernels/cuda begins.
std::map<std::string, std::vector<std::string>> mutant_tests() {
  std::ifstream file(kSource / "scripts/kernel-mutants");
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  std::map<std::string, std::vector<std::string>> groups;
  const std::regex group(R"re(\("(\w+)", \[([^\]]*)\]\))re"), name(R"re("(\w+)")re");
  for (auto found = std::sregex_iterator(all.begin(), all.end(), group); found != std::sregex_iterator();
       ++found) {
    const std::string list = (*found)[2];
    std::vector<std::string>& tests = groups[(*found)[1]];
    for (auto test = std::sregex_iterator(list.begin(), list.end(), name); test != std::sregex_iterator();
         ++test)
      tests.push_back((*test)[1]);
  }
  return groups;
}

TEST_CASE("every backend fills every entry of every table") {
  REQUIRE(!backends().empty());
  for (const Backend& backend : backends()) {
    CAPTURE(backend.name);
    std::set<std::string> entries;
    kernels::visit_kernels(*backend.kernels,
                           [&](std::string_view family, std::string_view kernel, auto entry) {
                             CAPTURE(kernel);
                             CHECK((entry != nullptr));
                             CHECK(entries.insert(std::string(family) + "." + std::string(kernel)).second);
                           });
    CHECK(entries.size() > 20);
  }
}

TEST_CASE("mutants of every kernel source have tests" *
          doctest::skip(!std::filesystem::exists(kSource / "scripts/kernel-mutants"))) {  // as in a bundle
  const auto groups = mutant_tests();
  REQUIRE(!groups.empty());
  for (const auto& [start, tests] : groups) {
    CAPTURE(start);
    CHECK(!tests.empty());
    for (const std::string& test : tests) {
      CAPTURE(test);
      const std::string file = test + "_test.cpp";
      CHECK((std::filesystem::exists(kSource / "tests/kernels" / file) ||
             std::filesystem::exists(kSource / "tests/simt" / file)));
    }
  }
  kernels::visit_kernels(kernels::cpu_tables(), [&](std::string_view family, std::string_view, auto) {
    CAPTURE(family);
    CHECK(groups.contains(std::string(family)));
  });
  int sources = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(kSource / "kernels/cuda")) {
    if (entry.path().extension() != ".cu") continue;
    const std::string stem = entry.path().stem();
    CAPTURE(stem);
    CHECK(std::any_of(groups.begin(), groups.end(),
                      [&](const auto& group) { return stem.starts_with(group.first); }));
    ++sources;
  }
  CHECK(sources > 10);
}

TEST_CASE("every backward kernel has a gradient check") {
  Runtime runtime = make_runtime();
  std::set<std::string> checked;
  for (const OpSample& sample : all_op_samples(runtime, 1)) checked.insert(sample.op);
  int with_backward = 0;
  kernels::visit_kernels(kernels::cpu_tables(), [&](std::string_view, std::string_view kernel, auto) {
    constexpr std::string_view kBackward = "_backward";
    if (!kernel.ends_with(kBackward)) return;
    const std::string op(kernel.substr(0, kernel.size() - kBackward.size()));
    CAPTURE(op);
    CHECK(checked.contains(op));
    ++with_backward;
  });
  CHECK(with_backward > 5);
}

}  // namespace
}  // namespace meshgrad::test
