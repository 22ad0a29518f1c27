// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/offload/offload_store.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/pinned_tensor.h>

#include <algorithm>
#include <deque>
#include <utility>

namespace meshgrad {

int64_t OffloadStore::write(const Tensor& from, const Stream& stream) {
  // The lowest free number, so that a value gets the same memory in every step.
  const auto number =
      static_cast<size_t>(std::find(slot_bytes_.begin(), slot_bytes_.end(), -1) - slot_bytes_.begin());
  if (number == slot_bytes_.size()) slot_bytes_.push_back(-1);
  start_write(number, from, stream);
  slot_bytes_[number] = from.bytes();
  bytes_ += from.bytes();
  written_bytes_ += from.bytes();
  peak_bytes_ = std::max(peak_bytes_, bytes_);
  return static_cast<int64_t>(number);
}

void OffloadStore::finish_write(int64_t number, const Stream& stream) {
  finish(static_cast<size_t>(number), stream);
}

void OffloadStore::read(int64_t number, const Tensor& to, const Stream& stream) {
  start_read(static_cast<size_t>(number), to, stream);
}

void OffloadStore::finish_read(int64_t number, const Stream& stream) {
  finish(static_cast<size_t>(number), stream);
  free_number(number);
}

void OffloadStore::cancel(int64_t number, const Stream& stream) noexcept {
  try {
    finish(static_cast<size_t>(number), stream);
  } catch (const std::exception&) {
    // The value is discarded, so a failed copy does not matter.
  }
  free_number(number);
}

void OffloadStore::free_number(int64_t number) {
  bytes_ -= std::exchange(slot_bytes_[static_cast<size_t>(number)], -1);
}

namespace {

class CountingStore final : public OffloadStore {
  void start_write(size_t, const Tensor&, const Stream&) override {}
  void start_read(size_t, const Tensor&, const Stream&) override {}
  void finish(size_t, const Stream&) override {}
};

/// All copies run on one stream, in call order. So slots are reused in order, too, and the host waits for no
/// event.
class HostStore final : public OffloadStore {
 public:
  explicit HostStore(Device device)
      : native_(gpu::create_stream(device.index), gpu::destroy_stream), copies_(device, 1, native_.get()) {}
  ~HostStore() override {
    try {
      copies_.synchronize();
    } catch (const Error&) {
      // A destructor must not throw.
    }
  }

 private:
  struct Slot {
    StoragePtr memory;
    Event computed, copied;
  };

  void start_write(size_t number, const Tensor& from, const Stream& stream) override {
    while (slots_.size() <= number) slots_.emplace_back();
    Slot& slot = slots_[number];
    if (slot.memory == nullptr || slot.memory->bytes() < from.bytes()) grow(slot, from.bytes());
    copy(slot, from, over(slot, from), stream);
  }

  void start_read(size_t number, const Tensor& to, const Stream& stream) override {
    copy(slots_[number], over(slots_[number], to), to, stream);
  }

  void finish(size_t number, const Stream& stream) override { slots_[number].copied.make_wait(stream); }

  /// Copies after the work queued on `stream`, which computes the value or used the memory before.
  void copy(Slot& slot, const Tensor& from, const Tensor& to, const Stream& stream) {
    slot.computed.record(stream);
    slot.computed.make_wait(copies_);
    meshgrad::copy(from, to, copies_);
    slot.copied.record(copies_);
  }

  /// Allocating pinned memory synchronizes the device, so a slot that was too small grows by an eighth more.
  void grow(Slot& slot, int64_t bytes) {
    constexpr int64_t kMore = 8;
    const int64_t size = slot.memory == nullptr ? bytes : bytes + bytes / kMore;
    slot.memory = nullptr;
    slot.memory = pinned_tensor(copies_.device(), Shape{size}, DType::u8).storage();
  }

  static Tensor over(const Slot& slot, const Tensor& like) {
    return Tensor::over(slot.memory, 0, like.shape(), like.dtype());
  }

  std::shared_ptr<void> native_;
  Stream copies_;
  std::deque<Slot> slots_;  // destroyed first: freeing pinned memory waits for its copies
};

}  // namespace

std::unique_ptr<OffloadStore> make_counting_store() { return std::make_unique<CountingStore>(); }

std::unique_ptr<OffloadStore> make_host_store(Device device) { return std::make_unique<HostStore>(device); }

}  // namespace meshgrad
