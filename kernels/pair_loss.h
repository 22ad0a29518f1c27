// SPDX-License-Identifier: Apache-2.0
// pair_loss: how well inner products of the nodes' latent values, l = z_i . z_j, say which pairs of nodes are
// linked: the binary cross entropy log(1 + exp(-l)) of a linked pair, log(1 + exp(l)) of another one. Kipf,
// Welling, "Variational graph auto-encoders" (2016). Pairs are given as a list, or are all pairs of each
// graph, in tiles: nothing of the size of nodes^2 is written. Inner products are in the accumulation dtype;
// a node's loss is summed in f64, and nodes over slabs of fixed size, in order. A node's gradient is a sum
// over its pairs in fixed order, without atomics: the same bits for any number of threads. z and d_z share
// one storage dtype (f32, f16 or bf16; f64 on the CPU). Throws InvalidArgument for a shape or dtype that does
// not fit.
#pragma once
#include <meshgrad/kernels/node_pairs.h>
#include <meshgrad/kernels/work.h>

namespace meshgrad {

/// sum [+]= sum over nodes i, entries (i, j) of weight * cross entropy.
struct PairLossForward {
  Rows rows;
  Tensor z;  ///< [nodes, width]
  NodePairs pairs;
  Tensor sum;  ///< f64 scalar [1]
  bool accumulate = false;
};
/// d_z[i] = seed * sum over j of 2 weight d(cross entropy) / dl z_j; the 2 is that of the entry (j, i).
struct PairLossBackward {
  Rows rows;
  Tensor z;
  NodePairs pairs;
  Tensor seed;  ///< f64 scalar [1] in device memory: gradient of the loss by `sum`
  Tensor d_z;   ///< [nodes, width], written
};

Work work_of(const PairLossForward& args);
Work work_of(const PairLossBackward& args);

struct PairLossKernels {
  void (*pair_loss_forward)(const PairLossForward&, Runtime&, const Stream&);
  void (*pair_loss_backward)(const PairLossBackward&, Runtime&, const Stream&);
};

namespace kernels {
void pair_loss_forward(const PairLossForward& args, Runtime& runtime, const Stream& stream);
void pair_loss_backward(const PairLossBackward& args, Runtime& runtime, const Stream& stream);
}  // namespace kernels

}  // namespace meshgrad
