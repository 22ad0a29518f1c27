// SPDX-License-Identifier: Apache-2.0
// Configuration files: any bytes give a Config or a ConfigError; a Config is written and read back unchanged.
// What is made of the options of other programs is a configuration.
#include <meshgrad/train/learn/config/config.h>
#include <meshgrad/train/tools/program/import_config.h>

#include <string>

#include "fuzz/fuzz.h"

using namespace meshgrad;

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::expect_value_or_error([&] {
    const std::string written = to_toml(parse_config(text, "fuzz.toml"));
    if (to_toml(parse_config(written, "written.toml")) != written) __builtin_trap();
  });
  fuzz::expect_value_or_error([&] { parse_config("", "fuzz.toml", {text}); });
  for (const OptionNames names : {OptionNames::physicsnemo, OptionNames::deepmind, OptionNames::keyvalue}) {
    fuzz::expect_value_or_error([&] {
      const ImportedConfig imported = import_config(text, "options.txt", names);
      if (imported.mapped.empty() && imported.unmapped.empty()) __builtin_trap();
      parse_config(imported.toml, "imported.toml");
    });
  }
  return 0;
}
