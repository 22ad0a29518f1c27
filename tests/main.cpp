// SPDX-License-Identifier: Apache-2.0
// The main of every test binary. A run that executes no test case, and a test case that makes no assertion,
// are failures: a filter with a typo or an empty loop must not pass. A source whose cases all need a GPU,
// where there is none, is skipped: exit code 77; with MESHGRAD_REQUIRE_GPU set (scripts/gpu-gate), all of it
// fails.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <meshgrad/engine/device.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

std::vector<std::string> empty_cases;
int cases_run = 0;
int cases_in_want = 0;  // of the source asked for, skipped by themselves
std::string source;     // the end of its path

struct AssertionCounter : doctest::IReporter {
  explicit AssertionCounter(const doctest::ContextOptions&) {}
  const doctest::TestCaseData* current = nullptr;
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& data) override { current = &data; }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& stats) override {
    ++cases_run;
    if (stats.numAssertsCurrentTest == 0) empty_cases.push_back(current->m_name);
  }
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData& data) override {
    if (data.m_skip && !source.empty() && std::string(data.m_file.c_str()).ends_with(source)) ++cases_in_want;
  }
};

}  // namespace

DOCTEST_REGISTER_LISTENER("assertion-counter", 1, AssertionCounter);

int main(int argc, char** argv) {
  constexpr std::string_view kSource = "--source-file=*";
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.starts_with(kSource)) source = argument.substr(kSource.size());
  }
  if (std::getenv("MESHGRAD_REQUIRE_GPU") != nullptr && meshgrad::cuda_devices().empty()) {
    std::fprintf(stderr, "MESHGRAD_REQUIRE_GPU is set, and there is no GPU\n");
    return 1;
  }
  doctest::Context context(argc, argv);
  const int result = context.run();
  if (context.shouldExit()) return result;
  for (const std::string& name : empty_cases)
    std::fprintf(stderr, "test case without assertions: %s\n", name.c_str());
  if (cases_run == 0 && cases_in_want > 0) {
    std::fprintf(stderr, "every test case of %s needs a GPU\n", source.c_str());
    return 77;
  }
  if (cases_run == 0) std::fprintf(stderr, "no test case was run\n");
  return result != 0 || !empty_cases.empty() || cases_run == 0 ? 1 : 0;
}
