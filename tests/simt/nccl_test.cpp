// SPDX-License-Identifier: Apache-2.0
// Sums of gradients by NCCL, on the simulated device with a stand-in for NCCL: alone, and in training.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/ranks/bucket_sum.h>
#include <meshgrad/engine/ranks/device_ranks.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <thread>

#include "device.h"
#include "device_array.h"
#include "nccl_simulated.h"
#include "planted.h"
#include "simulated_ranks.h"
#include "support.h"
#include "train/small_run.h"

namespace meshgrad {
namespace {

using namespace std::chrono_literals;
using test::DeviceArray;
using test::Endings;
using test::OwnStream;
using test::SimulatedNetwork;

constexpr int kRanks = 3;
constexpr int64_t kElements = 10;
constexpr Device kDevice{DeviceKind::cuda, 0};

/// Each rank on a host of its own, as far as it knows: then it has a GPU for itself.
SimulatedNetwork hosts(int ranks) {
  return {.ranks = ranks, .ranks_per_host = 1, .timeout = 60s, .loss = {}};
}

/// Value i of a rank.
template <class T>
std::vector<T> values_of(int rank) {
  std::vector<T> values;
  for (int64_t i = 0; i < kElements; ++i) values.push_back(static_cast<T>(100 * rank + i));
  return values;
}

template <class T>
Tensor tensor_of(const DeviceArray<T>& array, int64_t elements = kElements) {
  return Tensor::borrow(array.data, Shape{elements}, dtype_of<T>(), {}, kDevice);
}

TEST_CASE_TEMPLATE("NCCL adds a tensor of every rank", T, float, double) {
  for (const int ranks : {1, kRanks}) {
    test::on_ranks(hosts(ranks), [&](Ranks& on) {
      const OwnStream stream;
      const DeviceArray<T> array(values_of<T>(on.rank()), stream);
      const DeviceRanks device(on, kDevice, 10s);
      device.all_reduce(tensor_of(array), stream.stream, "sum of gradients");
      device.await(stream.stream, "sum");
      const std::vector<T> sums = array.host(stream);
      for (int64_t i = 0; i < kElements; ++i)
        CHECK(sums[static_cast<size_t>(i)] == static_cast<T>(50 * ranks * (ranks - 1) + ranks * i));
    });
  }
}

/// Whether, for some order of streams, a sum of values that a kernel writes has others.
bool sums_too_early(const std::function<void(const OwnStream& kernels, const OwnStream& sums)>& order) {
  bool wrong = false;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    simt::set_seed(seed);
    test::on_ranks(hosts(1), [&](Ranks& on) {
      const OwnStream kernels, sums;
      const DeviceArray<float> array(values_of<float>(0), kernels);
      const DeviceRanks device(on, kDevice, 10s);
      cuda::planted::add_one(kernels.stream, array.data, array.data, kElements);
      order(kernels, sums);
      device.all_reduce(tensor_of(array), sums.stream, "sum of gradients");
      cuda::planted::add_one(sums.stream, array.data, array.data, kElements);
      wrong |= array.host(sums)[3] != 5.0f;
    });
  }
  return wrong;
}

TEST_CASE("a sum that does not wait for its values is noticed") {
  CHECK_FALSE(sums_too_early([](const OwnStream& kernels, const OwnStream& sums) {
    Event ready;
    ready.record(kernels.stream);
    ready.make_wait(sums.stream);
  }));
  CHECK(sums_too_early([](const OwnStream&, const OwnStream&) {}));
}

TEST_CASE("buckets wait for the work queued before them") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    simt::set_seed(seed);
    test::on_ranks(hosts(kRanks), [&](Ranks& on) {
      const OwnStream stream;
      const DeviceArray<float> array(values_of<float>(on.rank()), stream);
      const auto add_one = [&](int64_t begin, int64_t end) {
        float* const data = array.data + begin;
        cuda::planted::add_one(stream.stream, data, data, static_cast<int>(end - begin));
      };
      const DeviceRanks device(on, kDevice, 10s);
      const auto buckets = make_bucket_sum(device, stream.stream, {0, 4, 7}, "sum of gradients");
      buckets->start(tensor_of(array));
      add_one(4, kElements);
      if (on.rank() != 1) buckets->ready_from(5);
      add_one(0, 4);
      buckets->finish();
      add_one(0, kElements);
      const std::vector<float> sums = array.host(stream);
      for (int64_t i = 0; i < kElements; ++i)
        CHECK(sums[static_cast<size_t>(i)] == static_cast<float>(300 + 3 * (i + 1) + 1));
    });
  }
}

