// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <meshgrad/train/tools/program/progress.h>

#include <algorithm>
#include <cstdlib>

using namespace meshgrad;

namespace {

/// A stream in memory, a clock set by hand, and a Progress between them.
struct Bench {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* stream = open_memstream(&text, &size);
  double now = 0;
  Progress progress;

  Bench(bool terminal, double interval) : progress(stream, terminal, interval, [this] { return now; }) {}
  ~Bench() {
    std::fclose(stream);
    std::free(text);
  }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  void step(std::int64_t number, double seconds) {
    now = seconds;
    progress.update({number, 100, 0.5, 1e-4, 1 << 20, 2 << 20});
  }
  std::string output() {
    std::fflush(stream);
    return {text, size};
  }
};

}  // namespace

TEST_CASE("the line says step, loss, rate, time left and memory") {
  CHECK(progress_text({120, 3000, 1.234e-3, 1e-4, 3u << 29, 2u << 30}, 12.34) ==
        "step  120/3000  loss 1.234e-03  lr 1.0e-04  12.3 steps/s  ETA 3:53  memory 1.5 GiB, peak 2.0 GiB");
  CHECK(progress_text({1, 10, 1, 1, 0, 1023}, 0) ==
        "step  1/10  loss 1.000e+00  lr 1.0e+00  memory 0 B, peak 1023 B");
  CHECK(progress_text({1, 10, 1, 1, 0, 0}, 0.05).find("0.050 steps/s  ETA 3:00") != std::string::npos);
}

TEST_CASE("bytes and durations read well") {
  CHECK(bytes_text(1024) == "1.0 KiB");
  CHECK(bytes_text((1u << 20) - 1) == "1.0 MiB");
  CHECK(bytes_text(std::uint64_t{5} << 40) == "5.0 TiB");
  CHECK(bytes_text(std::uint64_t{5000} << 40) == "5000.0 TiB");
  CHECK(duration_text(0.4) == "0:00");
  CHECK(duration_text(146) == "2:26");
  CHECK(duration_text(47100) == "13:05:00");
  CHECK(duration_text(3 * 86400 + 4 * 3600 + 600) == "3d 04:10:00");
  CHECK(duration_text(-5) == "0:00");
}

TEST_CASE("progress in a log has no control characters") {
  Bench bench(false, 10);
  for (int i = 1; i <= 100; ++i) bench.step(i, i * 0.25);
  bench.progress.finish();
  bench.progress.finish();
  bench.step(101, 1000);
  const std::string output = bench.output();
  CHECK(std::ranges::count(output, '\n') == 4);  // at 0.25 s, 10.25 s, 20.25 s, and the end
  CHECK(output.starts_with("step   1/100"));
  CHECK(output.find("\nstep  41/100") != output.npos);
  CHECK(output.find("\nstep  81/100") != output.npos);
  CHECK(output.find("\nstep 100/100") != output.npos);
  CHECK(output.find('\r') == output.npos);
  CHECK(output.find('\x1b') == output.npos);
  CHECK(output.find("4.0 steps/s  ETA 0:00") != output.npos);
}

TEST_CASE("the last state is not printed twice") {
  Bench bench(false, 1);
  bench.step(1, 1);
  bench.step(2, 2);
  bench.progress.finish();
  CHECK(std::ranges::count(bench.output(), '\n') == 2);
  Bench idle(true, 1);
  idle.progress.finish();
  CHECK(idle.output().empty());
}

TEST_CASE("progress on a terminal is redrawn in place") {
  Bench bench(true, 0.1);
  for (int i = 1; i <= 100; ++i) bench.step(i, i * 0.01);
  bench.progress.finish();
  const std::string output = bench.output();
  CHECK(std::ranges::count(output, '\n') == 1);
  CHECK(output.ends_with('\n'));
  const auto redraws = std::ranges::count(output, '\r');
  CHECK(redraws >= 10);
  CHECK(redraws <= 12);
  CHECK(output.rfind("\rstep 100/100") != output.npos);
}

TEST_CASE("a shorter progress line wipes the longer one") {
  Bench bench(true, 0);
  bench.now = 1;
  bench.progress.update({1, 100, 0.5, 1e-4, 1000 << 10, 1000 << 10});
  bench.progress.skip_pause();
  const std::size_t first = bench.output().size() - 1;
  bench.progress.update({1, 100, 0.5, 1e-4, 1 << 10, 1 << 10});
  CHECK(bench.output().size() == 2 * (first + 1));
  CHECK(bench.output().ends_with("KiB      "));
  const std::size_t before = bench.output().size();
  bench.progress.interrupt();
  const std::string cleared = bench.output().substr(before);
  CHECK(cleared.front() == '\r');
  CHECK(cleared.back() == '\r');
  CHECK(cleared.find_first_not_of(" \r") == cleared.npos);
  bench.progress.finish();
  CHECK(bench.output().find("step", before) != std::string::npos);
}

TEST_CASE("the rate leaves out pauses and resumed steps") {
  Bench bench(false, 0);
  bench.step(50, 0);  // resumed at 50: those steps were not done now
  CHECK(bench.output().find("steps/s") == std::string::npos);
  for (int i = 51; i <= 60; ++i) bench.step(i, (i - 50) * 0.5);
  CHECK(bench.output().find("\nstep  60/100  loss 5.000e-01  lr 1.0e-04  2.0 steps/s  ETA 0:20") !=
        std::string::npos);
  bench.now = 500;
  bench.progress.skip_pause();
  bench.step(61, 500.5);
  CHECK(bench.output().find("\nstep  61/100  loss 5.000e-01  lr 1.0e-04  2.0 steps/s") != std::string::npos);
  for (int i = 62; i <= 99; ++i) bench.step(i, 500.5 + (i - 61) * 5.0);
  CHECK(bench.output().find("\nstep  99/100  loss 5.000e-01  lr 1.0e-04  0.200 steps/s") !=
        std::string::npos);
}

TEST_CASE("a file is no terminal") {
  Bench bench(false, 1);
  CHECK_FALSE(is_terminal(bench.stream));
}
