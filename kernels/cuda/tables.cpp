// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/tables.h>

namespace meshgrad::kernels {

const KernelTables& gpu_tables() {
  static constexpr KernelTables kTables{.linear = cuda::linear_kernels,
                                        .mlp = cuda::mlp_kernels,
                                        .message_passing = cuda::message_passing_kernels,
                                        .segment_sum = cuda::segment_sum_kernels,
                                        .graph_pool = cuda::graph_pool_kernels,
                                        .elementwise = cuda::elementwise_kernels,
                                        .reduction = cuda::reduction_kernels,
                                        .class_loss = cuda::class_loss_kernels,
                                        .optimizer = cuda::optimizer_kernels,
                                        .state_error = cuda::state_error_kernels,
                                        .world_edges = cuda::world_edge_kernels,
                                        .solver_arrays = cuda::solver_array_kernels,
                                        .attention = cuda::attention_kernels,
                                        .latent = cuda::latent_kernels,
                                        .pair_loss = cuda::pair_loss_kernels,
                                        .slice_attention = cuda::slice_attention_kernels};
  return kTables;
}

}  // namespace meshgrad::kernels
