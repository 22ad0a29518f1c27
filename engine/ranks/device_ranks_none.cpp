// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/device_ranks.h>

namespace meshgrad {
namespace {

constexpr const char* kNone = "NCCL was called in a build without it";

}  // namespace

std::string DeviceRanks::why_none() { return "this build has no NCCL"; }
std::string DeviceRanks::address(Device) { throw internal_error(kNone); }
DeviceRanks::DeviceRanks(Ranks& ranks, Device device, std::chrono::milliseconds timeout)
    : ranks_(ranks), device_(device), timeout_(timeout) {
  throw internal_error(kNone);
}
DeviceRanks::~DeviceRanks() = default;
void DeviceRanks::all_reduce(const Tensor&, const Stream&, std::string_view) const {
  throw internal_error(kNone);
}
void DeviceRanks::exchange(std::span<const Send>, std::span<const Receive>, const Stream&,
                           std::string_view) const {
  throw internal_error(kNone);
}
void DeviceRanks::await(const Stream&, std::string_view) const { throw internal_error(kNone); }
void DeviceRanks::abort() const noexcept {}

}  // namespace meshgrad
