// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "support.h"

namespace meshgrad::test {
namespace {

// A family that gains an entry fails to compile here until the entry is checked: the bindings count the
// members.
TEST_CASE("every backend fills every entry of every table") {
  REQUIRE(!backends().empty());
  for (const Backend& backend : backends()) {
    CAPTURE(backend.name);
    const auto [linear_forward, linear_backward] = *backend.linear;
    CHECK((linear_forward && linear_backward));
    const auto [mlp_saving, mlp_forward, mlp_backward] = *backend.mlp;
    CHECK((mlp_saving && mlp_forward && mlp_backward));
    const auto [edge_saving, edge_forward, edge_backward] = *backend.message_passing;
    CHECK((edge_saving && edge_forward && edge_backward));
    const auto [sum, gather] = *backend.segment_sum;
    CHECK((sum && gather));
    const auto [activation, activation_back, norm, norm_back, axpby, cast] = *backend.elementwise;
    CHECK((activation && activation_back && norm && norm_back && axpby && cast));
    const auto [loss, loss_back, squares] = *backend.reduction;
    CHECK((loss && loss_back && squares));
    const auto [note_loss, decide, update] = *backend.optimizer;
    CHECK((note_loss && decide && update));
    const auto [deviation, deviation_back, shift, shift_back] = *backend.unroll;
    CHECK((deviation && deviation_back && shift && shift_back));
  }
}

}  // namespace
}  // namespace meshgrad::test
