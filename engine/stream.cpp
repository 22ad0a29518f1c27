// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/stream.h>

namespace meshgrad {

void Stream::synchronize() const {
  if (on_gpu() && !dry()) gpu::synchronize(native_);
}

Event::~Event() {
  if (native_ != nullptr) gpu::destroy_event(native_);
}

void Event::record(const Stream& stream) {
  if (!stream.on_gpu() || stream.dry()) return;
  if (native_ == nullptr) native_ = gpu::create_event(stream.device().index);
  gpu::record(native_, stream.native());
}

bool Event::passed() const { return native_ == nullptr || gpu::passed(native_); }

void Event::await() const {
  if (native_ != nullptr) gpu::await(native_);
}

void Event::make_wait(const Stream& stream) const {
  if (native_ != nullptr && stream.on_gpu()) gpu::wait(stream.native(), native_);
}

}  // namespace meshgrad
