// SPDX-License-Identifier: Apache-2.0
// The kernel of weight gradients alone, and the division of jobs into blocks on the host. What a
// block does is in weight_gradient_units.h.
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cuda/fused/weight_gradient_units.h>

namespace meshgrad::cuda {
namespace gradients {
namespace {

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor) weight_gradients_kernel(Args args) {
  run_block(args, [&](const Unit& unit) { add_unit<T>(args, unit, unit.tile); });
}

__global__ void __launch_bounds__(kThreads) sum_slices_kernel(Args args) {
  sum_slices(args, static_cast<int32_t>(blockIdx.x));
}

/// cp.async of 16 bytes needs every row at a multiple of 16 bytes; raw features of 3 or 11 columns are not.
bool starts_rows_on_16_bytes(const Tensor& x) {
  return x.width() * size_of(x.dtype()) % 16 == 0 && reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
}

Job job_of(const WeightGradientJob& job) {
  return {job.x.raw(),
          job.d_z.raw(),
          job.d_weight.data_or_null<float>(),
          job.rows.count,
          job.rows.capacity,
          static_cast<int32_t>(job.x.width()),
          static_cast<int32_t>(job.d_z.width()),
          starts_rows_on_16_bytes(job.x),
          starts_rows_on_16_bytes(job.d_z)};
}

template <class T>
void start(std::span<const WeightGradientJob> jobs, std::span<const ColumnSumJob> sums, Runtime& runtime,
           const Stream& stream) {
  const int64_t resident_blocks =
      int64_t{kBlocksPerMultiprocessor} * gpu::multiprocessors(stream.device().index);
  const PreparedLaunch prepared(jobs, sums, resident_blocks, nullptr, runtime);
  launch("weight_gradients", weight_gradients_kernel<T>, {prepared.blocks, kThreads, kSharedBytes}, stream,
         prepared.args);
  start_sum_of_slices(prepared, stream);
}

}  // namespace

PreparedLaunch::PreparedLaunch(std::span<const WeightGradientJob> jobs, std::span<const ColumnSumJob> sums,
                               int64_t resident_blocks, const Rows* edges, Runtime& runtime) {
  // The host knows capacities only. Upper bounds of the units that divide() makes for any real counts: the
  // shares of resident_blocks, each rounded up to one slice of all tiles, and one slice per kLeastStages.
  int64_t by_share = resident_blocks, by_rows = 0;
  for (const WeightGradientJob& job : jobs) {
    args.jobs[args.job_count++] = job_of(job);
    const Job& added = args.jobs[args.job_count - 1];
    const Tiling tiling = tiling_of(added.in, added.out);
    const bool made = edges != nullptr && args.job_count == 1;
    by_share += made ? resident_blocks * (tiling.tiles - 1) + tiling.tiles : tiling.tiles;
    by_rows += blocks_for(added.capacity, kLeastStages * tiling.stage_rows) * tiling.tiles;
    sum_blocks += int64_t{tiling.tiles} * sum_blocks_of_tile(tiling);
  }
  args.units = static_cast<int32_t>(std::min(by_share, by_rows));
  args.resident_blocks = static_cast<int32_t>(resident_blocks);
  args.first_makes_d_z = edges != nullptr;
  if (edges != nullptr) {
    args.edge_count = edges->count;
    args.edge_capacity = edges->capacity;
  }
  blocks = args.units;
  for (size_t s = 0; s < sums.size(); ++s) {
    const ColumnSumJob& sum = sums[s];
    args.sums[s] = {sum.partials.data<float>() + sum.first_column, sum.target.data<float>(),
                    sum.partials.rows(), sum.partials.width(), static_cast<int32_t>(sum.target.elements())};
    blocks += blocks_for(sum.target.elements(), 32);
  }
  if (args.units == 0) {
    sum_blocks = 0;
    return;
  }
  partials = Tensor::empty(runtime, {args.units, kUnitFloats}, DType::f32, Tag::workspace,
                           "weight gradient partials");
  args.partials = partials.data<float>();
}

void start_sum_of_slices(const PreparedLaunch& prepared, const Stream& stream) {
  launch("weight_gradients.sum", sum_slices_kernel, {prepared.sum_blocks, kThreads, 0}, stream,
         prepared.args);
}

}  // namespace gradients

bool weight_gradients_support(DType dtype, int64_t in, int64_t out) {
  return size_of(dtype) == 2 && is_floating(dtype) && in >= 1 && in <= kMaxWeightGradientWidth && out >= 1 &&
         out <= kMaxWeightGradientWidth;
}

void weight_gradients(std::span<const WeightGradientJob> jobs, std::span<const ColumnSumJob> sums,
                      Runtime& runtime, const Stream& stream) {
  const bool is_f16 = jobs.empty() || jobs.front().x.dtype() == DType::f16;
  while (!jobs.empty() || !sums.empty()) {
    const size_t now = std::min<size_t>(jobs.size(), kMaxWeightGradientJobs);
    const size_t sums_now = std::min<size_t>(sums.size(), kMaxColumnSumJobs);
    const auto start_as = is_f16 ? gradients::start<half> : gradients::start<bfloat16>;
    start_as(jobs.first(now), sums.first(sums_now), runtime, stream);
    jobs = jobs.subspan(now);
    sums = sums.subspan(sums_now);
  }
}

}  // namespace meshgrad::cuda
