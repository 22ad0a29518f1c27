// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/tables.h>

namespace meshgrad::kernels {

const KernelTables& cpu_tables() {
  static constexpr KernelTables kTables{.linear = cpu::linear_kernels,
                                        .mlp = cpu::mlp_kernels,
                                        .message_passing = cpu::message_passing_kernels,
                                        .segment_sum = cpu::segment_sum_kernels,
                                        .graph_pool = cpu::graph_pool_kernels,
                                        .elementwise = cpu::elementwise_kernels,
                                        .reduction = cpu::reduction_kernels,
                                        .class_loss = cpu::class_loss_kernels,
                                        .optimizer = cpu::optimizer_kernels,
                                        .state_error = cpu::state_error_kernels,
                                        .world_edges = cpu::world_edge_kernels,
                                        .solver_arrays = cpu::solver_array_kernels,
                                        .attention = cpu::attention_kernels,
                                        .latent = cpu::latent_kernels,
                                        .pair_loss = cpu::pair_loss_kernels,
                                        .slice_attention = cpu::slice_attention_kernels};
  return kTables;
}

}  // namespace meshgrad::kernels
