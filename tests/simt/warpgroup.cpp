// SPDX-License-Identifier: Apache-2.0
// Products of warpgroups (kernels/cuda/wgmma.h). A product is computed when it starts; until the wait for its
// group nothing may touch what the tensor cores write, or write what they read. Stricter than a GPU: all
// threads of a warpgroup meet at each of its operations, and the threads that wrote an operand fence it
// themselves, before the barrier.
#include <fmt/format.h>
#include <meshgrad/kernels/cuda/simt_wgmma.h>

#include <algorithm>
#include <cstring>

#include "runner.h"

namespace simt {
namespace {

ProductMistake planted = ProductMistake::none;

constexpr int kGroup = 128;
constexpr int kTerms = 16;
constexpr int kRows = 64;
constexpr int kMostColumns = 256;

int first_of_group() { return runner.index_of(*runner.current) / kGroup * kGroup; }
Thread& thread_at(int index) { return runner.threads[static_cast<size_t>(index)]; }

/// The current thread waits for the others of its warpgroup; the last one calls `finish` for all.
template <class Finish>
void meet(int argument, uint64_t value, Location where, Finish&& finish) {
  const OutsideKernel outside;
  Thread& me = *runner.current;
  const int first = first_of_group();
  // A GPU's warp may still be divided after the branch, and the instruction is undefined then.
  if (me.alone) {
    fail("__syncwarp between copies that one thread starts and an operation of its warpgroup",
         fmt::format("thread {} at {}", runner.index_of(me), text(where)), "call it after the branch");
  }
  if (runner.launch->threads < first + kGroup) {
    fail("warpgroups of 128 threads", fmt::format("{} threads at {}", runner.launch->threads, text(where)),
         "launch a multiple of 128");
  }
  me.wait = Wait::warpgroup;
  me.where = where;
  me.argument = argument;
  me.value = value;
  int arrived = 0;
  for (int i = first; i < first + kGroup; ++i) {
    const Thread& other = thread_at(i);
    if (other.wait == Wait::exited || (other.wait == Wait::warpgroup && !same(other.where, where))) {
      fail("products that all threads of the warpgroup reach",
           fmt::format("a divergent warpgroup: thread {} is at {}, thread {} {}", runner.index_of(me),
                       text(where), i, other.wait == Wait::exited ? "has exited" : "at " + text(other.where)),
           "move the product out of the branch");
    }
    arrived += other.wait == Wait::warpgroup;
  }
  if (arrived == kGroup) {
    finish(first);
    for (int i = first; i < first + kGroup; ++i) {
      thread_at(i).wait = Wait::none;
      make_ready(thread_at(i));
    }
  }
  suspend();
}

/// Stacks are kStackBytes apart, so that this is the place in the stack of whichever thread's it is.
size_t place_in_stack(const void* address) {
  return static_cast<size_t>(static_cast<const char*>(address) - runner.stack_begin) %
         static_cast<size_t>(kStackBytes) / 4;
}

void check_fenced(const Thread& thread, const void* registers, int64_t bytes) {
  const auto needs_fence = [&](const char* what) {
    fail("product_fence between the last access to registers and the product that uses them",
         fmt::format("{} of thread {} {} at {}", registers == nullptr ? "nothing" : "registers",
                     runner.index_of(thread), what, text(thread.where)),
         "call product_fence before the product");
  };
  if (thread.registers == nullptr) return needs_fence("never fenced");
  const size_t place = place_in_stack(registers);
  for (size_t i = place; i < place + static_cast<size_t>(bytes) / 4; ++i) {
    if (thread.registers->last_access[i] == thread.registers->fences) needs_fence("accessed since the fence");
  }
}

/// Products may follow each other into the same accumulators, of the same shape, without a wait.
void use_registers(const Thread& thread, const void* begin, int64_t bytes, bool written) {
  check_fenced(thread, begin, bytes);
  const char* const from = static_cast<const char*>(begin);
  for (const Registers::InUse& other : thread.registers->in_use) {
    const bool overlap = from < other.begin + other.bytes && other.begin < from + bytes;
    if (!overlap || (!written && !other.written)) continue;
    if (written && other.written && from == other.begin && bytes == other.bytes) continue;
    fail("products into the same accumulators, or into others",
         fmt::format("overlapping registers of a running product at {}", text(thread.where)),
         "call product_wait between them");
  }
  thread.registers->in_use.push_back({from, bytes, written, thread.registers->group});
}

/// An operand of which each row of 16 has `columns` neighbouring values, as its descriptor says. PTX ISA,
/// "Shared Memory Matrix Layout", column-major: panels of 8 columns without a swizzle, else of 16, 32 or 64.
void read_operand(uint64_t descriptor, int columns, bool half, float* values, int first, const void* code) {
  const auto field = [descriptor](int bit) { return static_cast<int64_t>(descriptor >> bit & 0x3fffu) * 16; };
  const int64_t start = field(0), stride = field(32);
  const int64_t leading = field(16) / (planted == ProductMistake::leading_bytes ? 2 : 1);
  const auto base = static_cast<int64_t>(descriptor >> 49 & 7u);
  const auto mode = planted == ProductMistake::swizzle ? 2 : static_cast<int>(descriptor >> 62);
  const int panel = mode == 0 ? 8 : 128 >> mode;        // columns: 64, 32, 16
  const int64_t swizzled = panel / 8 - 1;               // bits of the chunk's number
  const int64_t pattern = mode == 0 ? 16 : panel * 16;  // bytes after which the exchange repeats
  if ((start - base * 128) % pattern != 0) {
    fail(fmt::format("operands that begin at a multiple of {} bytes", pattern),
         fmt::format("shared address {}, {} bytes after one, at {}", start, start % pattern,
                     text(thread_at(first).where)),
         "put them after aligned_shared");
  }
  const int64_t next_panel = mode == 0 ? stride : leading, next_rows = mode == 0 ? leading : stride;
  std::vector<const char*> read;
  for (int row = 0; row < kTerms; ++row) {
    for (int column = 0; column < columns; column += 8) {
      const int64_t plain = start + column / panel * next_panel + row / 8 * next_rows + row % 8 * panel * 2 +
                            column % panel * 2;
      const int64_t phase = (plain / 128 - base) & swizzled;
      const char* const chunk = runner.arena->shared_begin() + (plain ^ phase * 16) - runner.shared_base;
      product_read(chunk, first, code);
      runner.product_reads.insert({chunk, {first, thread_at(first).registers->group}});
      for (int i = 0; i < 8; ++i) {
        uint16_t bits = 0;
        std::memcpy(&bits, chunk + 2 * i, sizeof bits);
        meshgrad::half h;
        meshgrad::bfloat16 b;
        h.bits = b.bits = bits;
        values[row * columns + column + i] = half ? to_float(h) : to_float(b);
      }
    }
  }
}

/// x^T of one warp, [16 rows][16 terms], into the columns of `x` ([term][64]); as multiply_add's a.
void read_registers(int warp, int first, float* x) {
  for (int lane = 0; lane < kWarp; ++lane) {
    const auto& mine = *reinterpret_cast<const Product*>(thread_at(first + warp * kWarp + lane).value);
    for (int i = 0; i < 8; ++i) {
      meshgrad::half h;
      meshgrad::bfloat16 b;
      h.bits = b.bits = static_cast<uint16_t>(mine.a[i / 2] >> 16 * (i % 2));
      const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
      const int term = lane % 4 * 2 + i % 2 + i / 4 * 8;
      x[term * kRows + row] = mine.half ? to_float(h) : to_float(b);
    }
  }
}

void multiply(int first, const void* code) {
  static float x[kTerms * kRows];
  static float d_z[kTerms * kMostColumns];
  const Product shape = *reinterpret_cast<const Product*>(thread_at(first).value);
  for (int i = first; i < first + kGroup; ++i) {
    const auto& mine = *reinterpret_cast<const Product*>(thread_at(i).value);
    if (mine.x != shape.x || mine.d_z != shape.d_z) {
      fail("one descriptor for all threads of a warpgroup", text(thread_at(i).where),
           "compute it from what the threads have in common");
    }
    use_registers(thread_at(i), mine.d, int64_t{mine.columns} / 2 * 4, true);
    if (mine.a != nullptr) use_registers(thread_at(i), mine.a, 16, false);
  }
  read_operand(shape.d_z, shape.columns, shape.half, d_z, first, code);
  if (shape.a == nullptr) read_operand(shape.x, kRows, shape.half, x, first, code);
  for (int warp = 0; warp < 4 && shape.a != nullptr; ++warp) read_registers(warp, first, x);
  for (int i = 0; i < kGroup; ++i) {
    float* const d = reinterpret_cast<const Product*>(thread_at(first + i).value)->d;
    for (int e = 0; e < shape.columns / 2; ++e) {
      const int row = i / kWarp * 16 + i % kWarp / 4 + e % 4 / 2 * 8;
      const int column = e / 4 * 8 + i % 4 * 2 + e % 2;
      float sum = 0;
      for (int k = 0; k < kTerms; ++k) sum += x[k * kRows + row] * d_z[k * shape.columns + column];
      d[e] += sum;
    }
  }
  runner.report.tensor_flops += 2 * int64_t{kRows} * shape.columns * kTerms;
}

}  // namespace

uint32_t shared_address(const void* address) {
  const auto offset = static_cast<const char*>(address) - runner.arena->shared_begin();
  if (offset < 0 || offset >= kSharedBytes) {
    in_kernel = false;
    fail("operands in dynamic shared memory", runner.arena->describe(address), "use dynamic_shared");
  }
  return static_cast<uint32_t>(offset + runner.shared_base);
}

void set_product_mistake(ProductMistake mistake) { planted = mistake; }
ProductMistake product_mistake() { return planted; }

void fence_shared_for_products() {
  if (planted != ProductMistake::shared_fence) ++runner.current->product_fences;
}

void product_fence(Location where) {
  if (planted == ProductMistake::fence) return;
  meet(0, 0, where, [](int first) {
    for (int i = first; i < first + kGroup; ++i) {
      std::unique_ptr<Registers>& registers = thread_at(i).registers;
      if (registers == nullptr) {
        registers = std::make_unique<Registers>();
        registers->last_access.resize(static_cast<size_t>(kStackBytes / 4));
      }
      ++registers->fences;
    }
  });
}

void start_product(const Product& product, Location where) {
  const void* const code = __builtin_return_address(0);
  meet(0, reinterpret_cast<uint64_t>(&product), where, [code](int first) { multiply(first, code); });
}

void product_commit(Location where) {
  if (planted == ProductMistake::commit) return;
  meet(0, 0, where, [](int first) {
    for (int i = first; i < first + kGroup; ++i) {
      if (thread_at(i).registers != nullptr) ++thread_at(i).registers->group;
    }
  });
}

void product_wait(int pending, Location where) {
  if (planted == ProductMistake::wait) return;
  meet(pending, 0, where, [pending](int first) {
    if (thread_at(first).registers == nullptr) return;
    const int running = thread_at(first).registers->group - pending;  // the first group that may still run
    for (int i = first; i < first + kGroup; ++i) {
      std::erase_if(thread_at(i).registers->in_use,
                    [running](const Registers::InUse& use) { return use.group < running; });
    }
    std::erase_if(runner.product_reads, [&](const auto& read) {
      return read.second.warpgroup == first && read.second.group < running;
    });
  });
}

void touch_registers(const void* address, int64_t bytes, bool write) {
  Registers& registers = *runner.current->registers;
  const char* const from = static_cast<const char*>(address);
  for (const Registers::InUse& use : registers.in_use) {
    if (from >= use.begin + use.bytes || use.begin >= from + bytes || (!write && !use.written)) continue;
    in_kernel = false;
    fail("registers of a running product that nothing touches until product_wait",
         fmt::format("{} {} {} of a product that runs", name_of_thread(thread_of(runner.current->at)),
                     write ? "writes" : "reads", use.written ? "accumulators" : "operand registers"),
         "product_commit and product_wait come first");
  }
  const size_t place = place_in_stack(address);
  const size_t end = std::min(place + static_cast<size_t>(bytes + 3) / 4, registers.last_access.size());
  for (size_t i = place; i < end; ++i) registers.last_access[i] = registers.fences;
}

}  // namespace simt
