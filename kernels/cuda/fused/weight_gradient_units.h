// SPDX-License-Identifier: Apache-2.0
// Weight gradients as parts of a kernel: what one block does, for weight_gradients.cu and
// node_terms_backward.cu.
//
// A block owns one slice of the rows of one 128x128 tile of one d_weight and streams its rows of x and d_z
// through a ring of stages in shared memory. Its eight warps own 32x64 of the tile each; where the tile has
// fewer such pieces, warps share a piece and take turns at the rows (row groups). Partials go to memory as
// the lanes hold them; whoever is last among a group of slices adds that group up, whoever is last among the
// groups adds the groups up: two short sums, where a single block would take long over one.
#pragma once
#include <meshgrad/kernels/cuda/device.h>
#include <meshgrad/kernels/cuda/fused/weight_gradients.h>

namespace meshgrad::cuda::gradients {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kTile = 128;     ///< rows and columns of d_weight that a block owns
inline constexpr int kPieceIn = 32;   ///< rows of the tile in a warp's registers
inline constexpr int kPieceOut = 64;  ///< and columns
inline constexpr int kPieceFloats = kPieceIn * kPieceOut;
inline constexpr int kUnitFloats = kWarps * kPieceFloats;
inline constexpr int kPanel = 64;  ///< columns that lie together in a stage: 128 bytes, every bank once
inline constexpr int kStages = 3;
inline constexpr int kStageBytes = 16 * 1024;
inline constexpr int kSharedBytes = kStages * kStageBytes;
inline constexpr int kMaxTiles = 4;

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
  int32_t units;    ///< blocks for matrices; those behind them sum columns
  int32_t at_once;  ///< blocks that the device holds at one time
  /// Job 0's blocks make its d_z themselves, each that of its own rows: the sums over what nodes send. So the
  /// block of a slice's tile 0 does the slice's other tiles too, and theirs have nothing to do.
  bool makes_first;
  const int64_t* edge_count;
  int64_t edge_capacity;
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
  cut.row_groups = std::min(idle, steps);
  return cut;
}

/// One block's share of one job.
struct Unit {
  int32_t job, slice, slices, tile;
  int32_t first;       ///< unit of the job's slice 0, tile 0
  int64_t begin, end;  ///< rows
};

__device__ inline int64_t real_count(const int64_t* count, int64_t capacity) {
  return count == nullptr ? capacity : *count;
}

/// What a job moves, in rows of 64 values.
__device__ inline int64_t cost_of(const Args& args, int32_t j, const Cut& cut) {
  const Job& job = args.jobs[j];
  const int64_t rows = real_count(job.count, job.capacity);
  if (j > 0 || !args.makes_first) return rows * cut.panels * cut.tiles;
  // A row of every edge; at the nodes both terms and h read, dS written, d_h read and written.
  return (real_count(args.edge_count, args.edge_capacity) + 6 * rows) * (job.out / kPanel);
}

