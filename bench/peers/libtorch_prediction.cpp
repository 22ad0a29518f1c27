// SPDX-License-Identifier: Apache-2.0
// One prediction by libtorch in C++: the MeshGraphNet of tests/train/embed/c_interface_test.cpp, "... costs
// what ..." (f32, ReLU, LayerNorm), on a triangulated square, eager in inference mode. Prints the fastest of
// 30 predictions. bench/studies/embed-libtorch builds it against pip's torch and runs it in turn with ours.
// usage: libtorch_prediction [SIDE [WIDTH [BLOCKS [THREADS]]]]
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>
#include <vector>

namespace {

using torch::Tensor;

/// Two hidden layers, then LayerNorm where it is asked for.
torch::nn::Sequential mlp(int64_t in, int64_t width, int64_t out, bool norm) {
  torch::nn::Sequential layers(torch::nn::Linear(in, width), torch::nn::ReLU(),
                               torch::nn::Linear(width, width), torch::nn::ReLU(),
                               torch::nn::Linear(width, out));
  if (norm) layers->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({out})));
  return layers;
}

struct Model : torch::nn::Module {
  torch::nn::Sequential nodes, edges, decoder;
  std::vector<std::pair<torch::nn::Sequential, torch::nn::Sequential>> blocks;

  Model(int64_t node_inputs, int64_t edge_inputs, int64_t outputs, int64_t width, int64_t count)
      : nodes(register_module("nodes", mlp(node_inputs, width, width, true))),
        edges(register_module("edges", mlp(edge_inputs, width, width, true))),
        decoder(register_module("decoder", mlp(width, width, outputs, false))) {
    for (int64_t i = 0; i < count; ++i) {
      const std::string name = std::to_string(i);
      blocks.emplace_back(register_module("edge" + name, mlp(3 * width, width, width, true)),
                          register_module("node" + name, mlp(2 * width, width, width, true)));
    }
  }
  Tensor forward(const Tensor& node_features, const Tensor& edge_features, const Tensor& senders,
                 const Tensor& receivers) {
    Tensor x = nodes->forward(node_features), e = edges->forward(edge_features);
    for (auto& [edge_mlp, node_mlp] : blocks) {
      const Tensor update =
          edge_mlp->forward(torch::cat({x.index_select(0, senders), x.index_select(0, receivers), e}, 1));
      const Tensor sum = torch::zeros_like(x).index_add_(0, receivers, update);
      e = e + update;
      x = x + node_mlp->forward(torch::cat({x, sum}, 1));
    }
    return decoder->forward(x);
  }
};

int64_t word(int count, char** words, int i, int64_t otherwise) {
  return count > i ? std::atoll(words[i]) : otherwise;
}

}  // namespace

int main(int count, char** words) {
  const int64_t side = word(count, words, 1, 45), width = word(count, words, 2, 64),
                blocks = word(count, words, 3, 5);
  torch::set_num_threads(static_cast<int>(word(count, words, 4, 2)));
  torch::manual_seed(1);
  const c10::InferenceMode inference;
  std::set<std::pair<int64_t, int64_t>> pairs;  // receiver, sender: both ways, sorted by receiver
  const auto connect = [&](int64_t a, int64_t b) { pairs.insert({a, b}), pairs.insert({b, a}); };
  for (int64_t y = 0; y < side; ++y) {
    for (int64_t x = 0; x < side; ++x) {
      const int64_t i = y * side + x;
      if (x + 1 < side) connect(i, i + 1);
      if (y + 1 < side) connect(i, i + side);
      if (x + 1 < side && y + 1 < side) connect(i, i + side + 1);
    }
  }
  std::vector<int64_t> from, to;
  for (const auto& [receiver, sender] : pairs) to.push_back(receiver), from.push_back(sender);
  const Tensor senders = torch::tensor(from), receivers = torch::tensor(to);
  const auto edges = static_cast<int64_t>(from.size());
  Model model(2 + 9, 3, 2, width, blocks);
  const Tensor node_features = torch::randn({side * side, 2 + 9}), edge_features = torch::randn({edges, 3});
  double fastest = 1e9;
  for (int i = 0; i < 30; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    model.forward(node_features, edge_features, senders, receivers);
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    fastest = std::min(fastest, time.count());
  }
  std::printf("libtorch: %lld nodes, %lld edges, width %lld, %lld blocks: %.3f ms\n",
              static_cast<long long>(side * side), static_cast<long long>(edges),
              static_cast<long long>(width), static_cast<long long>(blocks), fastest);
}