TEST_CASE("ranks with different sizes or foreign memory are errors") {
  const auto endings_of = [](int64_t elements, bool freed) {
    return test::try_on_ranks(hosts(kRanks), [&](Ranks& on) {
      const OwnStream stream;
      auto array = std::make_unique<DeviceArray<float>>(values_of<float>(on.rank()), stream);
      const DeviceRanks device(on, kDevice, 10s);
      const bool odd = on.rank() == 2;
      const Tensor tensor = tensor_of(*array, odd ? elements : kElements);
      if (odd && freed) array.reset();
      device.all_reduce(tensor, stream.stream, "sum of gradients");
      device.await(stream.stream, "sum of gradients");
    });
  };
  // Whichever came second is told.
  const Endings counts = endings_of(kElements - 1, false);
  CHECK(std::any_of(counts.begin(), counts.end(), [](const std::string& text) {
    return text.find("needed ncclAllReduce to succeed, got a sum of ") != std::string::npos;
  }));
  CHECK(endings_of(kElements, true)[2].find("40 bytes that are not in memory of device 0") !=
        std::string::npos);
  CHECK(endings_of(kElements + 1, false)[2].find("44 bytes that are not in") != std::string::npos);
}

TEST_CASE("a rank that waits for a failed one ends") {
  const auto endings_of = [](bool fails, std::chrono::milliseconds timeout) {
    std::atomic<int> ready = 0;
    return test::try_on_ranks(hosts(kRanks), [&](Ranks& on) {
      const OwnStream stream;
      const DeviceArray<float> array(values_of<float>(on.rank()), stream);
      const DeviceRanks device(on, kDevice, timeout);
      for (++ready; ready < kRanks;) std::this_thread::yield();
      if (on.rank() == 1 && fails) throw std::runtime_error("no memory");
      if (on.rank() != 1) device.all_reduce(tensor_of(array), stream.stream, "sum of gradients");
      if (on.rank() != 1) device.await(stream.stream, "sum of gradients");
    });
  };
  const simt::NcclCounts before = simt::nccl_counts();
  const auto begin = std::chrono::steady_clock::now();
  const Endings failed = endings_of(true, 50s);
  CHECK(std::chrono::steady_clock::now() - begin < 40s);
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    CHECK_MESSAGE(failed[rank].find(fmt::format("[rank {}: sum of gradients] needed", rank)) == 0,
                  failed[rank]);
    CHECK(failed[rank].find("got the end of rank 1") != std::string::npos);
  }
  CHECK(failed[1] == "no memory");
  CHECK(simt::nccl_counts().aborted == before.aborted + 3);
  const Endings hanging = endings_of(false, 300ms);  // the other one may be told before its own time is over
  const std::string timed_out = "needed all ranks to take part in time";
  CHECK_MESSAGE((hanging[0] + hanging[2]).find(timed_out) != std::string::npos, hanging[0] << hanging[2]);
  CHECK(simt::nccl_counts().aborted == before.aborted + 5);
  CHECK(simt::nccl_counts().destroyed == before.destroyed + 1);
}

TEST_CASE("a rank missing at NCCL's start ends the others in time") {
  const auto endings_of = [](bool fails, std::chrono::milliseconds timeout) {
    std::atomic<int> waited = 0;
    return test::try_on_ranks(hosts(kRanks), [&](Ranks& on) {
      if (on.rank() == 1 && fails) throw std::runtime_error("no memory");
      while (on.rank() == 1 && waited == 0) std::this_thread::yield();
      if (on.rank() == 1) return on.leave();
      try {
        const DeviceRanks device(on, kDevice, timeout);
      } catch (const Error&) {
        ++waited;
        throw;
      }
    });
  };
  const simt::NcclCounts before = simt::nccl_counts();
  const Endings late = endings_of(false, 300ms);
  CHECK_MESSAGE(
      (late[0] + late[2]).find(": start of NCCL] needed all ranks to take part in time") != std::string::npos,
      late[0] << late[2]);
  const auto begin = std::chrono::steady_clock::now();
  const Endings failed = endings_of(true, 50s);
  CHECK(std::chrono::steady_clock::now() - begin < 40s);
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    CHECK(late[rank] != "");
    CHECK_MESSAGE(failed[rank].find("] needed all ranks to go on, got the end of rank") != std::string::npos,
                  failed[rank]);
  }
  CHECK(simt::nccl_counts().aborted > before.aborted);  // by those that had got the id
  CHECK(simt::nccl_counts().destroyed == before.destroyed);
}

TEST_CASE("an end that NCCL notices first names its rank") {
  // The others notice it when they queue the sum, or when they wait for it.
  const auto endings_of = [](bool in_wait, bool ends) {
    std::atomic<int> ready = 0, noticed = 0;
    return test::try_on_ranks(hosts(kRanks), [&](Ranks& on) {
      const OwnStream stream;
      const DeviceArray<float> array(values_of<float>(on.rank()), stream);
      const DeviceRanks device(on, kDevice, 50s);
      ++ready;
      while (ready < kRanks) std::this_thread::yield();
      if (on.rank() == 1) {
        while (noticed == 0) std::this_thread::yield();
        std::this_thread::sleep_for(50ms);  // the others learn of the end after NCCL does
        if (ends) throw std::runtime_error("no memory");
        std::this_thread::sleep_for(2s);
        return;
      }
      simt::report_remote_error(!in_wait);
      if (!in_wait) ++noticed;
      device.all_reduce(tensor_of(array), stream.stream, "sum of gradients");
      simt::report_remote_error(true);
      ++noticed;
      device.await(stream.stream, "sum of gradients");
    });
  };
  for (const bool in_wait : {false, true}) {
    CAPTURE(in_wait);
    const Endings ended = endings_of(in_wait, true), other = endings_of(in_wait, false);
    for (const size_t rank : {size_t{0}, size_t{2}}) {
      CHECK_MESSAGE(ended[rank].find(fmt::format("[rank {}: sum of gradients] needed", rank)) == 0,
                    ended[rank]);
      CHECK_MESSAGE(ended[rank].find("got the end of rank 1") != std::string::npos, ended[rank]);
    }
    const std::string first = other[0] + other[2];  // the later of the two may be told the end of the first
    CHECK_MESSAGE(first.find("another error") != std::string::npos, first);
  }
}

