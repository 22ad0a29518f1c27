// SPDX-License-Identifier: Apache-2.0
// One mesh over the GPUs of ranks: rows at the parts' borders by NCCL, on the simulated device with a
// stand-in for NCCL. Gradients have the bits of rows that pass through host memory.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/autograd/rank_halo.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/nn/partition/part_batch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>

#include "device.h"
#include "device_array.h"
#include "model_case.h"
#include "nccl_simulated.h"
#include "partition_case.h"
#include "planted.h"
#include "simulated_ranks.h"
#include "support.h"
#include "train/small_run.h"

namespace meshgrad::nccl_halo_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

constexpr Device kDevice{DeviceKind::cuda, 0};

/// Each rank on a host of its own, as far as it knows: then it has a GPU for itself.
SimulatedNetwork hosts(int ranks) {
  return {.ranks = ranks, .ranks_per_host = 1, .timeout = 60s, .loss = {}};
}

/// A mesh in host memory, cut into bands, that ranks share, with a target.
struct Whole {
  Runtime runtime = make_runtime(1);
  ModelCase options;
  DType dtype;
  LossBatch batch;
  int ranks;
  std::vector<int32_t> owners;

  Whole(DType type, int count, int64_t side, int64_t blocks)
      : options(model_case(4, 2, 64, blocks)), dtype(type), ranks(count) {
    const MeshCase mesh = square_mesh(side);
    RandomMatrices from(31);
    const auto random = [&](int64_t rows, int64_t width, DType of) {
      return to_tensor(runtime, stored_as(of, from.normal(rows, width)), of);
    };
    batch.graph.nodes = mesh.nodes;
    batch.graph.edge_sets.push_back({"mesh", build_graph(runtime, mesh.nodes, mesh.senders, mesh.receivers),
                                     random(std::ssize(mesh.senders), 3, dtype)});
    batch.graph.node_features = random(mesh.nodes, 4, dtype);
    batch.target = random(mesh.nodes, 2, accumulator_of(dtype));
    batch.mask = mask_tensor(runtime, std::vector<uint8_t>(static_cast<size_t>(mesh.nodes), 1));
    for (int64_t i = 0; i < mesh.nodes; ++i) owners.push_back(static_cast<int32_t>(count * i / mesh.nodes));
  }
  Part part(int rank) const { return make_part(owners, rank, ranks, sorted_edges(batch.graph)); }
};

/// Rows of a part's owned nodes, on a device.
Tensor owned_rows(Runtime& runtime, const Tensor& whole, const Part& part) {
  const auto owned = std::span(part.nodes).first(static_cast<size_t>(part.owned));
  const Shape shape = whole.shape().rank() == 1 ? Shape{part.owned} : Shape{part.owned, whole.width()};
  const Tensor rows = host_tensor(shape, whole.dtype());
  copy_rows(whole, owned, rows);
  const Tensor device = Tensor::empty(runtime, shape, whole.dtype(), Tag::data);
  copy(rows, device, runtime.stream());
  runtime.stream().synchronize();
  return device;
}

using MakeExchange = std::function<std::shared_ptr<HaloExchange>(Ranks&, Runtime&)>;

std::shared_ptr<HaloExchange> through_host(Ranks& ranks, Runtime&) {
  return std::make_shared<RankHaloExchange>(ranks);
}
std::shared_ptr<HaloExchange> by_nccl(Ranks& ranks, Runtime& runtime) {
  return std::make_shared<DeviceHaloExchange>(std::make_shared<const DeviceRanks>(ranks, kDevice, 50s),
                                              runtime.stream());
}

struct Outcome {
  std::vector<std::vector<double>> gradients;  // by rank
  std::vector<int64_t> bytes;                  // by rank, in messages of NCCL
};

