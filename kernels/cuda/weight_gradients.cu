// SPDX-License-Identifier: Apache-2.0
// A block owns one slice of the rows of one 128x128 tile of one d_weight and streams its rows of x and d_z
// through a ring of stages in shared memory. Its eight warps own 32x64 of the tile each; where the tile has
// fewer such pieces, warps share a piece and take turns at the rows (row groups). Partials go to memory as
// the lanes hold them; whoever is last among a group of slices adds that group up, whoever is last among the
// groups adds the groups up: two short sums, where a single block would take long over one.
#include <meshgrad/kernels/cuda/device.h>
#include <meshgrad/kernels/cuda/weight_gradients.h>

namespace meshgrad::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocksPerMultiprocessor = 2;
constexpr int kTile = 128;     ///< rows and columns of d_weight that a block owns
constexpr int kPieceIn = 32;   ///< rows of the tile in a warp's registers
constexpr int kPieceOut = 64;  ///< and columns
constexpr int kPieceFloats = kPieceIn * kPieceOut;
constexpr int kUnitFloats = kWarps * kPieceFloats;
constexpr int kPanel = 64;  ///< columns that lie together in a stage: 128 bytes, every bank once
constexpr int kStages = 3;
constexpr int kStageBytes = 16 * 1024;
constexpr int kSharedBytes = kStages * kStageBytes;
constexpr int kMaxTiles = 4;

struct Job {
  const void* x;
  const void* d_z;
  float* d_weight;
  const int64_t* count;
  int64_t capacity;
  int32_t in, out;
  bool x_vectors, d_z_vectors;  ///< every row starts on 16 bytes
};

struct ColumnSum {
  const float* partials;
  float* target;
  int64_t rows, stride;
  int32_t width;
};

struct Args {
  Job jobs[kMaxWeightGradientJobs];
  ColumnSum sums[kMaxColumnSumJobs];
  int32_t job_count;
  int32_t units;      ///< blocks for matrices; those behind them sum columns
  int32_t at_once;    ///< blocks that the device holds at one time
  float* partials;    ///< [units, kUnitFloats]
  unsigned* tickets;  ///< [units + jobs * kMaxTiles], zero
};

/// How the tiles of a job are cut: all alike, by the widest.
struct Cut {
  int32_t tiles_in, tiles_out, tiles;
  int32_t panels_in, panels_out, panels;  ///< of a stage
  int32_t pieces_out, pieces;             ///< of a tile
  int32_t stage_rows, row_groups;
};

constexpr Cut cut_of(int32_t in, int32_t out) {
  Cut cut{};
  cut.tiles_in = (in + kTile - 1) / kTile;
  cut.tiles_out = (out + kTile - 1) / kTile;
  cut.tiles = cut.tiles_in * cut.tiles_out;
  cut.panels_in = in > kPanel ? 2 : 1;
  cut.panels_out = out > kPanel ? 2 : 1;
  cut.panels = cut.panels_in + cut.panels_out;
  const int32_t pieces_in = in > kTile ? kTile / kPieceIn : (in + kPieceIn - 1) / kPieceIn;
  cut.pieces_out = cut.panels_out;
  cut.pieces = pieces_in * cut.pieces_out;
  cut.stage_rows = cut.panels == 2 ? 64 : 32;
  const int32_t idle = kWarps / cut.pieces, steps = cut.stage_rows / 16;
  cut.row_groups = idle < steps ? idle : steps;
  return cut;
}

/// One block's share of one job.
struct Unit {
  int32_t job, slice, slices, tile;
  int32_t first;       ///< unit of the job's slice 0, tile 0
  int64_t begin, end;  ///< rows
};

__device__ int64_t count_of(const Job& job) { return job.count == nullptr ? job.capacity : *job.count; }

