// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/latent.h>

namespace meshgrad {
namespace {

int64_t check_moments(std::string_view op, const Tensor& moments, int64_t rows) {
  check_defined(op, "moments", moments);
  check_tensor(op, "moments", moments, moments.dtype(), {rows, moments.width() / 2 * 2});
  return moments.width() / 2;
}

double elements(const Tensor& moments) { return static_cast<double>(moments.elements()); }

}  // namespace

void kernels::sample_latent_forward(const SampleLatentForward& args, const Stream& stream) {
  constexpr std::string_view kOp = "sample_latent.forward";
  const int64_t width = check_moments(kOp, args.moments, args.rows.capacity);
  check_tensor(kOp, "z", args.z, args.moments.dtype(), {args.rows.capacity, width});
  check_optional(kOp, "row_keys", args.key.row_keys, DType::i64, {args.rows.capacity});
  kernels::tables(args.moments.device()).latent.sample_latent_forward(args, stream);
  note_work("sample_latent_forward", args);
}

void kernels::sample_latent_backward(const SampleLatentBackward& args, const Stream& stream) {
  constexpr std::string_view kOp = "sample_latent.backward";
  const int64_t width = check_moments(kOp, args.moments, args.rows.capacity);
  check_tensor(kOp, "d_z", args.d_z, args.moments.dtype(), {args.rows.capacity, width});
  check_tensor(kOp, "d_moments", args.d_moments, args.moments.dtype(), args.moments.shape());
  check_optional(kOp, "row_keys", args.key.row_keys, DType::i64, {args.rows.capacity});
  kernels::tables(args.moments.device()).latent.sample_latent_backward(args, stream);
  note_work("sample_latent_backward", args);
}

void kernels::latent_loss_forward(const LatentLossForward& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "latent_loss.forward";
  check_moments(kOp, args.moments, args.rows.capacity);
  check_tensor(kOp, "weights", args.weights, DType::f32, {args.rows.capacity});
  check_tensor(kOp, "sum", args.sum, DType::f64, {1});
  kernels::tables(args.moments.device()).latent.latent_loss_forward(args, runtime, stream);
  note_work("latent_loss_forward", args);
}

void kernels::latent_loss_backward(const LatentLossBackward& args, const Stream& stream) {
  constexpr std::string_view kOp = "latent_loss.backward";
  check_moments(kOp, args.moments, args.rows.capacity);
  check_tensor(kOp, "weights", args.weights, DType::f32, {args.rows.capacity});
  check_tensor(kOp, "seed", args.seed, DType::f64, {1});
  check_tensor(kOp, "d_moments", args.d_moments, args.moments.dtype(), args.moments.shape());
  kernels::tables(args.moments.device()).latent.latent_loss_backward(args, stream);
  note_work("latent_loss_backward", args);
}

/// A product and a sum for each latent value.
Work work_of(const SampleLatentForward& args) {
  return {.flops = elements(args.moments), .bytes = bytes_of(args.moments, args.z)};
}

Work work_of(const SampleLatentBackward& args) {
  return {.flops = elements(args.moments), .bytes = bytes_of(args.moments, args.d_z, args.d_moments)};
}

/// Of each latent value a square, a doubling and four sums.
Work work_of(const LatentLossForward& args) {
  return {.flops = 3.0 * elements(args.moments), .bytes = bytes_of(args.moments, args.weights)};
}

Work work_of(const LatentLossBackward& args) {
  return {.flops = 2.0 * elements(args.moments),
          .bytes = bytes_of(args.moments, args.weights, args.d_moments)};
}

}  // namespace meshgrad
