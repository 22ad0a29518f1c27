// SPDX-License-Identifier: Apache-2.0
// The main of every test binary. A run that executes no test case, and a test case that makes no assertion,
// are failures: a filter with a typo or an empty loop must not pass.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <vector>

namespace {

std::vector<std::string> empty_cases;
int cases_run = 0;

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
  void test_case_skipped(const doctest::TestCaseData&) override {}
};

}  // namespace

DOCTEST_REGISTER_LISTENER("assertion-counter", 1, AssertionCounter);

int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  const int result = context.run();
  if (context.shouldExit()) return result;
  for (const std::string& name : empty_cases)
    std::fprintf(stderr, "test case without assertions: %s\n", name.c_str());
  if (cases_run == 0) std::fprintf(stderr, "no test case was run\n");
  return result != 0 || !empty_cases.empty() || cases_run == 0 ? 1 : 0;
}
