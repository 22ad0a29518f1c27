// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/memory/source.h>
#include <meshgrad/engine/ranks/mpi.h>
#include <meshgrad/train/embed/c_border.h>

#include <chrono>
#include <cmath>
#include <string>

using namespace meshgrad;
using meshgrad::c::given;
using meshgrad::c::guarded;

namespace {

std::shared_ptr<MemorySource> memory_of(const meshgrad_runtime_options& options, Device device) {
  if (options.allocate == nullptr && options.release == nullptr) return nullptr;
  MemoryCallbacks callbacks;
  if (options.allocate != nullptr) {
    callbacks.allocate = [call = options.allocate, context = options.memory_context](int64_t bytes) {
      return call(context, bytes);
    };
  }
  if (options.release != nullptr) {
    callbacks.free = [call = options.release, context = options.memory_context](void* memory, int64_t bytes) {
      call(context, memory, bytes);
    };
  }
  return make_callback_memory(std::move(callbacks), device, options.memory_capacity);
}

constexpr meshgrad_runtime_options kDefaults{};

RuntimeOptions options_of(const meshgrad_runtime_options& given_options) {
  RuntimeOptions options;
  options.device = resolve_device(given_options.device == nullptr ? "cpu" : given_options.device, nullptr,
                                  "meshgrad_runtime_options: device");
  if (given_options.memory_limit < 0) {
    throw invalid_argument("meshgrad_runtime_options: memory_limit", "0 or more bytes",
                           std::to_string(given_options.memory_limit), "0 sets no limit");
  }
  options.threads = given_options.threads;
  options.allocator.memory_limit = given_options.memory_limit;
  options.stream = given_options.cuda_stream;
  options.memory = memory_of(given_options, options.device);
  if (given_options.log != nullptr) {
    options.log = [call = given_options.log, context = given_options.log_context](LogLevel level,
                                                                                  std::string_view text) {
      call(context, level == LogLevel::warning ? 1 : 0, std::string(text).c_str());
    };
  }
  return options;
}

Ranks ranks_of(const meshgrad_runtime_options& options) {
  constexpr double kLongest = 1e9;  // 31 years
  if (!(options.timeout >= 0.0 && options.timeout <= kLongest)) {
    throw invalid_argument("meshgrad_runtime_options: timeout", "0 to 1e9 seconds",
                           std::to_string(options.timeout), "0 waits 300 seconds");
  }
  Ranks ranks = options.communicator == nullptr ? Ranks() : ranks_of_communicator(*options.communicator);
  if (options.timeout > 0.0)
    ranks.set_timeout(std::chrono::milliseconds(std::llround(options.timeout * 1e3)));
  return ranks;
}

}  // namespace

void meshgrad_runtime_options_init_sized(meshgrad_runtime_options* options, size_t size) {
  meshgrad::c::initialise(options, size, kDefaults);
}

int meshgrad_runtime_create(const meshgrad_runtime_options* options, meshgrad_runtime** runtime) {
  return guarded([&] {
    given(runtime, "meshgrad_runtime_create: runtime") = nullptr;
    meshgrad_runtime_options ours = kDefaults;
    if (options != nullptr)
      ours = meshgrad::c::completed(*options, kDefaults, {}, "meshgrad_runtime_options");
    *runtime = new meshgrad_runtime{.runtime = Runtime(options_of(ours)), .ranks = ranks_of(ours)};
  });
}

void meshgrad_runtime_destroy(meshgrad_runtime* runtime) {
  if (runtime == nullptr || runtime->process.left_behind()) return;
  runtime->ended = true;
  if (runtime->users > 0) return;
  guarded([&] { runtime->ranks.finish(); });
  delete runtime;
}
