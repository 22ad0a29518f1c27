// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/learn/planning/step_time.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace meshgrad {
namespace {

constexpr std::array<DevicePeaks, 3> kPeaks{{
    {"a100", 2.039e12, 312e12, 19.5e12, 156e12},
    {"h100", 3.35e12, 989e12, 67e12, 494e12},
    {"h200", 4.8e12, 989e12, 67e12, 494e12},
}};
constexpr double kBandwidthShare = 0.85, kLaunchSeconds = 2.5e-6;
/// Cycles of a multiprocessor for a tile of each of its eight warps, three layers, f16 and relu, by
/// scripts/cuda-model for sm_90; a tile has 32 rows, and 16 at width 256.
struct TileCycles {
  std::string_view kernel;
  double matrices;  ///< of [width, width] that a tile is multiplied by
  double width_64, width_128, width_256;
};
constexpr std::array<TileCycles, 4> kTileCycles{{
    {"edge_forward", 3, 8'509, 14'959, 59'080},
    {"edge_backward", 6, 17'722, 34'443, 101'874},
    {"mlp_forward", 4, 9'235, 17'147, 57'825},
    {"mlp_backward", 6, 15'096, 29'528, 84'606},
}};
/// What a multiprocessor of sm_90 multiplies and adds in a cycle, in FLOPs of 16-bit tensor cores.
constexpr double kCycleFlops = 4096;
/// The share of the peak that a fused kernel reaches. Other kernels are bound by memory.
double arithmetic_share(std::string_view kernel, int64_t width) {
  const auto found = std::find_if(kTileCycles.begin(), kTileCycles.end(),
                                  [&](const TileCycles& cycles) { return cycles.kernel == kernel; });
  if (found == kTileCycles.end()) return LaunchWork{}.arithmetic_share;
  const double cycles = width == 64 ? found->width_64 : width == 128 ? found->width_128 : found->width_256;
  const double rows = 8.0 * (width == 256 ? 16 : 32);
  return found->matrices * 2 * rows * static_cast<double>(width * width) / (kCycleFlops * cycles);
}
constexpr double kParameterBytes = 30;  ///< read and written by an update: weight, gradient, moments, copy

/// Sizes of one model, in bytes and FLOPs.
class StepWork {
 public:
  StepWork(const Config& config, const ModelSizes& sizes, const BatchShape& batch, bool fused)
      : config_(config),
        sizes_(sizes),
        nodes_(static_cast<double>(batch.nodes)),
        edges_(static_cast<double>(batch.edges + batch.world_edges)),
        layers_(static_cast<double>(config.model.hidden_layers) + 1),
        value_(static_cast<double>(size_of(config.precision))),
        row_(value_ * static_cast<double>(config.model.width)),
        product_(2.0 * static_cast<double>(config.model.width * config.model.width)),
        fused_(fused) {}

  std::vector<LaunchWork> run() {
    const auto blocks = static_cast<double>(config_.model.blocks);
    const bool recomputed =
        config_.recompute.mode != RecomputeMode::off && config_.recompute.mode != RecomputeMode::automatic;
    // The first block's node terms have a launch of their own, the others' are made with the nodes before
    // them.
    const bool ahead = fused_ && !recomputed && blocks > 0 && layers_ <= 3 && config_.model.width < 256 &&
                       sizes_.edge_inputs.size() == 1;
    add_block_forward(blocks, ahead ? blocks - 1 : 0);
    if (recomputed) {
      part_ = StepPart::recomputation;
      add_block_forward(blocks, 0);
    }
    add_block_backward(blocks);
    const double node_inputs = static_cast<double>(sizes_.node_inputs);
    double edge_inputs = 0;
    for (const int64_t width : sizes_.edge_inputs) edge_inputs += static_cast<double>(width);
    add_mlp("node encoder", nodes_, node_inputs, row_);
    add_mlp("edge encoder", edges_, edge_inputs, row_);
    add_mlp("decoder", nodes_, static_cast<double>(config_.model.width),
            value_ * static_cast<double>(sizes_.outputs));
    const auto frames = static_cast<double>(config_.unroll.steps);
    for (LaunchWork& work : work_) {
      work.flops *= frames;
      work.bytes *= frames;
      work.launches *= frames;
    }
    const double weights = blocks * (layers_ + 2 + layers_ + 1) * product_ / 2 + 3 * layers_ * product_ / 2;
    part_ = StepPart::optimizer;
    add("optimizer", 0, kParameterBytes * weights);
    return std::move(work_);
  }

 private:
  void add(std::string name, double flops, double bytes, double launches = 1) {
    const double share = fused_ ? arithmetic_share(name, config_.model.width) : LaunchWork{}.arithmetic_share;
    work_.push_back({std::move(name), part_, flops, bytes, launches, share});
  }
  /// Of `times` blocks alike.
  void add_block(std::string name, double times, double flops, double bytes, double launches = 1) {
    add(std::move(name), times * flops, times * bytes, times * launches);
  }

  /// Of `times` blocks, `ahead` of which find their node terms made; also recomputation, as `part_` says.
  void add_block_forward(double times, double ahead) {
    if (!fused_) return add_general(times, false);
    add_block("node_terms_forward", times - ahead, 2 * nodes_ * product_, 3 * nodes_ * row_);
    // e, the sender's term and e'; receiver terms and sums by node; two indices.
    add_block("edge_forward", times, edges_ * layers_ * product_,
              edges_ * (3 * row_ + 8) + 2 * nodes_ * row_);
    const double made = times > 0 ? 2 * ahead / times : 0;  // by a block in the mean
    add_block("mlp_forward", times, nodes_ * (layers_ + 1 + made) * product_, (3 + made) * nodes_ * row_);
  }

  void add_block_backward(double times) {
    part_ = StepPart::backward;
    if (!fused_) return add_general(times, true);
    // Hidden activations are recomputed; h_l and d_z_l go through memory to the weight gradients.
    const double workspace = 2 * layers_ - 1;
    add_block("mlp_backward", times, 2 * nodes_ * (layers_ + 1) * product_, nodes_ * row_ * (5 + workspace));
    add_block("weight_gradients", times, nodes_ * (layers_ + 1) * product_,
              nodes_ * row_ * (2 * layers_ + 2));
    add_block("node_terms_forward", times, 2 * nodes_ * product_, 3 * nodes_ * row_);
    add_block("edge_backward", times, 2 * edges_ * layers_ * product_,
              edges_ * (row_ * (4 + workspace) + 8) + 2 * nodes_ * row_);
    // d_z_1 is read by receiver and by sender, the rest by the weight gradients.
    add_block("node_terms_backward", times, (edges_ * layers_ + 4 * nodes_) * product_,
              edges_ * row_ * (2 * layers_ + 2) + 5 * nodes_ * row_);
  }

  /// One launch per op, as kernels/cuda/message_passing.cu and unfused_mlp.cu run them. A GEMM moves its
  /// operands; all else moves rows.
  void add_general(double times, bool backward) {
    const double further = layers_ - 1;
    const auto rows = [&](const char* name, double count, double first_inputs) {
      const double gemms = backward ? 2 * (first_inputs + further) : first_inputs + further;
      const double others = backward ? 13 + 4 * further : 8 + 2 * further;
      add_block(std::string(name) + " GEMMs", times, count * gemms * product_, count * gemms * 2.5 * row_,
                gemms);
      add_block(std::string(name) + " rows", times, 0, count * others * row_, std::ceil(others / 2));
      if (!backward || config_.model.keep_hidden) return;
      part_ = StepPart::recomputation;
      add_block(std::string(name) + " recomputed", times, count * (first_inputs + further) * product_,
                count * (first_inputs + 4 * further + 2) * row_, first_inputs + 2 * further);
      part_ = StepPart::backward;
    };
    rows("edges", edges_, 1);
    rows("nodes", nodes_, 2);
    const double gemms = backward ? 4 : 2;
    add_block("node terms", times, nodes_ * gemms * product_, nodes_ * gemms * 2.5 * row_, gemms);
  }

  /// An MLP of its own, forward and backward: rows of `inputs` values and an output of `out` bytes.
  void add_mlp(const char* name, double rows, double inputs, double out) {
    const double flops = rows * ((layers_ - 1) * product_ + 2 * inputs * row_ / value_);
    const double in = value_ * inputs;
    part_ = StepPart::forward;
    add(std::string(name) + " forward", flops, rows * (in + out), fused_ ? 1 : 3 * layers_);
    const double workspace = (2 * layers_ - 1) * row_;
    part_ = StepPart::backward;
    add(std::string(name) + " backward", (fused_ ? 3 : 2) * flops, rows * (in + 2 * out + 2 * workspace),
        fused_ ? 2 : 6 * layers_);
  }

  const Config& config_;
  const ModelSizes& sizes_;
  double nodes_, edges_, layers_, value_;
  double row_;      ///< bytes of a row of `width` values
  double product_;  ///< FLOPs of a row through a [width, width] matrix
  bool fused_;
  StepPart part_ = StepPart::forward;  ///< of what is added next
  std::vector<LaunchWork> work_;
};

}  // namespace

std::string_view name_of(StepPart part) {
  constexpr std::array<std::string_view, kStepParts> kNames{"forward", "recomputation", "backward",
                                                            "optimizer"};
  return kNames[static_cast<size_t>(part)];
}

const DevicePeaks& device_peaks(std::string_view name) {
  const auto found = std::find_if(kPeaks.begin(), kPeaks.end(),
                                  [&](const DevicePeaks& peaks) { return peaks.name == name; });
  if (found == kPeaks.end()) {
    throw invalid_argument("device peaks", "\"a100\", \"h100\" or \"h200\"", '"' + std::string(name) + '"',
                           "name one of these");
  }
  return *found;
}

std::vector<std::string> device_peak_names() {
  std::vector<std::string> names;
  for (const DevicePeaks& peaks : kPeaks) names.emplace_back(peaks.name);
  return names;
}

std::vector<LaunchWork> work_of_step(const Config& config, const ModelSizes& sizes, const BatchShape& batch,
                                     bool fused) {
  return StepWork(config, sizes, batch, fused).run();
}

StepTime modelled_time(const std::vector<LaunchWork>& work, const DevicePeaks& peaks, DType precision,
                       bool tf32) {
  const double single = tf32 ? peaks.flops_per_s_tf32 : peaks.flops_per_s_32;
  const double flops = precision == DType::f32 ? single : peaks.flops_per_s_16;
  StepTime time;
  for (const LaunchWork& one : work) {
    const double moved = one.bytes / peaks.bytes_per_s, computed = one.flops / flops;
    const double moving = moved / kBandwidthShare, computing = computed / one.arithmetic_share;
    const LaunchTime launch{
        .work = one,
        .at_peaks_ms = 1e3 * std::max(moved, computed),
        .expected_ms = 1e3 * (std::max(moving, computing) + one.launches * kLaunchSeconds),
        .bound = moving < computing ? LaunchBound::arithmetic : LaunchBound::memory};
    time.at_peaks_ms += launch.at_peaks_ms;
    time.expected_ms += launch.expected_ms;
    time.expected_ms_of[static_cast<size_t>(one.part)] += launch.expected_ms;
    time.launches.push_back(launch);
  }
  return time;
}

}  // namespace meshgrad
