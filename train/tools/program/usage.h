// SPDX-License-Identifier: Apache-2.0
// Errors of a command line in the words of every other error, instead of CLI11's. Also for meshgrad-bench.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace meshgrad::cli {

/// A check of an option's value: one of these words.
CLI::Validator one_of(std::vector<std::string> words);
/// A check of an option's value: a whole number from `least` to `most`.
CLI::Validator whole_number(int64_t least, int64_t most = INT64_MAX);
/// A check of an option's value: a number above 0.
CLI::Validator positive_number();

/// What to print for an error that parsing `words` with `app` met: "[train] needed CONFIG, got none; fix: see
/// `meshgrad train --help`".
std::string usage_error(const CLI::App& app, const std::vector<std::string>& words,
                        const CLI::ParseError& error);

}  // namespace meshgrad::cli