/// Every block works out the whole division from the real counts, so that no host has to know them: a job
/// gets slices in proportion to the bytes it reads. False for a block too many.
__device__ void find_unit(const Args& args, int32_t unit, Unit& found) {
  int64_t bytes = 0;
  for (int j = 0; j < args.job_count; ++j) {
    const Cut cut = cut_of(args.jobs[j].in, args.jobs[j].out);
    bytes += count_of(args.jobs[j]) * cut.panels * cut.tiles;
  }
  int32_t first = 0;
  for (int j = 0; j < args.job_count; ++j) {
    const Cut cut = cut_of(args.jobs[j].in, args.jobs[j].out);
    const int64_t count = count_of(args.jobs[j]);
    const int64_t stages = (count + cut.stage_rows - 1) / cut.stage_rows;
    if (stages == 0) continue;
    int64_t slices = args.at_once * count * cut.panels / bytes;
    slices = slices < 1 ? 1 : slices < stages ? slices : stages;
    const int32_t units = static_cast<int32_t>(slices) * cut.tiles;
    if (unit < first + units) {
      const int32_t slice = (unit - first) / cut.tiles;
      const int64_t end = stages * (slice + 1) / slices * cut.stage_rows;
      found = {j,
               slice,
               static_cast<int32_t>(slices),
               (unit - first) % cut.tiles,
               first,
               stages * slice / slices * cut.stage_rows,
               end < count ? end : count};
      return;
    }
    first += units;
  }
  found = {};
}

/// Where eight columns of a stage's row lie. Chunks of a row are exchanged by the row's number, so that eight
/// rows of one column, which load_matrices reads together, lie in different banks.
template <class T>
__device__ T* chunk_of(T* side, int32_t stage_rows, int row, int column) {
  const int chunk = (column % kPanel / 8) ^ (row % 8);
  return side + ((column / kPanel) * stage_rows + row) * kPanel + chunk * 8;
}

/// One matrix as a tile reads it.
template <class T>
struct Side {
  const T* values;
  int32_t width;
  int32_t column;  ///< the tile's first
  int32_t panels;
  bool vectors;
};

/// `rows` rows of one side, from row `row` on, into a stage of `stage_rows`; zeros behind them and beyond the
/// width.
template <class T>
__device__ void fill(T* stage, const Side<T>& side, int32_t stage_rows, int64_t row, int32_t rows) {
  const T* const values = side.values + row * side.width + side.column;
  const int32_t width = side.width - side.column;
  const int shift = side.panels == 2 ? 4 : 3;  // of the eights of a row
  for (int i = static_cast<int>(threadIdx.x); i < stage_rows << shift; i += kThreads) {
    const int r = i >> shift, column = (i - (r << shift)) * 8;
    T* const to = chunk_of(stage, stage_rows, r, column);
    const int32_t left = r < rows ? width - column : 0;
    const T* const from = values + (left > 0 ? r * side.width + column : 0);
    if (side.vectors) {
      copy_async_16(to, from, left > 0);
    } else {
      Vector<T> eight;
      for (int e = 0; e < 8; ++e) eight.v[e] = e < left ? from[e] : T{};
      *reinterpret_cast<Vector<T>*>(to) = eight;
    }
  }
}

/// A warp's piece of a tile: two 16-row fragments times eight of 8 columns.
struct Piece {
  int32_t in, out;  ///< its first row and column in the tile
  int32_t row_group;
  float sum[2][8][4];
};

template <class T>
__device__ void add_stage(const T* x, const T* d_z, const Cut& cut, Piece& piece) {
  const int lane = static_cast<int>(threadIdx.x % 32), matrix = lane / 8;
  for (int step = piece.row_group; step < cut.stage_rows / 16; step += cut.row_groups) {
    uint32_t a[2][4];
    for (int i = 0; i < 2; ++i) {
      // The stage holds x, the product wants x^T: matrices in the order (in, row), transposed on the way.
      const int row = step * 16 + matrix / 2 * 8 + lane % 8;
      load_matrices_transposed(a[i], chunk_of(x, cut.stage_rows, row, piece.in + i * 16 + matrix % 2 * 8));
    }
    for (int j = 0; j < 4; ++j) {
      uint32_t b[4];
      const int row = step * 16 + matrix % 2 * 8 + lane % 8;
      load_matrices_transposed(b, chunk_of(d_z, cut.stage_rows, row, piece.out + j * 16 + matrix / 2 * 8));
      for (int i = 0; i < 2; ++i) {
        multiply_add<T>(piece.sum[i][2 * j], a[i], {b[0], b[1]});
        multiply_add<T>(piece.sum[i][2 * j + 1], a[i], {b[2], b[3]});
      }
    }
  }
}

