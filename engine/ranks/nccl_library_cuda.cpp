// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <meshgrad/engine/ranks/nccl_library.h>

#include <dlfcn.h>

namespace meshgrad {
namespace {

NcclLibrary load_library() {
  constexpr const char* kName = "libnccl.so.2";
  NcclLibrary library;
  void* const file = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) {
    library.missing = dlerror();
    return library;
  }
  const auto load = [&]<class Function>(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(file, symbol));
    if (function == nullptr) library.missing = fmt::format("{} has no {}", kName, symbol);
  };
  load(library.unique_id, "ncclGetUniqueId");
  load(library.init_rank, "ncclCommInitRank");
  load(library.destroy, "ncclCommDestroy");
  load(library.abort, "ncclCommAbort");
  load(library.async_error, "ncclCommGetAsyncError");
  load(library.error_string, "ncclGetErrorString");
  load(library.all_reduce, "ncclAllReduce");
  return library;
}

}  // namespace

const NcclLibrary& nccl_library() {
  static const NcclLibrary loaded = load_library();
  return loaded;
}

}  // namespace meshgrad