void run_rank(const Whole& whole, Ranks& ranks, const MakeExchange& make, Outcome& outcome,
              std::span<const RecomputedStages> recomputed = {}) {
  Runtime runtime = make_runtime(1, kDevice);
  const Model model = make_model(whole.options, runtime, whole.dtype, 7);
  const Part part = whole.part(ranks.rank());
  LossBatch batch{part_batch(runtime, whole.batch.graph, part, make(ranks, runtime)),
                  owned_rows(runtime, whole.batch.target, part), owned_rows(runtime, whole.batch.mask, part)};
  const double one[] = {1.0};
  const Tensor seed = Tensor::from<double>(runtime, one, Shape{1}, Tag::data);
  const auto rank = static_cast<size_t>(ranks.rank());
  const int64_t before = simt::nccl_bytes_sent();
  Tape tape(runtime);
  const LossSum loss =
      ops::masked_loss(tape, predict(model, tape, batch.graph, recomputed), batch.target, batch.mask);
  tape.backward(loss.sum, seed);
  outcome.bytes[rank] = simt::nccl_bytes_sent() - before;
  const Tensor gradients = to_host(model.parameters.gradients(), runtime.stream());
  outcome.gradients[rank] = to_matrix(gradients).v;
}

Outcome outcome_of(const Whole& whole, const MakeExchange& make,
                   std::span<const RecomputedStages> recomputed = {}) {
  const auto size = static_cast<size_t>(whole.ranks);
  Outcome outcome{.gradients = std::vector<std::vector<double>>(size), .bytes = std::vector<int64_t>(size)};
  on_ranks(hosts(whole.ranks), [&](Ranks& ranks) { run_rank(whole, ranks, make, outcome, recomputed); });
  return outcome;
}

TEST_CASE("rows by NCCL have the bits of rows through the host") {
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const int ranks : {2, 3}) {
      const Whole whole(dtype, ranks, ranks == 2 ? 6 : 7, 2);
      const Outcome host = outcome_of(whole, through_host);
      for (const int64_t bytes : host.bytes) CHECK(bytes == 0);
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        simt::set_seed(seed);
        const Outcome nccl = outcome_of(whole, by_nccl);
        CAPTURE(name_of(dtype));
        CAPTURE(ranks);
        CHECK(nccl.gradients == host.gradients);
        for (int rank = 0; rank < ranks; ++rank) {
          const Part part = whole.part(rank);
          CHECK(nccl.bytes[static_cast<size_t>(rank)] ==
                whole.options.blocks * exchanged_bytes(part, whole.options.width, dtype) / 2);
        }
      }
      const RecomputedStages blocks[] = {{1, 2}, {2, 3}};
      CHECK(outcome_of(whole, by_nccl, blocks).gradients == host.gradients);
    }
  }
}

TEST_CASE("gradients of parts on GPUs are those of the whole mesh") {
  for (const int ranks : {2, 3}) {
    const Whole whole(DType::f32, ranks, 7, 2);
    Whole alone(DType::f32, 1, 7, 2);
    const std::vector<double> expected = outcome_of(alone, through_host).gradients.front();
    const Outcome parts = outcome_of(whole, by_nccl);
    double difference = 0.0, total = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      double sum = 0.0;
      for (const std::vector<double>& gradients : parts.gradients) sum += gradients[i];
      difference += (sum - expected[i]) * (sum - expected[i]);
      total += expected[i] * expected[i];
    }
    CHECK(std::sqrt(difference / total) < 1e-5);
  }
}

/// Tells of each exchange, and of the wait for it.
class Watched final : public HaloExchange {
 public:
  using Told = std::function<void(bool back, bool waits)>;
  Watched(std::shared_ptr<HaloExchange> inner, Told told)
      : inner_(std::move(inner)), told_(std::move(told)) {}
  bool on_device() const override { return inner_->on_device(); }
  std::unique_ptr<Request> forward(const Halo& halo, const Tensor& sent, const Tensor& ghosts) override {
    told_(false, false);
    return std::make_unique<WatchedRequest>(inner_->forward(halo, sent, ghosts), told_, false);
  }
  std::unique_ptr<Request> backward(const Halo& halo, const Tensor& d_ghosts, const Tensor& d_sent) override {
    told_(true, false);
    return std::make_unique<WatchedRequest>(inner_->backward(halo, d_ghosts, d_sent), told_, true);
  }