/// Sums the unit's rows into this warp's piece.
template <class T>
__device__ void sum_rows(const Job& job, const Unit& unit, const Cut& cut, bool has_piece, Piece& piece) {
  T* const ring = dynamic_shared<T>();
  const int32_t tile_in = unit.tile / cut.tiles_out * kTile, tile_out = unit.tile % cut.tiles_out * kTile;
  const Side<T> x{static_cast<const T*>(job.x), job.in, tile_in, cut.panels_in, job.x_vectors};
  const Side<T> d_z{static_cast<const T*>(job.d_z), job.out, tile_out, cut.panels_out, job.d_z_vectors};
  const int d_z_offset = cut.panels_in * cut.stage_rows * kPanel;
  const auto stages = static_cast<int32_t>((unit.end - unit.begin + cut.stage_rows - 1) / cut.stage_rows);
  const auto fetch = [&](int32_t s) {
    T* const stage = ring + s % kStages * (kStageBytes / static_cast<int>(sizeof(T)));
    const int64_t row = unit.begin + int64_t{s} * cut.stage_rows;
    if (s < stages) {
      const auto rows = static_cast<int32_t>(unit.end - row);
      fill(stage, x, cut.stage_rows, row, rows);
      fill(stage + d_z_offset, d_z, cut.stage_rows, row, rows);
    }
    copy_async_commit();  // empty ones too: the wait counts groups
  };
  for (int32_t s = 0; s < kStages - 1; ++s) fetch(s);
  for (int32_t s = 0; s < stages; ++s) {
    copy_async_wait<kStages - 2>();
    __syncthreads();  // stage s is there for all, and nobody reads stage s - 1, whose place is filled next
    fetch(s + kStages - 1);
    const T* const stage = ring + s % kStages * (kStageBytes / static_cast<int>(sizeof(T)));
    if (has_piece) add_stage(stage, stage + d_z_offset, cut, piece);
  }
  copy_async_wait<0>();
}

/// True, in all threads, for the last block of `expected` that comes by; it then sees what the others wrote
/// before they came.
__device__ bool is_last(unsigned* ticket, int32_t expected) {
  MESHGRAD_SHARED(int, last, 1);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last[0] = atomicAdd(ticket, 1u) + 1 == static_cast<unsigned>(expected) ? 1 : 0;
    __threadfence();
  }
  __syncthreads();
  return last[0] != 0;
}

/// Partials to add: `inner` of each of `outer` units, in this order.
struct Parts {
  const float* first;
  int32_t outer, inner;
  int64_t outer_stride, inner_stride;
};

__device__ Vector<float> add_up(const Parts& parts, int at) {
  Vector<float> sum{};
  for (int o = 0; o < parts.outer; ++o) {
    for (int i = 0; i < parts.inner; ++i) {
      const float* const part = parts.first + o * parts.outer_stride + i * parts.inner_stride;
      const auto x = reinterpret_cast<const Vector<float>*>(part)[at];
      for (int e = 0; e < 4; ++e) sum.v[e] += x.v[e];
    }
  }
  return sum;
}

/// Four sums of lane `at % 32` of fragment `at / 32` of the tile, to where they belong in d_weight.
__device__ void add_to_weight(const Job& job, const Cut& cut, int32_t tile, int at,
                              const Vector<float>& sum) {
  const int piece = at / (kPieceFloats / 4), fragment = at / 32 % 16, lane = at % 32;
  const int row =
      tile / cut.tiles_out * kTile + piece / cut.pieces_out * kPieceIn + fragment / 8 * 16 + lane / 4;
  const int column =
      tile % cut.tiles_out * kTile + piece % cut.pieces_out * kPieceOut + fragment % 8 * 8 + lane % 4 * 2;
  for (int e = 0; e < 4; ++e) {
    const int r = row + e / 2 * 8, c = column + e % 2;
    if (r < job.in && c < job.out) job.d_weight[int64_t{r} * job.out + c] += sum.v[e];
  }
}

