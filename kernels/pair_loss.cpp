// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/pair_loss.h>

#include <algorithm>

namespace meshgrad {
namespace {

/// What forward and backward have in common.
template <class Args>
void check_pairs(std::string_view op, const Args& args) {
  const NodePairs& pairs = args.pairs;
  check_defined(op, "z", args.z);
  check_tensor(op, "z", args.z, args.z.dtype(), {args.rows.capacity, args.z.width()});
  check_defined(op, "weights", pairs.weights);
  check_tensor(op, "weights", pairs.weights, DType::f32, {pairs.weights.rows(), 2});
  check_tensor(op, "graph_starts", pairs.graph_starts, DType::i32, {pairs.weights.rows() + 1});
  check_tensor(op, "offsets", pairs.offsets, DType::i32, {args.rows.capacity + 1});
  check_defined(op, "others", pairs.others);
  check_tensor(op, "others", pairs.others, DType::i32, {pairs.others.elements()});
  check_optional(op, "linked", pairs.linked, DType::u8, {pairs.others.elements()});
}

/// Inner products, as if the graphs were of one size: only the device knows their sizes.
template <class Args>
Work work_of_pairs(const Args& args, double per_pair) {
  const auto rows = static_cast<double>(args.rows.capacity), width = static_cast<double>(args.z.width());
  const auto graphs = static_cast<double>(std::max<int64_t>(1, args.pairs.weights.rows()));
  const double all = args.pairs.all_pairs ? rows * rows / graphs : 0.0;
  return {.flops = per_pair * width * (all + static_cast<double>(args.pairs.others.elements())),
          .bytes = bytes_of(args.z, args.pairs.offsets, args.pairs.others, args.pairs.linked)};
}

}  // namespace

void kernels::pair_loss_forward(const PairLossForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "pair_loss.forward";
  check_pairs(kOp, args);
  check_tensor(kOp, "sum", args.sum, DType::f64, {1});
  kernels::tables(args.z.device()).pair_loss.pair_loss_forward(args, runtime, stream);
  note_work("pair_loss_forward", args);
}

void kernels::pair_loss_backward(const PairLossBackward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "pair_loss.backward";
  check_pairs(kOp, args);
  check_tensor(kOp, "seed", args.seed, DType::f64, {1});
  check_tensor(kOp, "d_z", args.d_z, args.z.dtype(), args.z.shape());
  kernels::tables(args.z.device()).pair_loss.pair_loss_backward(args, runtime, stream);
  note_work("pair_loss_backward", args);
}

Work work_of(const PairLossForward& args) { return work_of_pairs(args, 2.0); }

/// Inner products once more, and what each adds to a gradient.
Work work_of(const PairLossBackward& args) {
  Work work = work_of_pairs(args, 4.0);
  work.bytes += bytes_of(args.d_z);
  return work;
}

}  // namespace meshgrad