 private:
  class WatchedRequest final : public Request {
   public:
    WatchedRequest(std::unique_ptr<Request> request, const Told& told, bool back)
        : inner_(std::move(request)), told_(told), back_(back) {}
    void wait() override {
      told_(back_, true);
      inner_->wait();
    }

   private:
    std::unique_ptr<Request> inner_;
    const Told& told_;
    bool back_;
  };
  std::shared_ptr<HaloExchange> inner_;
  Told told_;
};

TEST_CASE("edges of interior nodes run before rows arrive") {
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const MakeExchange& make : {MakeExchange(by_nccl), MakeExchange(through_host)}) {
      const Whole whole(dtype, 2, 8, 1);
      std::atomic<int> parked = 0, released = 0;  // of rank 1: in forward, then in backward
      std::vector<std::vector<simt::LaunchReport>> ran;
      Outcome outcome{.gradients = std::vector<std::vector<double>>(2), .bytes = std::vector<int64_t>(2)};
      on_ranks(hosts(2), [&](Ranks& ranks) {
        run_rank(
            whole, ranks,
            [&](Ranks& on, Runtime& runtime) {
              return std::make_shared<Watched>(
                  make(on, runtime), [&, first = on.first()](bool back, bool waits) {
                    const int exchange = back ? 2 : 1;
                    if (!first && !waits) {
                      runtime.stream().synchronize();  // its launches are reported
                      parked = exchange;
                      while (released < exchange) std::this_thread::yield();
                    } else if (first && !waits) {
                      while (parked < exchange) std::this_thread::yield();
                      runtime.stream().synchronize();
                      simt::take_reports();
                    } else if (first) {
                      runtime.stream().synchronize();
                      ran.push_back(simt::take_reports());
                      released = exchange;
                    }
                  });
            },
            outcome);
      });
      REQUIRE(ran.size() == 2);
      const auto count = [](const std::vector<simt::LaunchReport>& reports, const std::string& name) {
        return std::ranges::count(reports, name, &simt::LaunchReport::name);
      };
      CAPTURE(name_of(dtype));
      CHECK(count(ran[0], dtype == DType::f16 ? "edge_forward" : "first_layer_terms") == 1);
      CHECK(count(ran[1], dtype == DType::f16 ? "edge_backward" : "edge_gradient") == 1);
    }
  }
}

/// What three ranks in a ring send: rank r gives to r + 1 and gets from r - 1, by a kernel's values.
struct Ring {
  std::function<void(Ranks&, std::vector<Send>&, std::vector<Receive>&)> spoil = nullptr;
  bool waits_for_values = true, waits_for_rows = true;
  bool reuses = false;  // a kernel overwrites what is sent, as if its memory had been handed out again
  bool frees = false;   // rank 2 frees what it receives before the call
  std::chrono::milliseconds timeout = 10s;
  bool absent = false;  // rank 1 does not come
};
constexpr int64_t kRow = 16;