/// Leaves the unit's partials, and adds up what is complete with them.
__device__ void finish(const Args& args, const Unit& unit, const Cut& cut, bool has_piece,
                       const Piece& piece) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  float* const tile = args.partials + int64_t{unit.first + unit.tile} * kUnitFloats;  // of slice 0
  const int64_t slice_stride = int64_t{cut.tiles} * kUnitFloats;
  if (has_piece) {
    float* const to = tile + unit.slice * slice_stride + warp * kPieceFloats;
    for (int f = 0; f < 16; ++f) {
      const float(&sum)[4] = piece.sum[f / 8][f % 8];
      reinterpret_cast<Vector<float>*>(to)[f * 32 + lane] = {{sum[0], sum[1], sum[2], sum[3]}};
    }
  }
  int32_t group = 1;  // about the root of the slices, so that both sums are short
  while (group * group < unit.slices) ++group;
  const int32_t groups = (unit.slices + group - 1) / group;
  const int32_t begin = unit.slice / group * group;
  const int32_t size = begin + group < unit.slices ? group : unit.slices - begin;
  if (!is_last(args.tickets + unit.first + begin * cut.tiles + unit.tile, size)) return;

  const int vectors = cut.pieces * kPieceFloats / 4;
  float* const group_sum = tile + begin * slice_stride;
  const Parts slices{group_sum, size, cut.row_groups, slice_stride, int64_t{cut.pieces} * kPieceFloats};
  for (int at = static_cast<int>(threadIdx.x); at < vectors; at += kThreads) {
    const Vector<float> sum = add_up(slices, at);
    reinterpret_cast<Vector<float>*>(group_sum)[at] = sum;
  }
  if (!is_last(args.tickets + args.units + unit.job * kMaxTiles + unit.tile, groups)) return;
  const Parts all{tile, groups, 1, group * slice_stride, 0};
  for (int at = static_cast<int>(threadIdx.x); at < vectors; at += kThreads) {
    add_to_weight(args.jobs[unit.job], cut, unit.tile, at, add_up(all, at));
  }
}

/// 32 columns a block: a warp adds up every eighth row, then the warps are added up in order.
__device__ void sum_columns(const Args& args, int64_t block) {
  MESHGRAD_SHARED(float, warp_sums, kThreads);
  int s = 0;
  for (; block >= blocks_for(args.sums[s].width, 32); ++s) block -= blocks_for(args.sums[s].width, 32);
  const ColumnSum& job = args.sums[s];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int64_t column = block * 32 + lane;
  float sum = 0.0f;
  if (column < job.width) {
    for (int64_t row = warp; row < job.rows; row += kWarps) sum += job.partials[row * job.stride + column];
  }
  warp_sums[threadIdx.x] = sum;
  __syncthreads();
  if (warp > 0 || column >= job.width) return;
  for (int w = 1; w < kWarps; ++w) sum += warp_sums[w * 32 + lane];
  job.target[column] += sum;
}

template <class T>
__global__ void __launch_bounds__(kThreads, kBlocksPerMultiprocessor) weight_gradients_kernel(Args args) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  if (block >= args.units) {
    sum_columns(args, block - args.units);
    return;
  }
  // Shared, so that the rows' loop has the registers that it would lie in.
  MESHGRAD_SHARED(Unit, unit, 1);
  if (threadIdx.x == 0) find_unit(args, block, unit[0]);
  __syncthreads();
  if (unit[0].slices == 0) return;
  const Job& job = args.jobs[unit[0].job];
  const Cut cut = cut_of(job.in, job.out);
  const int warp = static_cast<int>(threadIdx.x / 32), place = warp % cut.pieces;
  const bool has_piece = warp < cut.pieces * cut.row_groups;
  Piece piece{place / cut.pieces_out * kPieceIn, place % cut.pieces_out * kPieceOut, warp / cut.pieces, {}};
  sum_rows<T>(job, unit[0], cut, has_piece, piece);
  finish(args, unit[0], cut, has_piece, piece);
}

