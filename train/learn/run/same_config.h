// SPDX-License-Identifier: Apache-2.0
// Ranks that train one model have one configuration.
#pragma once
#include <meshgrad/engine/ranks/ranks.h>
#include <meshgrad/train/learn/config/config.h>

#include <string_view>

namespace meshgrad {

/// Throws ConfigError on every rank where the configurations of two ranks differ; it names the first key that
/// differs, both values and both ranks. Otherwise ranks would add gradients of different models, or wait for
/// each other for ever. Collective.
void check_same_config(Ranks& ranks, const Config& config, std::string_view fix);

}  // namespace meshgrad
