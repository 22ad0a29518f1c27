// SPDX-License-Identifier: Apache-2.0
// Half a tile's product, 48 x 128 x 128 in f32 with bias and relu, by meshgrad's own kernels, libxsmm and
// oneDNN in turn, on one thread: the table of docs/cpu.md. Not part of the build; with Debian's libxsmm-dev
// and libdnnl-dev, in a release build with MESHGRAD_ALL_SYMBOLS=ON:
//
//   g++ -std=c++20 -O3 -march=native -Ibuild/release/include/kernels -Ibuild/release/include/engine \
//       bench/peers/matrix_libraries.cpp -o /tmp/matrix_libraries -Lbuild/release -lmeshgrad \
//       -Wl,-rpath,$PWD/build/release -lxsmm -lxsmmnoblas -ldnnl -ldl -lpthread && taskset -c 0
//       /tmp/matrix_libraries
#include <libxsmm.h>
#include <meshgrad/kernels/cpu/gemm.h>
#include <meshgrad/kernels/cpu_isa.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <vector>

namespace {

using namespace meshgrad::cpu;

constexpr int64_t kRows = 48, kWidth = 128, kStride = 144;
constexpr int kRuns = 4000;
constexpr int kRounds = 15;

double gflops(const std::function<void()>& product) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < kRuns; ++i) product();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return 2e-9 * kRows * kWidth * kWidth * kRuns / seconds;
}

std::vector<float> values(int64_t count) {
  std::vector<float> result(static_cast<size_t>(count));
  for (size_t i = 0; i < result.size(); ++i) result[i] = static_cast<float>(i % 17) * 0.01f - 0.08f;
  return result;
}

}  // namespace

int main() {
  const std::vector<float> a = values(kRows * kStride + 64), bias = values(kWidth),
                           w = values(kWidth * kWidth);
  std::vector<float> c(a.size()), h(a.size());

  const GemmOps<float>& ours = gemm_ops<float>();
  std::vector<float> packed(w.size());
  for (int64_t k = 0; k < kWidth; ++k) {
    for (int64_t j = 0; j < kWidth; ++j) {
      packed[static_cast<size_t>(j / ours.panel * ours.panel * kWidth + k * ours.panel + j % ours.panel)] =
          w[static_cast<size_t>(k * kWidth + j)];
    }
  }
  const Gemm<float> product{kRows,
                            kWidth,
                            {a.data(), kStride, 1, kWidth},
                            {packed.data(), ours.panel * kWidth, ours.panel},
                            {bias.data(), 0}};
  const HiddenResult<float> hidden{
      .activation = meshgrad::Activation::relu, .h = h.data(), .h_stride = kStride};

  // Column-major by the library's convention: C^T = W^T A^T. The tile is set to the bias before and goes
  // through relu after it, as the library's own fused forms are for dense tensors.
  const libxsmm_mmfunction<float> xsmm(LIBXSMM_GEMM_FLAG_NONE, kWidth, kRows, kWidth, kWidth, kStride,
                                       kStride, 1.0f, 1.0f);

  dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  using Desc = dnnl::memory::desc;
  const auto f32 = dnnl::memory::data_type::f32;
  const Desc a_desc({kRows, kWidth}, f32, dnnl::memory::dims{kStride, 1});
  const Desc w_desc({kWidth, kWidth}, f32, dnnl::memory::format_tag::any);
  const Desc bias_desc({1, kWidth}, f32, dnnl::memory::format_tag::ab);
  dnnl::post_ops relu;
  relu.append_eltwise(1.0f, dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  dnnl::primitive_attr attributes;
  attributes.set_post_ops(relu);
  const dnnl::matmul::primitive_desc described(dnnl::matmul::desc(a_desc, w_desc, bias_desc, a_desc),
                                               attributes, engine);
  const dnnl::matmul matmul(described);
  const auto memory = [&](const Desc& desc, const float* data) {
    return dnnl::memory(desc, engine, const_cast<float*>(data));
  };
  dnnl::memory reordered(described.weights_desc(), engine);
  auto plain = memory(Desc({kWidth, kWidth}, f32, dnnl::memory::format_tag::ab), w.data());
  dnnl::reorder(plain, reordered).execute(stream, plain, reordered);
  const std::unordered_map<int, dnnl::memory> arguments{{DNNL_ARG_SRC, memory(a_desc, a.data())},
                                                        {DNNL_ARG_WEIGHTS, reordered},
                                                        {DNNL_ARG_BIAS, memory(bias_desc, bias.data())},
                                                        {DNNL_ARG_DST, memory(a_desc, c.data())}};

  struct Candidate {
    const char* name;
    std::function<void()> run;
    std::vector<double> gflops;
  };
  std::vector<Candidate> candidates{
      {"highway", [&] { ours.hidden(product, hidden); }, {}},
      {"libxsmm_and_passes",
       [&] {
         for (int64_t i = 0; i < kRows; ++i) std::copy_n(bias.data(), kWidth, c.data() + i * kStride);
         xsmm(w.data(), a.data(), c.data());
         for (int64_t i = 0; i < kRows; ++i)
           for (int64_t j = 0; j < kWidth; ++j) c[i * kStride + j] = std::max(c[i * kStride + j], 0.0f);
       },
       {}},
      {"libxsmm_product_alone", [&] { xsmm(w.data(), a.data(), c.data()); }, {}},
      {"onednn_fused", [&] { matmul.execute(stream, arguments); }, {}}};
  for (int round = 0; round < kRounds; ++round)
    for (Candidate& candidate : candidates) candidate.gflops.push_back(gflops(candidate.run));
  std::printf("%s, GFLOP/s on one thread: median (best) of %d alternating rounds\n",
              std::string(name_of(isa())).c_str(), kRounds);
  for (Candidate& candidate : candidates) {
    std::sort(candidate.gflops.begin(), candidate.gflops.end());
    std::printf("%-28s %7.1f (%.1f)\n", candidate.name, candidate.gflops[kRounds / 2],
                candidate.gflops.back());
  }
}
