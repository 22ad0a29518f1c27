// SPDX-License-Identifier: Apache-2.0
// A heat solver that trains a model while it runs, then compares it with itself: docs/embedding.md.
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr int kSide = 9, kNodes = kSide * kSide;
constexpr double kPi = 3.14159265358979323846;

/// Heat in a square plate whose edge stays at 0: explicit steps on a grid.
struct Plate {
  std::vector<double> u = std::vector<double>(kNodes);
  void start(double a, double b) {
    for (int i = 0; i < kNodes; ++i) {
      const double x = kPi * (i % kSide) / (kSide - 1), y = kPi * (i / kSide) / (kSide - 1);
      u[i] = a * std::sin(x) * std::sin(y) + b * std::sin(2 * x) * std::sin(y);
    }
  }
  void step() {
    const std::vector<double> old = u;
    for (int y = 1; y < kSide - 1; ++y) {
      for (int x = 1; x < kSide - 1; ++x) {
        const int i = y * kSide + x;
        u[i] += 0.1 * (old[i - 1] + old[i + 1] + old[i - kSide] + old[i + kSide] - 4 * old[i]);
      }
    }
  }
};

int run(const char* file) {
  std::vector<double> xy;
  std::vector<int32_t> quads, type;
  for (int i = 0; i < kNodes; ++i) {
    const int x = i % kSide, y = i / kSide;
    xy.insert(xy.end(), {x / (kSide - 1.0), y / (kSide - 1.0)});
    type.push_back(x == 0 || y == 0 || x == kSide - 1 || y == kSide - 1 ? 1 : 0);
    if (x + 1 == kSide || y + 1 == kSide) continue;
    quads.insert(quads.end(), {i, i + 1, i + kSide + 1, i + kSide});
  }
  const meshgrad::MeshArrays mesh{.positions = xy, .cells = quads, .nodes_per_cell = 4, .node_type = type};
  const meshgrad::Config config = meshgrad::parse_config(R"(
    [data]
    inputs = ["u"]
    targets = ["u"]
    node_types = 2
    predicted_types = [0]
    noise_types = [0]
    [model]
    width = 32
    blocks = 3
    [train]
    steps = 3000
    noise = 1e-4
    [optimizer]
    lr = 2e-3
  )",
                                                         "heat.cpp");
  meshgrad::Runtime runtime({.threads = 2});
  meshgrad::OnlineTrainer trainer(runtime, config, {.dim = 2, .fields = {{.name = "u", .components = 1}}});
  trainer.set_mesh(mesh);
  Plate plate;
  for (int run = 0; run < 10; ++run) {
    plate.start(1.0 - 0.1 * run, 0.2 * run - 1.0);
    trainer.restart_trajectory();
    for (int t = 0; t < 30; ++t, plate.step()) {
      trainer.set_field("u", plate.u);
      trainer.append();
      trainer.train(10);  // or as many as fit into so many seconds: trainer.train(1000, 0.01)
    }
  }
  std::printf("held-out loss after %d steps: %.2e\n", static_cast<int>(trainer.steps()),
              trainer.held_out_loss());
  trainer.save(file);

  meshgrad::MeshPredictor predictor(runtime, file);
  predictor.set_mesh(mesh);
  plate.start(0.55, -0.1);
  predictor.set_field("u", plate.u);
  std::vector<double> predicted(kNodes);
  for (int t = 0; t < 10; ++t) plate.step();
  predictor.predict(10);
  predictor.get_field("u", predicted);
  double error = 0, size = 0;
  for (int i = 0; i < kNodes; ++i) {
    error += std::pow(predicted[i] - plate.u[i], 2);
    size += std::pow(plate.u[i], 2);
  }
  std::printf("relative error after 10 predicted steps: %.3f\n", std::sqrt(error / size));
  return error < 0.01 * size ? 0 : 1;
}

}  // namespace

int main(int count, char** words) {
  try {
    return run(count > 1 ? words[1] : "heat.safetensors");
  } catch (const meshgrad::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