/// How the ranks ended, and the first value that each received.
struct RingOutcome {
  Endings endings;
  std::vector<float> got = std::vector<float>(3, -1.0f);
};
RingOutcome run_ring(const Ring& ring) {
  RingOutcome outcome;
  outcome.endings = try_on_ranks(hosts(3), [&](Ranks& on) {
    on.set_step(7);
    const OwnStream kernels, messages;
    const int rank = on.rank();
    auto sent =
        std::make_unique<DeviceArray<float>>(std::vector<float>(kRow, static_cast<float>(rank)), kernels);
    auto received = std::make_unique<DeviceArray<float>>(std::vector<float>(kRow, -5.0f), kernels);
    const DeviceRanks device(on, kDevice, ring.timeout);
    cuda::planted::add_one(kernels.stream, sent->data, sent->data, kRow);
    Event ready;
    ready.record(kernels.stream);
    if (ring.waits_for_values) ready.make_wait(messages.stream);
    const auto bytes = [](const DeviceArray<float>& array) {
      return std::span(reinterpret_cast<std::byte*>(array.data), kRow * sizeof(float));
    };
    std::vector<Send> sends{{(rank + 1) % 3, bytes(*sent)}};
    std::vector<Receive> receives{{(rank + 2) % 3, bytes(*received)}};
    barrier(on, "start of NCCL is over");
    if (ring.spoil) ring.spoil(on, sends, receives);
    if (ring.absent && rank == 1) {
      std::this_thread::sleep_for(ring.timeout + 500ms);
      throw std::runtime_error("late");
    }
    if (ring.frees && rank == 2) received.reset();
    device.exchange(sends, receives, messages.stream, "halo exchange");
    if (ring.reuses) cuda::planted::add_one(kernels.stream, sent->data, sent->data, kRow);
    if (ring.waits_for_rows) device.await(messages.stream, "halo exchange");
    cuda::planted::add_one(kernels.stream, received->data, received->data, kRow);
    outcome.got[static_cast<size_t>(rank)] = received->host(kernels)[3];
    device.await(messages.stream, "halo exchange");
  });
  return outcome;
}
bool all_right(const RingOutcome& outcome) {
  return outcome.endings == Endings(3) && outcome.got == std::vector<float>{4.0f, 2.0f, 3.0f};
}
/// Whether some order of streams shows it.
bool shows(const Ring& ring) {
  bool wrong = false;
  for (uint64_t seed = 1; seed <= 20 && !wrong; ++seed) {
    simt::set_seed(seed);
    wrong = !all_right(run_ring(ring));
  }
  return wrong;
}
std::string all_of(const Endings& endings) { return fmt::format("{}", fmt::join(endings, "\n")); }

TEST_CASE("messages sent, read or overwritten too early are noticed") {
  CHECK_FALSE(shows({}));
  CHECK(shows({.waits_for_values = false}));
  CHECK(shows({.waits_for_rows = false}));
  CHECK(shows({.reuses = true}));
}

TEST_CASE("messages of another size, rank or memory are errors") {
  const auto found = [](const Ring& ring, const std::string& text) {
    const RingOutcome outcome = run_ring(ring);
    const std::string endings = all_of(outcome.endings);
    CHECK_MESSAGE(endings.find(text) != std::string::npos, endings);
  };
  found({.spoil =
             [](Ranks& on, std::vector<Send>&, std::vector<Receive>& receives) {
               if (on.rank() == 2) receives[0].bytes = receives[0].bytes.first(60);
             }},
        "got 60 bytes received of 64 that were sent");
  found({.spoil =
             [](Ranks& on, std::vector<Send>& sends, std::vector<Receive>&) {
               if (on.rank() == 2) sends[0].to = 5;
             }},
        "got a message of rank 2 with rank 5");
  found({.spoil =
             [](Ranks& on, std::vector<Send>& sends, std::vector<Receive>&) {
               if (on.rank() == 2) sends[0].to = 1;
             },
         .timeout = 500ms},
        "halo exchange, step 7] needed all ranks to take part in time");
  found({.frees = true}, "64 bytes that are not in memory of device 0");
}

TEST_CASE("a rank that exchanges no rows ends the others in time") {
  const std::string late = all_of(run_ring({.timeout = 300ms, .absent = true}).endings);
  CHECK_MESSAGE(
      late.find(": halo exchange, step 7] needed all ranks to take part in time") != std::string::npos, late);
  const auto begin = std::chrono::steady_clock::now();
  const Endings ended = run_ring({.spoil =
                                      [](Ranks& on, std::vector<Send>&, std::vector<Receive>&) {
                                        if (on.rank() == 1) throw std::runtime_error("no memory");
                                      },
                                  .timeout = 50s})
                            .endings;
  CHECK(std::chrono::steady_clock::now() - begin < 40s);
  for (const size_t rank : {size_t{0}, size_t{2}}) {
    CHECK_MESSAGE(ended[rank].find(fmt::format("[rank {}: halo exchange, step 7] needed", rank)) == 0,
                  ended[rank]);
    CHECK(ended[rank].find("got the end of rank 1") != std::string::npos);
  }
}

