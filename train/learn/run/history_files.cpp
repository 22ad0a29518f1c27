// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/atomic_file.h>
#include <meshgrad/train/learn/run/history_files.h>
#include <meshgrad/train/learn/run/history_json.h>
#include <meshgrad/train/tools/extras/history_page.h>

#include <system_error>

namespace meshgrad {

void write_memory_files(const std::filesystem::path& dir, CachingAllocator& allocator) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) {
    throw data_error(dir.string(), "to make the directory", error.message(),
                     "give a directory that can be written");
  }
  const auto [snapshot, history] = allocator.record();
  write_history_json(dir / "history.json", snapshot, history, allocator.options());
  write_file_atomically(dir / "memory.html", history_page(snapshot, history));
}

}  // namespace meshgrad
