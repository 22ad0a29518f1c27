// SPDX-License-Identifier: Apache-2.0
#include "paths.h"
#include "train/scratch_directory.h"

#include <doctest/doctest.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/tools/program/config_docs.h>

#include <nlohmann/json.hpp>
#include <set>

namespace meshgrad {
namespace {

TEST_CASE("the page of the manual is what the table says") {
  CHECK(test::read_text(test::source_file("docs/config.md")) == config_markdown());
}

TEST_CASE("the schema names every key with its default") {
  const auto schema = nlohmann::json::parse(config_schema());
  CHECK(schema["additionalProperties"] == false);
  for (const ConfigKey& key : config_keys()) {
    const auto& home = key.section.empty() ? schema : schema["properties"][std::string(key.section)];
    CAPTURE(full_name(key));
    REQUIRE(home["properties"].contains(std::string(key.name)));
    const auto& entry = home["properties"][std::string(key.name)];
    CHECK(entry["default"].dump() == nlohmann::json::parse(toml_literal(key, Config{})).dump());
    CHECK((entry.contains("type") || entry.contains("enum") || entry.contains("anyOf")));
  }
}

}  // namespace
}  // namespace meshgrad