/// Every block works out the whole division from the real counts, so that no host has to know them: a job
/// gets slices in proportion to the bytes it moves. No slices: a block too many. One warp calls; each of its
/// lanes takes a job.
__device__ inline void find_unit(const Args& args, int32_t unit, Unit& found) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t j = lane < args.job_count ? lane : 0;
  const Cut cut = cut_of(args.jobs[j].in, args.jobs[j].out);
  const int64_t count = real_count(args.jobs[j].count, args.jobs[j].capacity);
  const int64_t stages = (count + cut.stage_rows - 1) / cut.stage_rows;
  const bool real = lane < args.job_count && stages > 0;
  const int64_t cost = real ? cost_of(args, j, cut) : 0;
  int64_t all = cost;
  for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
  int64_t slices = 0;
  if (real) {
    const int32_t blocks_a_slice = args.makes_first && j == 0 ? 1 : cut.tiles;
    slices = args.at_once * cost / (all * blocks_a_slice);
    slices = max(int64_t{1}, min(slices, stages));
  }
  const int32_t units = static_cast<int32_t>(slices) * cut.tiles;
  int32_t behind = units;  // units of this job and those before it
  for (int step = 1; step < 32; step *= 2) {
    const int32_t before = __shfl_up_sync(0xffffffffu, behind, step);
    if (lane >= step) behind += before;
  }
  const int32_t first = behind - units;
  if (unit >= first && unit < behind) {
    const int32_t slice = (unit - first) / cut.tiles;
    const int64_t end = stages * (slice + 1) / slices * cut.stage_rows;
    found = {j,
             slice,
             static_cast<int32_t>(slices),
             (unit - first) % cut.tiles,
             first,
             stages * slice / slices * cut.stage_rows,
             end < count ? end : count};
  } else if (lane == 31 && unit >= behind) {
    found = {};
  }
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
__device__ void sum_rows(const Job& job, const Unit& unit, int32_t tile, const Cut& cut, bool has_piece,
                         Piece& piece) {
  T* const ring = dynamic_shared<T>();
  const int32_t tile_in = tile / cut.tiles_out * kTile, tile_out = tile % cut.tiles_out * kTile;
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
__device__ inline bool is_last(unsigned* ticket, int32_t expected) {
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

__device__ inline Vector<float> add_up(const Parts& parts, int at) {
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
__device__ inline void add_to_weight(const Job& job, const Cut& cut, int32_t tile, int at,
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
__device__ inline void finish(const Args& args, const Unit& unit, int32_t tile, const Cut& cut,
                              bool has_piece, const Piece& piece) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  float* const partials = args.partials + int64_t{unit.first + tile} * kUnitFloats;  // of slice 0
  const int64_t slice_stride = int64_t{cut.tiles} * kUnitFloats;
  if (has_piece) {
    float* const to = partials + unit.slice * slice_stride + warp * kPieceFloats;
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
  if (!is_last(args.tickets + unit.first + begin * cut.tiles + tile, size)) return;

  const int vectors = cut.pieces * kPieceFloats / 4;
  float* const group_sum = partials + begin * slice_stride;
  const Parts slices{group_sum, size, cut.row_groups, slice_stride, int64_t{cut.pieces} * kPieceFloats};
  for (int at = static_cast<int>(threadIdx.x); at < vectors; at += kThreads) {
    const Vector<float> sum = add_up(slices, at);
    reinterpret_cast<Vector<float>*>(group_sum)[at] = sum;
  }
  if (!is_last(args.tickets + args.units + unit.job * kMaxTiles + tile, groups)) return;
  const Parts all{partials, groups, 1, group * slice_stride, 0};
  for (int at = static_cast<int>(threadIdx.x); at < vectors; at += kThreads) {
    add_to_weight(args.jobs[unit.job], cut, tile, at, add_up(all, at));
  }
}

/// The unit's sum of one tile, of any that its job has. All threads of the block.
template <class T>
__device__ void add_unit(const Args& args, const Unit& unit, int32_t tile) {
  const Job& job = args.jobs[unit.job];
  const Cut cut = cut_of(job.in, job.out);
  const int warp = static_cast<int>(threadIdx.x / 32), place = warp % cut.pieces;
  const bool has_piece = warp < cut.pieces * cut.row_groups;
  Piece piece{place / cut.pieces_out * kPieceIn, place % cut.pieces_out * kPieceOut, warp / cut.pieces, {}};
  sum_rows<T>(job, unit, tile, cut, has_piece, piece);
  finish(args, unit, tile, cut, has_piece, piece);
}

/// 32 columns a block: a warp adds up every eighth row, then the warps are added up in order.
__device__ inline void sum_columns(const Args& args, int64_t block) {
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

/// The arguments, and the memory that they point into; `at_once` blocks of the kernel are on the device at
/// one time. With `edges`, jobs.front() makes its d_z itself; its d_weight may be undefined.
struct Plan {
  Args args{};
  int64_t blocks = 0;
  Tensor partials, tickets;
  Plan(std::span<const WeightGradientJob> jobs, std::span<const ColumnSumJob> sums, int64_t at_once,
       const Rows* edges, Runtime& runtime, const Stream& stream);
};

}  // namespace meshgrad::cuda::gradients