/// The tensors after a run of 3 steps of 3 samples, of rank 0.
std::map<std::string, std::string> trained(const SimulatedNetwork& network, Config config,
                                           const std::string& folder, std::string* messages = nullptr,
                                           const std::function<void(Ranks&)>& before = {}) {
  config.run.dir = folder;
  test::on_ranks(network, [&](Ranks& on) {
    if (before) before(on);
    Runtime runtime({.device = kDevice, .threads = 1, .allocator = config.memory, .log = {}, .memory = {}});
    TrainOptions options;
    options.ranks = &on;
    if (on.first() && messages != nullptr)
      options.observer.event = [&](const RunEvent& event) { *messages += event.text + "\n"; };
    train(runtime, config, options);
  });
  return test::tensors_of(config);
}

Config step_config(const test::ScratchDirectory& scratch) {
  Config config = test::small_config(scratch.path, test::pack_waves(scratch.path, 4, 6));
  config.model.width = 64;  // several buckets
  config.model.blocks = 1;
  config.train.steps = 3;
  config.train.batch = 3;
  config.train.accumulate = 1;
  config.train.validate_every = 0;
  config.train.checkpoint_every = 0;
  config.train.log_every = 3;
  return config;
}

TEST_CASE("training by NCCL has the bits of host sums") {
  const test::ScratchDirectory scratch;
  Config config = step_config(scratch);
  std::string messages;
  const auto by_host = trained({.ranks = kRanks, .timeout = 60s, .loss = {}}, config,
                               (scratch.path / "host").string(), &messages);
  const std::string shared =
      "gradients are added in host memory: ranks 0 and 1 have the same GPU, 0000:01:00.0";
  CHECK_MESSAGE(messages.find(shared) != std::string::npos, messages);
  messages.clear();
  const int before = simt::nccl_counts().sums;
  const auto by_nccl = trained(hosts(kRanks), config, (scratch.path / "nccl").string(), &messages);
  CHECK(messages.find("NCCL adds gradients") != std::string::npos);
  CHECK(by_nccl == by_host);
  const int sums = simt::nccl_counts().sums - before;
  CHECK(sums >= 2 * 3 * kRanks);  // buckets, steps and ranks
  CHECK(sums % (3 * kRanks) == 0);
  config.graphs = GraphsMode::capture;
  messages.clear();
  const auto captured = trained(hosts(kRanks), config, (scratch.path / "captured").string(), &messages);
  CHECK(messages.find("captured the step of batches") != std::string::npos);
  CHECK(captured == trained({.ranks = kRanks, .timeout = 60s, .loss = {}}, config,
                            (scratch.path / "captured_host").string()));
  CHECK(simt::nccl_counts().sums == before + 2 * sums);
}

TEST_CASE("ranks of a host use NCCL unless two share a GPU") {
  const test::ScratchDirectory scratch;
  Config config = step_config(scratch);
  config.train.steps = 1;
  for (const bool same : {false, true}) {
    std::string messages;
    const auto see_own = [&](Ranks& on) {
      simt::see_only(same && on.rank() > 0 ? "0000:81:00.0" : fmt::format("0000:{:x}1:00.0", on.rank() + 1));
    };
    trained({.ranks = kRanks, .timeout = 60s, .loss = {}}, config,
            (scratch.path / "run").string() + (same ? "2" : "1"), &messages, see_own);
    const std::string told =
        same ? "in host memory: ranks 1 and 2 have the same GPU, 0000:81:00.0" : "NCCL adds";
    CHECK_MESSAGE(messages.find(told) != std::string::npos, messages);
  }
}

TEST_CASE("one rank trains the same bits with ranks.sum_alone, by NCCL") {
  const test::ScratchDirectory scratch;
  Config config = step_config(scratch);
  config.train.accumulate = 2;
  config.train.batch = 1;
  const int before = simt::nccl_counts().sums;
  const auto plain = trained(hosts(1), config, (scratch.path / "plain").string());
  CHECK(simt::nccl_counts().sums == before);
  config.ranks.sum_alone = true;
  std::string messages;
  const auto alone = trained(hosts(1), config, (scratch.path / "alone").string(), &messages);
  CHECK(messages.find("NCCL adds gradients") != std::string::npos);
  CHECK(simt::nccl_counts().sums >= before + 2 * 3);
  CHECK(alone == plain);
}

}  // namespace
}  // namespace meshgrad