bool starts_rows_on_16_bytes(const Tensor& x) {
  return x.width() * size_of(x.dtype()) % 16 == 0 && reinterpret_cast<uintptr_t>(x.raw()) % 16 == 0;
}

/// An upper bound of the units that find_unit will deal out.
int32_t units_for(std::span<const WeightGradientJob> jobs, int32_t at_once) {
  int64_t most = at_once, all = 0;
  for (const WeightGradientJob& job : jobs) {
    const Cut cut =
        cut_of(static_cast<int32_t>(job.d_weight.rows()), static_cast<int32_t>(job.d_weight.width()));
    most += cut.tiles;
    all += blocks_for(job.rows.capacity, cut.stage_rows) * cut.tiles;
  }
  return static_cast<int32_t>(std::min(most, all));
}

template <class T>
void start(std::span<const WeightGradientJob> jobs, std::span<const ColumnSumJob> sums, Runtime& runtime,
           const Stream& stream) {
  Args args{};
  args.job_count = static_cast<int32_t>(jobs.size());
  args.at_once = kBlocksPerMultiprocessor * gpu::multiprocessors(stream.device().index);
  args.units = units_for(jobs, args.at_once);
  for (size_t j = 0; j < jobs.size(); ++j) {
    const WeightGradientJob& job = jobs[j];
    args.jobs[j] = {job.x.raw(),
                    job.d_z.raw(),
                    job.d_weight.data<float>(),
                    job.rows.count,
                    job.rows.capacity,
                    static_cast<int32_t>(job.d_weight.rows()),
                    static_cast<int32_t>(job.d_weight.width()),
                    starts_rows_on_16_bytes(job.x),
                    starts_rows_on_16_bytes(job.d_z)};
  }
  int64_t sum_blocks = 0;
  for (size_t s = 0; s < sums.size(); ++s) {
    const ColumnSumJob& sum = sums[s];
    args.sums[s] = {sum.partials.data<float>() + sum.first_column, sum.target.data<float>(),
                    sum.partials.rows(), sum.partials.width(), static_cast<int32_t>(sum.target.elements())};
    sum_blocks += blocks_for(sum.target.elements(), 32);
  }
  const Tensor partials = Tensor::empty(runtime, {args.units, kUnitFloats}, DType::f32, Tag::workspace,
                                        "weight_gradient_partials");
  const Tensor tickets = Tensor::empty(runtime, {args.units + args.job_count * kMaxTiles}, DType::i32,
                                       Tag::workspace, "weight_gradient_tickets");
  args.partials = partials.data<float>();
  args.tickets = static_cast<unsigned*>(tickets.raw());
  if (args.units > 0) fill_zero(tickets, stream);
  launch("weight_gradients", weight_gradients_kernel<T>, {args.units + sum_blocks, kThreads, kSharedBytes},
         stream, args);
}

}  // namespace

bool weight_gradients_cover(DType dtype, int64_t in, int64_t out) {
  return size_of(dtype) == 2 && is_floating(dtype) && in >= 1 && in <= kMaxWeightGradientWidth && out >= 1 &&
         out <= kMaxWeightGradientWidth;
}

void weight_gradients(std::span<const WeightGradientJob> jobs, std::span<const ColumnSumJob> sums,
                      Runtime& runtime, const Stream& stream) {
  const bool is_f16 = jobs.empty() || jobs.front().x.dtype() == DType::f16;
  while (!jobs.empty() || !sums.empty()) {
    const size_t now = std::min<size_t>(jobs.size(), kMaxWeightGradientJobs);
    const size_t sums_now = std::min<size_t>(sums.size(), kMaxColumnSumJobs);
    const auto start_as = is_f16 ? start<half> : start<bfloat16>;
    start_as(jobs.first(now), sums.first(sums_now), runtime, stream);
    jobs = jobs.subspan(now);
    sums = sums.subspan(sums_now);
  }
}

}  // namespace meshgrad::cuda
