// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source.h>

#include <map>

namespace meshgrad {
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kAddressSpace = int64_t{1} << 46;

/// Allocates from `runtime`; `bytes` counts what is held, `frees` the calls that freed some. The memory
/// belongs to the runtime's stream, on which every graph launch runs.
std::shared_ptr<MemorySource> memory_of(Runtime& runtime, const std::string& name, int64_t& bytes,
                                        int64_t& frees) {
  auto held = std::make_shared<std::map<void*, StoragePtr>>();
  MemoryCallbacks callbacks;
  callbacks.allocate = [&runtime, &bytes, name, held](int64_t size) {
    StoragePtr storage = runtime.allocator().allocate(size, kPage, runtime.stream(), Tag::activations, name);
    bytes += size;
    void* address = storage->data();
    held->emplace(address, std::move(storage));
    return address;
  };
  callbacks.free = [&bytes, &frees, held](void* address, int64_t size) {
    bytes -= size;
    ++frees;
    held->erase(address);
  };
  return make_callback_memory(std::move(callbacks), runtime.device(), kAddressSpace);
}

}  // namespace

CapturedWork::CapturedWork(Runtime& runtime, std::string name, std::function<void(Runtime&)> work)
    : runtime_(runtime), name_(std::move(name)), work_(std::move(work)) {
  RuntimeOptions options;
  options.device = runtime.device();
  options.threads = 1;
  options.seed = runtime.seed();
  options.log = [&runtime](LogLevel level, std::string_view text) {
    runtime.log_once(level, std::string(text));
  };
  options.autotune = runtime.autotune();
  options.tf32 = runtime.tf32();
  options.memory = memory_of(runtime, name_, bytes_, frees_);
  options.dry = runtime.dry();
  own_.emplace(std::move(options));
}

CapturedWork::~CapturedWork() {
  if (graph_ != nullptr) gpu::destroy_graph(graph_);
}

void CapturedWork::run() {
  ++runs_;
  if (runs_ == 2 && !runtime_.dry()) record();
  if (graph_ != nullptr) {
    gpu::launch_graph(runtime_.device().index, graph_, runtime_.stream().native());
  } else {
    queue();
  }
}

void CapturedWork::queue() {
  before_.record(runtime_.stream());
  before_.make_wait(own_->stream());
  work_(*own_);
  after_.record(own_->stream());
  after_.make_wait(runtime_.stream());
}

void CapturedWork::record() {
  void* stream = own_->stream().native();
  gpu::begin_capture(stream);
  bool open = true;
  const int64_t frees = frees_;
  try {
    work_(*own_);
    open = false;
    graph_ = gpu::end_capture(runtime_.device().index, stream);
    if (frees_ == frees) return;
    // Kernels captured earlier may use memory that the allocator freed to make room for later ones.
    gpu::destroy_graph(graph_);
    graph_ = nullptr;
    refusal_ = "memory ran short during capture";
  } catch (const Error& error) {
    if (open) gpu::abandon_capture(stream);
    refusal_ = error.what();
  }
}

}  // namespace meshgrad
