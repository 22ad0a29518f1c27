// SPDX-License-Identifier: Apache-2.0
// Offload: the same gradients, less memory, each value moved once, and no value offloaded that is still read.
#include <doctest/doctest.h>
#include <meshgrad/autograd/offload/offload.h>
#include <meshgrad/autograd/ops.h>
#include <meshgrad/autograd/recompute/checkpoint.h>
#include <meshgrad/engine/captured_work.h>
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "support.h"

using namespace meshgrad;
using namespace meshgrad::test;

namespace {

namespace fs = std::filesystem;

/// A new folder, gone at the end.
struct Folder {
  fs::path path;
  Folder() {
    std::string name = (fs::temp_directory_path() / "offload_test.XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~Folder() { fs::remove_all(path); }
};

/// Layers of a runtime's device, cut into segments.
struct Layers {
  Runtime runtime;
  std::vector<Weight> weights;
  Variable x;
  Tensor mask, target, seed;
  explicit Layers(Device device, int count = 6, int64_t rows = 40, int64_t width = 8)
      : runtime({.device = device, .threads = 1}) {
    RandomMatrices random(3);
    const auto values = [&](int64_t r, int64_t c) { return tensor(random.normal(r, c, 0.5)); };
    for (int i = 0; i < count; ++i) {
      weights.push_back({values(width, width), zeros({width, width})});
      fill_zero(weights.back().gradient, runtime.stream());
    }
    x = Variable(values(rows, width), true);
    const std::vector<uint8_t> ones(static_cast<size_t>(rows), 1);
    mask = Tensor::from<uint8_t>(runtime, ones, Shape{rows}, Tag::data);
    target = Tensor::zeros(runtime, Shape{rows, width}, DType::f32, Tag::data);
    const double half[] = {0.5};
    seed = Tensor::from<double>(runtime, half, Shape{1}, Tag::data);
  }
  /// From the runtime's allocator, whose counts are looked at.
  Tensor tensor(const Matrix& matrix) {
    std::vector<float> values(matrix.v.begin(), matrix.v.end());
    return Tensor::from<float>(runtime, values, Shape{matrix.rows, matrix.cols}, Tag::data);
  }
  Tensor zeros(const Shape& shape) { return Tensor::zeros(runtime, shape, DType::f32, Tag::gradients); }

  Variable layer(Tape& tape, const Variable& in, size_t i) const {
    return ops::activation(tape, ops::linear(tape, in, weights[i], {}), Activation::tanh);
  }
  /// Each layer a segment, after one that is none.
  Variable forward(Tape& tape, SavePolicy keep = SavePolicy::inputs) const {
    Variable y = layer(tape, x, 0);
    for (size_t i = 1; i < weights.size(); ++i) {
      y = checkpoint(
          tape, "layer",
          [this, i](Tape& inner, const Variables& in) { return Variables{layer(inner, in[0], i)}; }, {y},
          keep)[0];
    }
    return y;
  }
  void backward(Tape& tape, const Variable& y) const {
    tape.backward(ops::masked_loss(tape, y, target, mask).sum, seed);
  }
  /// All gradients, which start anew.
  std::vector<std::vector<double>> gradients(const std::function<void(Tape&)>& prepare,
                                             const std::function<Variable(Tape&)>& run) {
    Tape tape(runtime);
    prepare(tape);
    backward(tape, run(tape));
    std::vector<std::vector<double>> all{host_values(tape.take_gradient(x.slot()))};
    for (const Weight& weight : weights) {
      all.push_back(host_values(weight.gradient));
      fill_zero(weight.gradient, runtime.stream());
    }
    return all;
  }
  std::vector<double> host_values(const Tensor& tensor) const {
    return to_matrix(meshgrad::to_host(tensor, runtime.stream())).v;
  }
  int64_t peak() {
    runtime.stream().synchronize();
    const auto& tags = runtime.allocator().stats().by_tag;
    return tags[static_cast<size_t>(Tag::activations)].requested.peak;
  }
};

std::unique_ptr<OffloadStore> store_for(Device device, const Folder& folder) {
  return device.kind == DeviceKind::cuda ? make_host_store(device) : make_file_store(folder.path, 0, "key");
}

}  // namespace

TEST_CASE("offloaded values give the same gradients") {
  const Folder folder;
  for (const Device device : devices()) {
    CAPTURE(name_of(device));
    Layers layers(device);
    const std::unique_ptr<OffloadStore> store = store_for(device, folder);
    const auto plain = layers.gradients([](Tape&) {}, [&](Tape& tape) { return layers.forward(tape); });
    CHECK(magnitude(Matrix{1, 1, std::vector<double>{plain[0][0]}}) > 0.0);
    for (const SavePolicy keep :
         {SavePolicy::inputs, SavePolicy::matmuls, SavePolicy::outputs_of("activation"),
          SavePolicy::outputs_of("linear") | SavePolicy::outputs_of("activation")}) {
      for (int step = 0; step < 3; ++step) {
        CHECK(layers.gradients([&](Tape& tape) { tape.offload(*store); },
                               [&](Tape& tape) { return layers.forward(tape, keep); }) == plain);
        CHECK(store->bytes() == 0);
      }
    }
  }
}

TEST_CASE("each boundary but the last is offloaded once") {
  const Folder folder;
  for (const Device device : devices()) {
    CAPTURE(name_of(device));
    constexpr int kLayers = 12;
    Layers layers(device, kLayers, 512, 32);
    const int64_t bytes = layers.x.value().bytes();
    const std::unique_ptr<OffloadStore> store = store_for(device, folder);
    const auto run = [&](OffloadStore* to) {
      layers.runtime.stream().synchronize();
      layers.runtime.allocator().reset_peak();
      layers.gradients(
          [&](Tape& tape) {
            if (to != nullptr) tape.offload(*to);
          },
          [&](Tape& tape) { return layers.forward(tape); });
      return layers.peak();
    };
    const int64_t all = run(nullptr), few = run(store.get());
    CHECK(all >= (kLayers + 2) * bytes);
    CHECK(few < 6 * bytes + 4096);
    // Inputs of all segments but the last; the first layer is none.
    CHECK(store->peak_bytes() == (kLayers - 2) * bytes);
    CHECK(store->written_bytes() == store->peak_bytes());
    // A saved output that is also the next segment's input is one value.
    layers.gradients([&](Tape& tape) { tape.offload(*store); },
                     [&](Tape& tape) { return layers.forward(tape, SavePolicy::outputs_of("activation")); });
    CHECK(store->written_bytes() == 2 * store->peak_bytes());
  }
}

TEST_CASE("a dry run counts the bytes that a real run moves") {
  const Folder folder;
  for (const SavePolicy keep : {SavePolicy::inputs, SavePolicy::matmuls}) {
    Layers layers({}, 9, 100, 16);
    const std::unique_ptr<OffloadStore> real = make_file_store(folder.path, 0, "key");
    const std::unique_ptr<OffloadStore> counted = make_counting_store();
    std::vector<int64_t> peaks;
    for (OffloadStore* store : {real.get(), counted.get()}) {
      layers.runtime.allocator().reset_peak();
      layers.gradients([&](Tape& tape) { tape.offload(*store); },
                       [&](Tape& tape) { return layers.forward(tape, keep); });
      peaks.push_back(layers.peak());
    }
    CHECK(peaks[0] == peaks[1]);
    CHECK(real->peak_bytes() == counted->peak_bytes());
    CHECK(real->peak_bytes() > 0);
  }
}

TEST_CASE("a value with other owners or readers is not offloaded") {
  Layers layers({}, 4);
  const auto segment = [&](Tape& tape, const Variables& in) {
    return Variables{layers.layer(tape, in[0], 1)};
  };
  const auto last = [&](Tape& tape, const Variables& in) { return Variables{layers.layer(tape, in[0], 2)}; };
  std::vector<Tensor> held;
  const std::vector<std::pair<const char*, std::function<Variable(Tape&)>>> cases = {
      {"held",
       [&](Tape& tape) {
         const Variable y = layers.layer(tape, layers.x, 0);
         held = {y.value()};
         return checkpoint(tape, "b", last, checkpoint(tape, "a", segment, {y}))[0];
       }},
      {"a leaf",
       [&](Tape& tape) {
         return checkpoint(tape, "b", last, checkpoint(tape, "a", segment, {layers.x}))[0];
       }},
      {"read by an op",
       [&](Tape& tape) {
         const Variable y = layers.layer(tape, layers.x, 0);
         const Variable read = ops::activation(tape, y, Activation::silu);
         return ops::add(tape, checkpoint(tape, "b", last, checkpoint(tape, "a", segment, {y}))[0], read);
       }},
      {"read by the op that made it",
       [&](Tape& tape) {
         const Variable y =
             ops::activation(tape, ops::linear(tape, layers.x, layers.weights[0], {}), Activation::relu);
         return checkpoint(tape, "b", last, checkpoint(tape, "a", segment, {y}))[0];
       }},
      {"read by a segment that does not take it", [&](Tape& tape) {
         const Variable y = layers.layer(tape, layers.x, 0);
         const Variable z = checkpoint(tape, "a", segment, {y})[0];
         const auto reader = [&, y](Tape& inner, const Variables& in) {
           return Variables{layers.layer(inner, ops::add(inner, in[0], y), 2)};
         };
         return checkpoint(tape, "b", reader, {z})[0];
       }}};
  for (const auto& one : cases) {
    CAPTURE(one.first);
    const auto plain = layers.gradients([](Tape&) {}, one.second);
    const std::unique_ptr<OffloadStore> store = make_counting_store();
    // The counting store copies nothing, so an offloaded value would be missing.
    CHECK(layers.gradients([&](Tape& tape) { tape.offload(*store); }, one.second) == plain);
    CHECK(store->bytes() == 0);
    held.clear();
  }
}

TEST_CASE("an op that reads an offloaded input of a segment throws") {
  Layers layers({}, 4);
  const auto segment = [&](Tape& tape, const Variables& in) {
    return Variables{layers.layer(tape, in[0], 1)};
  };
  const std::unique_ptr<OffloadStore> store = make_counting_store();
  Tape tape(layers.runtime);
  tape.offload(*store);
  const Variable y = layers.layer(tape, layers.x, 0);
  checkpoint(tape, "b", segment, checkpoint(tape, "a", segment, {y}));
  CHECK(contains(invalid_argument_text([&] { ops::activation(tape, y, Activation::silu); }),
                 "needed a tensor"));
}

TEST_CASE("a value that two segments take stays for the second") {
  const Folder folder;
  for (const Device device : devices()) {
    CAPTURE(name_of(device));
    Layers layers(device, 6);
    const auto run = [&](Tape& tape) {
      const auto segment = [&](size_t i, const Variables& in) {
        return checkpoint(
            tape, "sum",
            [&layers, i](Tape& inner, const Variables& v) {
              return Variables{layers.layer(inner, v.size() == 1 ? v[0] : ops::add(inner, v[0], v[1]), i)};
            },
            in)[0];
      };
      const Variable first = layers.layer(tape, layers.x, 0);
      Variable y = first;
      for (size_t i = 1; i < 5; ++i) y = segment(i, {y});
      segment(3, {y});  // its outputs are not used
      return segment(5, {y, first});
    };
    const auto plain = layers.gradients([](Tape&) {}, run);
    const std::unique_ptr<OffloadStore> store = store_for(device, folder);
    for (int step = 0; step < 2; ++step) {
      CHECK(layers.gradients([&](Tape& tape) { tape.offload(*store); }, run) == plain);
      CHECK(store->bytes() == 0);
    }
    CHECK(store->written_bytes() > 0);
    // A tape that ends with values under way.
    {
      Tape tape(layers.runtime);
      tape.offload(*store);
      run(tape);
      CHECK(store->bytes() > 0);
    }
    CHECK(store->bytes() == 0);
    CHECK(layers.gradients([&](Tape& tape) { tape.offload(*store); }, run) == plain);
  }
}

TEST_CASE("on a GPU offloading never makes the host wait" * doctest::skip(cuda_devices().empty())) {
  Layers layers({DeviceKind::cuda, 0});
  const auto plain = layers.gradients([](Tape&) {}, [&](Tape& tape) { return layers.forward(tape); });
  const std::unique_ptr<OffloadStore> store = make_host_store(layers.runtime.device());
  const auto step = [&](Runtime& runtime) {
    Tape tape(runtime);
    tape.offload(*store);
    layers.backward(tape, layers.forward(tape));
    tape.take_gradient(layers.x.slot());
  };
  const auto check_weights = [&] {
    for (size_t i = 0; i < layers.weights.size(); ++i) {
      CHECK(layers.host_values(layers.weights[i].gradient) == plain[i + 1]);
      fill_zero(layers.weights[i].gradient, layers.runtime.stream());
    }
  };
  for (int i = 0; i < 2; ++i) {
    const gpu::Counters before = gpu::counters();
    step(layers.runtime);
    CHECK(gpu::counters().awaits == before.awaits);
    CHECK(gpu::counters().synchronizations == before.synchronizations);
    check_weights();
  }
  CapturedWork captured(layers.runtime, "step", step);
  for (int i = 0; i < 4; ++i) {
    captured.run();
    check_weights();
  }
  CHECK(captured.refusal().empty());
  CHECK(captured.recorded());
}

TEST_CASE("the temporary file of offloading has no name") {
  const Folder folder;
  {
    Layers layers({});
    const std::unique_ptr<OffloadStore> store =
        make_file_store(folder.path, 1 << 20, "recompute.offload_dir");
    layers.gradients([&](Tape& tape) { tape.offload(*store); },
                     [&](Tape& tape) {
                       const Variable y = layers.forward(tape);
                       CHECK(fs::is_empty(folder.path));
                       return y;
                     });
    CHECK(store->written_bytes() > 0);
  }
  CHECK(fs::is_empty(folder.path));
  const auto message = [](const fs::path& path, int64_t bytes) {
    try {
      make_file_store(path, bytes, "recompute.offload_dir");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(contains(message(folder.path / "none", 0),
                 "[recompute.offload_dir] needed a folder for a temporary file"));
  CHECK(contains(message(folder.path / "none", 0), (folder.path / "none").string()));
  CHECK(contains(message(folder.path, int64_t{1} << 50), "a folder with room for 1073741824.0 MiB"));
}

TEST_CASE("a full disk ends the step with the file's name") {
  const Folder folder;
  Layers layers({}, 8, 2000, 32);
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = old;
  small.rlim_cur = 1 << 19;
  std::string message;
  {
    const std::unique_ptr<OffloadStore> store = make_file_store(folder.path, 0, "key");
    setrlimit(RLIMIT_FSIZE, &small);
    try {
      layers.gradients([&](Tape& tape) { tape.offload(*store); },
                       [&](Tape& tape) { return layers.forward(tape); });
    } catch (const DataError& error) {
      message = error.what();
    }
    setrlimit(RLIMIT_FSIZE, &old);
    CHECK(store->bytes() == 0);
  }
  std::signal(SIGXFSZ, ignored);
  CHECK(contains(message, "[temporary file in " + folder.path.string() + "] needed values to be written"));
  CHECK(contains(message, "fix: make room"));
}
