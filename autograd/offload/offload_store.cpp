// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload_store.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>

#include <algorithm>
#include <deque>
#include <utility>

namespace meshgrad {

int64_t OffloadStore::write(const Tensor& from, const Stream& stream) {
  // The lowest number that is free: in every step the same value gets the same place.
  const auto number = static_cast<size_t>(std::find(taken_.begin(), taken_.end(), -1) - taken_.begin());
  if (number == taken_.size()) taken_.push_back(-1);
  start_write(number, from, stream);
  taken_[number] = from.bytes();
  bytes_ += from.bytes();
  written_bytes_ += from.bytes();
  peak_bytes_ = std::max(peak_bytes_, bytes_);
  return static_cast<int64_t>(number);
}

void OffloadStore::settle(int64_t number, const Stream& stream) {
  finish(static_cast<size_t>(number), stream);
}

void OffloadStore::read(int64_t number, const Tensor& to, const Stream& stream) {
  start_read(static_cast<size_t>(number), to, stream);
}

void OffloadStore::arrive(int64_t number, const Stream& stream) {
  finish(static_cast<size_t>(number), stream);
  give_back(number);
}

void OffloadStore::drop(int64_t number, const Stream& stream) noexcept {
  try {
    finish(static_cast<size_t>(number), stream);
  } catch (const std::exception&) {
    // Nobody wants the value any more.
  }
  give_back(number);
}

void OffloadStore::give_back(int64_t number) {
  bytes_ -= std::exchange(taken_[static_cast<size_t>(number)], -1);
}

namespace {

class CountingStore final : public OffloadStore {
  void start_write(size_t, const Tensor&, const Stream&) override {}
  void start_read(size_t, const Tensor&, const Stream&) override {}
  void finish(size_t, const Stream&) override {}
};

/// Copies run on one stream, in the order in which they were asked for. So a place is used again in order,
/// too, and no event is ever asked by the host.
class HostStore final : public OffloadStore {
 public:
  explicit HostStore(Device device)
      : native_(gpu::create_stream(device.index), gpu::destroy_stream), copies_(device, 1, native_.get()) {}
  ~HostStore() override {
    try {
      copies_.synchronize();
    } catch (const Error&) {
      // A device that failed copies no more.
    }
  }

 private:
  struct Place {
    StoragePtr memory;
    Event computed, copied;
  };

  void start_write(size_t number, const Tensor& from, const Stream& stream) override {
    while (places_.size() <= number) places_.emplace_back();
    Place& place = places_[number];
    if (place.memory == nullptr || place.memory->bytes() < from.bytes()) grow(place, from.bytes());
    copy(place, from, over(place, from), stream);
  }

  void start_read(size_t number, const Tensor& to, const Stream& stream) override {
    copy(places_[number], over(places_[number], to), to, stream);
  }

  void finish(size_t number, const Stream& stream) override { places_[number].copied.hold_back(stream); }

  /// Behind what `stream` was given so far: what computes the value, or what used the memory before.
  void copy(Place& place, const Tensor& from, const Tensor& to, const Stream& stream) {
    place.computed.record(stream);
    place.computed.hold_back(copies_);
    meshgrad::copy(from, to, copies_);
    place.copied.record(copies_);
  }

  /// To pin memory stops the device, so a place that was too small gets a little more than it has to.
  static void grow(Place& place, int64_t bytes) {
    constexpr int64_t kMore = 8;
    const int64_t size = place.memory == nullptr ? bytes : bytes + bytes / kMore;
    place.memory = nullptr;
    void* const memory = gpu::allocate_pinned(size);
    place.memory = std::make_shared<Storage>(memory, size, Device{}, [memory] { gpu::free_pinned(memory); });
  }

  static Tensor over(const Place& place, const Tensor& like) {
    return Tensor::over(place.memory, 0, like.shape(), like.dtype());
  }

  std::shared_ptr<void> native_;
  Stream copies_;
  std::deque<Place> places_;  // goes first: freeing pinned memory waits for its copies
};

}  // namespace

std::unique_ptr<OffloadStore> make_counting_store() { return std::make_unique<CountingStore>(); }

std::unique_ptr<OffloadStore> make_host_store(Device device) { return std::make_unique<HostStore>(device); }

}  // namespace meshgrad