TEST_CASE("an exchange that ends without a wait is aborted") {
  const Whole whole(DType::f32, 2, 6, 1);
  const int before = simt::nccl_counts().aborted;
  on_ranks(hosts(2), [&](Ranks& on) {
    Runtime runtime = make_runtime(1, kDevice);
    const Part part = whole.part(on.rank());
    const auto exchange = by_nccl(on, runtime);
    const Halo halo = part_halo(runtime, part, exchange);
    const auto rows = [&](int64_t count) {
      return Tensor::zeros(runtime, Shape{count, 4}, DType::f32, Tag::data);
    };
    const Tensor sent = rows(halo.sent.rows()), ghosts = rows(halo.ghosts);
    if (on.first()) exchange->forward(halo, sent, ghosts).reset();
    barrier(on, "end");
  });
  CHECK(simt::nccl_counts().aborted - before == 1);
}

/// The tensors after a run of 3 steps on parts, of rank 0.
std::map<std::string, std::string> trained(const SimulatedNetwork& network, Config config,
                                           const std::string& folder, std::string& messages) {
  config.run.dir = folder;
  on_ranks(network, [&](Ranks& on) {
    Runtime runtime({.device = kDevice, .threads = 1, .allocator = config.memory, .log = {}, .memory = {}});
    TrainOptions options;
    options.ranks = &on;
    if (on.first()) options.observer.event = [&](const RunEvent& event) { messages += event.text + "\n"; };
    train(runtime, config, options);
  });
  return tensors_of(config);
}

/// What rank 0 says of the bytes of a step.
std::string sent_in(const std::string& messages) {
  const size_t begin = messages.find("rank 0 sent");
  return begin == std::string::npos ? "" : messages.substr(begin, messages.find('\n', begin) - begin);
}

TEST_CASE("training on parts by NCCL has the bits of host sums") {
  const ScratchDirectory scratch;
  const auto data = pack_waves(scratch.path, 5, 6);
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const int ranks : {2, 3}) {
      const bool fused = dtype == DType::f16;  // slow here
      if (fused && ranks == 3) continue;
      Config config = small_config(scratch.path, data);
      config.precision = dtype;
      config.model.width = 64;
      config.model.blocks = 1;
      config.train.steps = fused ? 1 : 3;
      config.train.batch = 1;
      config.train.accumulate = fused ? 1 : 2;
      config.train.validate_every = 0;
      config.train.checkpoint_every = 0;
      config.ranks.partition = MeshPartition::rcb;
      if (ranks == 3) {
        config.unroll.steps = 2;
        config.recompute.mode = RecomputeMode::block;
      }
      const std::string folder = (scratch.path / fmt::format("{}{}", name_of(dtype), ranks)).string();
      std::string by_host, by_gpu;
      const int before = simt::nccl_counts().exchanges;
      const auto host =
          trained({.ranks = ranks, .timeout = 60s, .loss = {}}, config, folder + "host", by_host);
      CHECK(simt::nccl_counts().exchanges == before);
      const auto nccl = trained(hosts(ranks), config, folder + "nccl", by_gpu);
      CHECK(nccl == host);
      // Forward and backward of the block, of each sample.
      CHECK(simt::nccl_counts().exchanges - before >=
            2 * config.train.steps * config.train.accumulate * ranks);
      CHECK_MESSAGE(by_gpu.find("NCCL exchanges the rows at their borders") != std::string::npos, by_gpu);
      CHECK(by_host.find("NCCL exchanges") == std::string::npos);
      const std::string sent = sent_in(by_host);
      CHECK(sent.find(" MB a step to the other ranks") != std::string::npos);
      CHECK(sent_in(by_gpu) == sent);
    }
  }
}

}  // namespace
}  // namespace meshgrad::nccl_halo_test
