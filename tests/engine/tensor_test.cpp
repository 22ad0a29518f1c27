// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/tensor.h>

#include <doctest/doctest.h>

#include <limits>

#include <numeric>

#include "support.h"

namespace meshgrad {
namespace {

using test::invalid_argument_text;
using test::make_runtime;

TEST_CASE("shapes: rows, width, elements, text") {
  const Shape none, vector{5}, matrix{3, 4}, cube{2, 3, 4}, empty{0, 128};
  CHECK(none.rank() == 0);
  CHECK(none.rows() == 1);
  CHECK(none.elements() == 1);
  CHECK(vector.rows() == 5);
  CHECK(vector.width() == 1);
  CHECK(matrix.elements() == 12);
  CHECK(cube.width() == 12);
  CHECK(cube.elements() == 24);
  CHECK(empty.elements() == 0);
  CHECK(empty.width() == 128);
  CHECK(none.text() == "[]");
  CHECK(vector.text() == "[5]");
  CHECK(cube.text() == "[2, 3, 4]");
  CHECK(matrix == Shape{3, 4});
  CHECK_FALSE(matrix == Shape{4, 3});
  CHECK_FALSE(vector == Shape{5, 1});
  CHECK(invalid_argument_text([] {
          Shape{1, 2, 3, 4, 5};
        }).find("at most 4 extents, got 5") != std::string::npos);
  CHECK(invalid_argument_text([] { Shape{1, -2}; }).find("got -2") != std::string::npos);
}

TEST_CASE("tensors are counted under their tag") {
  Runtime runtime = make_runtime();
  const Tensor undefined;
  CHECK_FALSE(undefined.defined());
  const Tensor zeros = Tensor::zeros(runtime, {3, 5}, DType::f64, Tag::gradients);
  CHECK(zeros.bytes() == 120);
  for (const double value : zeros.values<double>()) CHECK(value == 0.0);
  const std::vector<int32_t> values = {1, 2, 3, 4, 5, 6};
  const Tensor copied = Tensor::from<int32_t>(runtime, values, {2, 3}, Tag::data);
  CHECK(copied.values<int32_t>()[5] == 6);
  CHECK(copied.data<int32_t>() != values.data());
  CHECK(reinterpret_cast<uintptr_t>(copied.raw()) % 64 == 0);
  const MemoryStats stats = runtime.allocator().stats();
  CHECK(stats.requested.current == 120 + 24);
  CHECK(stats.by_tag[static_cast<size_t>(Tag::gradients)].allocated.current >= 120);
  CHECK(stats.by_tag[static_cast<size_t>(Tag::data)].allocated.current >= 24);
  const Tensor nothing = Tensor::empty(runtime, {0, 7}, DType::f32, Tag::data);
  CHECK(nothing.defined());
  CHECK(nothing.rows() == 0);
  CHECK(nothing.values<float>().empty());
}

TEST_CASE("a tensor is not read as another dtype") {
  Runtime runtime = make_runtime();
  const Tensor tensor = Tensor::zeros(runtime, {3}, DType::f32, Tag::data);
  CHECK_NOTHROW(tensor.data<float>());
  CHECK_THROWS_AS(tensor.data<double>(), InternalError);
  CHECK_THROWS_AS(tensor.values<int32_t>(), InternalError);
}

TEST_CASE("row ranges and other shapes share the storage") {
  Runtime runtime = make_runtime();
  Tensor view;
  {
    const Tensor whole = Tensor::zeros(runtime, {6, 4}, DType::f32, Tag::data);
    std::iota(whole.data<float>(), whole.data<float>() + 24, 0.0f);
    view = whole.row_range(2, 5);
    CHECK(view.shape() == Shape{3, 4});
    CHECK(view.data<float>() == whole.data<float>() + 8);
    CHECK(view.row_range(1, 2).values<float>()[3] == 15.0f);
    view.values<float>()[0] = -1.0f;
    CHECK(whole.values<float>()[8] == -1.0f);
    const Tensor flat = view.reshaped({12});
    CHECK(flat.shape() == Shape{12});
    CHECK(flat.data<float>() == view.data<float>());
    CHECK(whole.row_range(6, 6).rows() == 0);
    CHECK(whole.reshaped({2, 3, 4}).row_range(1, 2).data<float>() == whole.data<float>() + 12);
  }
  CHECK(view.values<float>()[11] == 19.0f);
  CHECK(runtime.allocator().stats().live_allocations == 1);
  view = Tensor();
  CHECK(runtime.allocator().stats().live_allocations == 0);
}

TEST_CASE("views that do not fit are refused") {
  Runtime runtime = make_runtime();
  const Tensor tensor = Tensor::zeros(runtime, {6, 4}, DType::f32, Tag::data);
  std::string text = invalid_argument_text([&] { (void)tensor.row_range(2, 7); });
  CHECK_MESSAGE((test::contains(text, "<= 6") && test::contains(text, "2..7")), text);
  CHECK(invalid_argument_text([&] { (void)tensor.row_range(-1, 2); }) != "");
  CHECK(invalid_argument_text([&] { (void)tensor.row_range(4, 3); }) != "");
  CHECK(invalid_argument_text([&] { (void)tensor.reshaped({}).row_range(0, 1); }) != "");
  text = invalid_argument_text([&] { (void)tensor.reshaped({5, 5}); });
  CHECK_MESSAGE((test::contains(text, "24 elements") && test::contains(text, "[5, 5]")), text);
  CHECK_THROWS_AS(Tensor::over(tensor.storage(), 4, {6, 4}, DType::f32), InternalError);
  CHECK_THROWS_AS(Tensor::over(tensor.storage(), -4, {1}, DType::f32), InternalError);
  CHECK_NOTHROW(Tensor::over(tensor.storage(), 4, {23}, DType::f32));
}

TEST_CASE("borrowed memory goes back once, when its last view goes") {
  std::vector<float> host(12, 3.0f);
  int released = 0;
  {
    Tensor view;
    {
      const Tensor tensor = Tensor::borrow(host.data(), {3, 4}, DType::f32, [&] { ++released; });
      const Tensor copy_of_handle = tensor;
      view = copy_of_handle.row_range(1, 2);
      CHECK(tensor.data<float>() == host.data());
    }
    CHECK(released == 0);
    view.values<float>()[0] = 5.0f;
  }
  CHECK(released == 1);
  CHECK(host[4] == 5.0f);
  CHECK_NOTHROW(Tensor::borrow(host.data(), {12}, DType::f32));
}

TEST_CASE("copy moves elements of one dtype between shapes of one size") {
  Runtime runtime = make_runtime();
  std::vector<float> host = {1, 2, 3, 4, 5, 6};
  const Tensor from = Tensor::borrow(host.data(), {2, 3}, DType::f32);
  const Tensor to = Tensor::zeros(runtime, {6}, DType::f32, Tag::data);
  copy(from, to, runtime.stream());
  CHECK(to.values<float>()[5] == 6.0f);
  fill_zero(to.row_range(2, 4), runtime.stream());
  CHECK(to.values<float>()[1] == 2.0f);
  CHECK(to.values<float>()[2] == 0.0f);
  CHECK(to.values<float>()[3] == 0.0f);
  CHECK(to.values<float>()[4] == 5.0f);
  const Tensor other = Tensor::zeros(runtime, {5}, DType::f32, Tag::data);
  const std::string text = invalid_argument_text([&] { copy(from, other, runtime.stream()); });
  CHECK_MESSAGE((test::contains(text, "f32[5]") && test::contains(text, "f32[2, 3]")), text);
  const Tensor doubles = Tensor::zeros(runtime, {6}, DType::f64, Tag::data);
  CHECK(invalid_argument_text([&] { copy(from, doubles, runtime.stream()); }) != "");
}

TEST_CASE("rows are the capacity, or the count where there is one") {
  const int64_t count = 7;
  CHECK(Rows(9).value() == 9);
  CHECK(Rows(9, &count).value() == 7);
  CHECK(Rows(9, &count).capacity == 9);
  CHECK(Rows().value() == 0);
}

TEST_CASE("two runtimes live side by side") {
  std::vector<std::string> first_log, second_log;
  RuntimeOptions options;
  options.threads = 2;
  options.seed = 1;
  options.log = [&](LogLevel, std::string_view text) { first_log.emplace_back(text); };
  Runtime first(options);
  options.threads = 3;
  options.seed = 2;
  options.allocator.memory_limit = int64_t{64} << 20;
  options.log = [&](LogLevel level, std::string_view text) {
    second_log.emplace_back((level == LogLevel::warning ? "warning: " : "") + std::string(text));
  };
  Runtime second(options);
  const Tensor a = Tensor::zeros(first, {1000}, DType::f32, Tag::data);
  {
    const Tensor b = Tensor::zeros(second, {2000}, DType::f32, Tag::workspace);
    CHECK(first.allocator().stats().requested.current == 4000);
    CHECK(second.allocator().stats().requested.current == 8000);
  }
  CHECK(first.allocator().stats().live_allocations == 1);
  CHECK(second.allocator().stats().live_allocations == 0);
  CHECK(first.threads().threads() == 2);
  CHECK(second.threads().threads() == 3);
  CHECK(first.seed() == 1);
  CHECK(second.seed() == 2);
  CHECK(first.device() == Device{});
  second.log(LogLevel::warning, "low");
  CHECK(first_log.empty());
  CHECK(second_log == std::vector<std::string>{"warning: low"});
  CHECK_THROWS_AS(Tensor::zeros(second, {int64_t{100} << 20}, DType::u8, Tag::data), OutOfMemory);
  CHECK_NOTHROW(Tensor::empty(first, {int64_t{100} << 20}, DType::u8, Tag::data));
  CHECK_NOTHROW(Runtime().log(LogLevel::info, "no sink"));
}

TEST_CASE("a dry run counts memory without having it") {
  constexpr int64_t kMany = int64_t{1} << 44;  // bytes: more than any machine has
  for (const Device device : {Device{}, Device{DeviceKind::cuda, 7}}) {
    Runtime runtime({.device = device, .threads = 1000, .dry = true});
    CHECK(runtime.dry());
    CHECK(runtime.device() == device);
    CHECK(runtime.stream().threads() == 1000);
    int runs = 0;
    runtime.stream().parallel_for(5, [&](int64_t) { ++runs; });
    runtime.stream().run([&] { ++runs; });
    CHECK(runs == 0);
    const Tensor kept = Tensor::zeros(runtime, {4096}, DType::u8, Tag::parameters);
    {
      const Tensor zeros = Tensor::zeros(runtime, {kMany}, DType::u8, Tag::workspace);
      copy(zeros, Tensor::empty(runtime, {kMany}, DType::u8, Tag::data), runtime.stream());
      CHECK_THROWS_AS(to_host(zeros, runtime.stream()), InternalError);
    }
    const Tensor later = Tensor::zeros(runtime, {8192}, DType::u8, Tag::activations);
    Event event;
    event.record(runtime.stream());
    event.await();
    runtime.stream().synchronize();
    const MemoryStats stats = runtime.allocator().stats();
    CHECK(stats.allocated.peak == 2 * kMany + 4096);
    CHECK(stats.reserved.peak >= stats.allocated.peak);
    CHECK(stats.tags_at_peak[static_cast<size_t>(Tag::parameters)] == 4096);
    CHECK(stats.tags_at_peak[static_cast<size_t>(Tag::workspace)] == kMany);
    CHECK(stats.tags_at_peak[static_cast<size_t>(Tag::data)] == kMany);
    CHECK(stats.tags_at_peak[static_cast<size_t>(Tag::activations)] == 0);
    runtime.allocator().reset_peak();
    CHECK(runtime.allocator().stats().tags_at_peak[static_cast<size_t>(Tag::activations)] == 8192);
    CHECK(runtime.allocator().stats().tags_at_peak[static_cast<size_t>(Tag::data)] == 0);
  }
}

TEST_CASE("a shape of too many bytes is an error") {
  CHECK_THROWS_WITH_AS((Shape{int64_t{1} << 40, int64_t{1} << 30}),
                       doctest::Contains("fewer bytes than 2^63"), InvalidArgument);
  CHECK(Shape{0, int64_t{1} << 60}.elements() == 0);
  Runtime runtime({.threads = 1});
  CHECK_THROWS_AS(
      runtime.allocator().allocate(std::numeric_limits<int64_t>::max(), 64, runtime.stream(), Tag::data),
      OutOfMemory);
  CHECK(runtime.allocator().stats().live_allocations == 0);
}

}  // namespace
}  // namespace meshgrad
