// SPDX-License-Identifier: Apache-2.0
// The device code of weight gradients, d_weight += x^T d_z, as the work of one block; shared by the kernels
// of weight_gradients.cu and node_terms_backward.cu.
//
// A unit is one 128 x 128 tile of one d_weight for one slice of the rows: a split-K GEMM whose long dimension
// is the rows. A block streams the unit's rows of x and d_z through a pipeline of three stages in shared
// memory. Its eight warps have 32 x 64 of the tile each, as 4 x 2 pieces, with the accumulators in registers:
//
//                 out 0 .. 63   64 .. 127
//   in   0 .. 31    warp 0       warp 1
//       32 .. 63    warp 2       warp 3
//       64 .. 95    warp 4       warp 5
//       96 .. 127   warp 6       warp 7
//
// A smaller tile has fewer pieces: then several warps share a piece and take its k steps of 16 rows
// round-robin (row groups).
//
// Every block writes its partial tile to memory. A second, short launch of many blocks adds the slices to
// d_weight, by slice number, so the bits do not depend on timing. One block that added a tile would be a long
// tail of the launch.
#pragma once
#include <meshgrad/kernels/cuda/device.h>
#include <meshgrad/kernels/cuda/fused/weight_gradients.h>

namespace meshgrad::cuda::gradients {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kTile = 128;     ///< rows and columns of d_weight in a unit
inline constexpr int kPieceIn = 32;   ///< rows of the tile in a warp's registers
inline constexpr int kPieceOut = 64;  ///< and columns; 64 accumulators per lane leave room for two blocks
inline constexpr int kPieceFloats = kPieceIn * kPieceOut;
inline constexpr int kUnitFloats = kWarps * kPieceFloats;  ///< 64 KiB of partials per unit
inline constexpr int kPanel = 64;  ///< columns stored together in a stage: 128 bytes, all 32 banks once
/// Three stages: one is multiplied while two are in flight. 48 KiB per block.
inline constexpr int kStages = 3;
inline constexpr int kStageBytes = 16 * 1024;
inline constexpr int kSharedBytes = kStages * kStageBytes;
/// Of the kernels of weight gradients alone: one block loads while the other multiplies.
inline constexpr int kBlocksPerMultiprocessor = 2;
inline constexpr int kMaxTiles = 4;  ///< of a 256 x 256 matrix
/// Slices have at least about so many stages, as far as there are rows: each costs 64 KiB of partials.
inline constexpr int kLeastStages = 4;
/// A block of the sum has this many 16-byte vectors of a tile, and the slices in as many parts.
inline constexpr int kSumVectors = 64;
inline constexpr int kSumParts = kThreads / kSumVectors;

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
  int32_t units;            ///< blocks for matrices; the blocks behind them sum columns
  int32_t resident_blocks;  ///< blocks that run on the device at the same time
  /// Job 0's d_z is computed by its own blocks, each for its slice of rows (dS in node_terms_backward.h). So
  /// the block with tile 0 of a slice also does the slice's other tiles, whose blocks have nothing to do.
  bool first_makes_d_z;
  const int64_t* edge_count;
  int64_t edge_capacity;
  float* partials;  ///< [units, kUnitFloats]
};

/// The decomposition of a job, the same for all of its tiles: that of the widest.
struct Tiling {
  int32_t tiles_in, tiles_out, tiles;     ///< of d_weight, kTile x kTile
  int32_t panels_in, panels_out, panels;  ///< of kPanel columns in a stage: of x, of d_z, both
  int32_t pieces_out, pieces;             ///< of kPieceIn x kPieceOut in a tile
  int32_t stage_rows;                     ///< rows of x and d_z in a stage
  int32_t row_groups;                     ///< warps that share a piece
};

/// A stage of at most 16 KiB has 32 rows of 3 or 4 panels of 128 bytes, or 64 rows of 2.
constexpr Tiling tiling_of(int32_t in, int32_t out) {
  Tiling tiling{};
  tiling.tiles_in = (in + kTile - 1) / kTile;
  tiling.tiles_out = (out + kTile - 1) / kTile;
  tiling.tiles = tiling.tiles_in * tiling.tiles_out;
  tiling.panels_in = in > kPanel ? 2 : 1;
  tiling.panels_out = out > kPanel ? 2 : 1;
  tiling.panels = tiling.panels_in + tiling.panels_out;
  const int32_t pieces_in = in > kTile ? kTile / kPieceIn : (in + kPieceIn - 1) / kPieceIn;
  tiling.pieces_out = tiling.panels_out;
  tiling.pieces = pieces_in * tiling.pieces_out;
  tiling.stage_rows = tiling.panels == 2 ? 64 : 32;
  const int32_t idle = kWarps / tiling.pieces, steps = tiling.stage_rows / 16;
  tiling.row_groups = std::min(idle, steps);
  return tiling;
}

/// One block's work: a tile of a job for a slice of rows.
struct Unit {
  int32_t job, slice, slices, tile;
  int32_t first;       ///< number of the job's unit of slice 0 and tile 0
  int64_t begin, end;  ///< rows
};

__device__ inline int64_t real_count(const int64_t* count, int64_t capacity) {
  return count == nullptr ? capacity : *count;
}

/// The memory traffic of a job, in rows of 64 values: a measure of its time, since it is bound by memory.
__device__ inline int64_t cost_of(const Args& args, int32_t j, const Tiling& tiling) {
  const Job& job = args.jobs[j];
  const int64_t rows = real_count(job.count, job.capacity);
  if (j > 0 || !args.first_makes_d_z) return rows * tiling.panels * tiling.tiles;
  // d_z_1 of every edge; per node dS, dR and h read, dS written, d_h read and written.
  return (real_count(args.edge_count, args.edge_capacity) + 6 * rows) * (job.out / kPanel);
}

/// A job's rows in slices. Units are numbered by job, then slice, then tile.
struct Division {
  int32_t slices;  ///< 0: the job has no rows
  int32_t first;   ///< number of the job's first unit
  int64_t stages, count;
};

/// The division of all jobs from the real counts, which only the device knows: a job gets blocks in
/// proportion to its memory traffic, at least one slice, and at most one per kLeastStages. One warp calls,
/// and lane j returns that of job j; sums over the jobs are shuffles.
__device__ inline Division divide(const Args& args) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t j = lane < args.job_count ? lane : 0;
  const Tiling tiling = tiling_of(args.jobs[j].in, args.jobs[j].out);
  Division division{};
  division.count = real_count(args.jobs[j].count, args.jobs[j].capacity);
  division.stages = (division.count + tiling.stage_rows - 1) / tiling.stage_rows;
  const bool real = lane < args.job_count && division.stages > 0;
  const int64_t cost = real ? cost_of(args, j, tiling) : 0;
  int64_t all = cost;  // 64-bit: the products below pass 2^31
  for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
  if (real) {
    const int32_t blocks_a_slice = args.first_makes_d_z && j == 0 ? 1 : tiling.tiles;
    const int64_t by_cost = args.resident_blocks * cost / (all * blocks_a_slice);
    const int64_t most = (division.stages + kLeastStages - 1) / kLeastStages;
    division.slices = static_cast<int32_t>(max(int64_t{1}, min(by_cost, most)));
  }
  const int32_t units = division.slices * tiling.tiles;
  int32_t units_end = units;  // inclusive prefix sum: units of this job and those before it
  for (int step = 1; step < 32; step *= 2) {
    const int32_t before = __shfl_up_sync(0xffffffffu, units_end, step);
    if (lane >= step) units_end += before;
  }
  division.first = units_end - units;
  return division;
}

/// The unit of a block. slices = 0: the block has nothing to do. One warp calls.
__device__ inline void find_unit(const Args& args, int32_t unit, Unit& found) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const Division division = divide(args);
  const int32_t j = lane < args.job_count ? lane : 0;
  const Tiling tiling = tiling_of(args.jobs[j].in, args.jobs[j].out);
  const int32_t at = unit - division.first;
  if (at >= 0 && at < division.slices * tiling.tiles) {
    const int32_t slice = at / tiling.tiles;
    const int64_t end = division.stages * (slice + 1) / division.slices * tiling.stage_rows;
    found = {j,
             slice,
             division.slices,
             at % tiling.tiles,
             division.first,
             division.stages * slice / division.slices * tiling.stage_rows,
             end < division.count ? end : division.count};
  } else if (lane == 31 && at >= 0) {
    found = {};
  }
}

/// Where eight columns (a 16-byte chunk) of a row are in a stage, which is [panel][row][64 values]. A
/// panel's row is 128 bytes, so unswizzled the same chunk of all rows would be in the same 4 banks. Chunk c
/// is stored at c ^ (row % 8): the eight rows that ldmatrix reads at once are then in eight different groups
/// of 4 banks, and so are the eight chunks of one row that neighbouring threads write.
__device__ inline int32_t chunk_offset(int32_t stage_rows, int row, int column) {
  const int chunk = (column % kPanel / 8) ^ (row % 8);
  return ((column / kPanel) * stage_rows + row) * kPanel + chunk * 8;
}

/// What the calling thread loads of one operand of a unit's tile, x or d_z: of each stage, chunks in the same
/// columns of every row_step-th row, so that little is left to compute for each. Neighbouring threads load
/// neighbouring chunks.
template <class T>
struct OperandTile {
  const T* values;  ///< of the unit's first row at these columns; without columns, its first
  int32_t width;
  int32_t columns;  ///< left from the chunks' first on; none if not positive
  int32_t offset;   ///< of a chunk in row 0 of a stage, for rows of first_row's swizzle
  int32_t first_row, row_step;
  bool vectors;  ///< 16-byte accesses; a row of another width is loaded value by value

  __device__ OperandTile(const void* data, int64_t unit_row, int32_t data_width, int32_t tile_column,
                         int32_t panels, int32_t stage_rows, bool in_vectors)
      : width(data_width), vectors(in_vectors) {
    const int shift = panels == 2 ? 4 : 3;  // log2 of the chunks of a row
    first_row = static_cast<int32_t>(threadIdx.x) >> shift;
    row_step = kThreads >> shift;  // a multiple of the swizzle's eight rows
    const int column = (static_cast<int>(threadIdx.x) - (first_row << shift)) * 8;
    columns = width - tile_column - column;
    values = static_cast<const T*>(data) + unit_row * width + (columns > 0 ? tile_column + column : 0);
    offset = chunk_offset(stage_rows, first_row, column) - first_row * kPanel;
  }
};

/// Starts loading rows of one operand, from row `first` of the unit's `rows` on, into a stage of
/// `stage_rows`; zeros behind them and behind the width, so that the multiplication needs no bounds.
template <class T>
__device__ void fill(T* stage, const OperandTile<T>& operand, int32_t stage_rows, int32_t first,
                     int32_t rows) {
  for (int r = operand.first_row; r < stage_rows; r += operand.row_step) {
    T* const to = stage + operand.offset + r * kPanel;
    const int32_t left = first + r < rows ? operand.columns : 0;
    const T* const from = operand.values + int64_t{left > 0 ? first + r : 0} * operand.width;
    if (operand.vectors) {
      copy_async_16(to, from, left > 0);
    } else {
      Vector<T> eight;
      for (int e = 0; e < 8; ++e) eight.v[e] = e < left ? from[e] : T{};
      *reinterpret_cast<Vector<T>*>(to) = eight;
    }
  }
}

/// A warp's piece of a tile: sum[i][j] is the d fragment of rows 16 i and columns 8 j of the piece.
struct Piece {
  int32_t in, out;  ///< its first row and column in the tile
  int32_t row_group;
  float sum[2][8][4];
};

/// piece += x^T d_z over the rows of a stage that belong to the warp's row group. Both operands have rows
/// (the k dimension) as rows in the stage, while the a fragment has neighbouring k of x^T in a register and
/// the b fragment neighbouring k of d_z: both are loaded transposed. The four 8x8 matrices of a load, of
/// which lane gives a row of number `matrix` = lane / 8, start at
///
///   matrix   0            1            2            3
///   of a     in 0, k 0    in 8, k 0    in 0, k 8    in 8, k 8
///   of b     out 0, k 0   out 0, k 8   out 8, k 0   out 8, k 8
///
/// The loads' chunks differ in bits of their number that are 0 in the first's. Whatever the swizzle, flipping
/// these bits in the offset of the first gives the others' offsets, at one instruction each.
template <class T>
__device__ void add_stage(const T* x, const T* d_z, const Tiling& tiling, Piece& piece) {
  const int lane = static_cast<int>(threadIdx.x % 32), matrix = lane / 8;
  const int32_t first_a =
      chunk_offset(tiling.stage_rows, matrix / 2 * 8 + lane % 8, piece.in + matrix % 2 * 8);
  const int32_t first_b =
      chunk_offset(tiling.stage_rows, matrix % 2 * 8 + lane % 8, piece.out + matrix / 2 * 8);
  for (int step = piece.row_group; step < tiling.stage_rows / 16; step += tiling.row_groups) {
    const int32_t row = step * 16 * kPanel;
    uint32_t a[2][4];
    for (int i = 0; i < 2; ++i) load_matrices_transposed(a[i], x + (row + (first_a ^ i * 16)));
    for (int j = 0; j < 4; ++j) {
      uint32_t b[4];
      load_matrices_transposed(b, d_z + (row + (first_b ^ j * 16)));
      for (int i = 0; i < 2; ++i) {
        multiply_add<T>(piece.sum[i][2 * j], a[i], {b[0], b[1]});
        multiply_add<T>(piece.sum[i][2 * j + 1], a[i], {b[2], b[3]});
      }
    }
  }
}

/// The rows of a unit for one tile, a stage after another through a ring of kStages in shared memory. A stage
/// is x, then d_z.
template <class T>
struct StageRing {
  T* ring;
  int32_t rows, stage_rows, stages, d_z_offset;
  OperandTile<T> x, d_z;

  __device__ StageRing(const Job& job, const Unit& unit, int32_t tile, const Tiling& tiling, T* shared)
      : ring(shared),
        rows(static_cast<int32_t>(unit.end - unit.begin)),
        stage_rows(tiling.stage_rows),
        stages((rows + stage_rows - 1) / stage_rows),
        d_z_offset(tiling.panels_in * tiling.stage_rows * kPanel),
        x(job.x, unit.begin, job.in, tile / tiling.tiles_out * kTile, tiling.panels_in, tiling.stage_rows,
          job.x_vectors),
        d_z(job.d_z, unit.begin, job.out, tile % tiling.tiles_out * kTile, tiling.panels_out,
            tiling.stage_rows, job.d_z_vectors) {}

  __device__ T* stage(int32_t s) const {
    return ring + s % kStages * (kStageBytes / static_cast<int>(sizeof(T)));
  }
  __device__ void load(int32_t s) const {
    if (s < stages) {
      fill(stage(s), x, stage_rows, s * stage_rows, rows);
      fill(stage(s) + d_z_offset, d_z, stage_rows, s * stage_rows, rows);
    }
    copy_async_commit();  // empty groups too: the wait counts groups
  }
};

/// Adds the unit's rows to this warp's piece: the pipeline over stages. All threads of the block call, also
/// warps without a piece, since all of them load.
///
///   wait     own copies of stage s are complete (at most those of stage s + 1 are in flight)
///   barrier  all threads' copies of stage s are complete; all warps have multiplied stage s - 1
///   load     stage s + 2 into the buffer of stage s - 1
///   multiply stage s
template <class T>
__device__ void sum_rows(const StageRing<T>& ring, const Tiling& tiling, bool has_piece, Piece& piece) {
  for (int32_t s = 0; s < kStages - 1; ++s) ring.load(s);
  for (int32_t s = 0; s < ring.stages; ++s) {
    copy_async_wait<kStages - 2>();
    __syncthreads();
    ring.load(s + kStages - 1);
    const T* const stage = ring.stage(s);
    if (has_piece) add_stage(stage, stage + ring.d_z_offset, tiling, piece);
  }
  copy_async_wait<0>();  // only empty groups are left
}

/// Adds the four floats at 16-byte offset `at` of a partial tile to d_weight. They are the d fragment of one
/// lane in the order of store: [piece][fragment 8 i + j][lane][4], so rows lane / 4 and lane / 4 + 8 and two
/// neighbouring columns of the fragment. No atomics: a value of d_weight belongs to one thread.
__device__ inline void add_to_weight(const Job& job, const Tiling& tiling, int32_t tile, int at,
                                     const Vector<float>& sum) {
  const int piece = at / (kPieceFloats / 4), fragment = at / 32 % 16, lane = at % 32;
  const int row =
      tile / tiling.tiles_out * kTile + piece / tiling.pieces_out * kPieceIn + fragment / 8 * 16 + lane / 4;
  const int column = tile % tiling.tiles_out * kTile + piece % tiling.pieces_out * kPieceOut +
                     fragment % 8 * 8 + lane % 4 * 2;
  for (int e = 0; e < 4; ++e) {
    const int r = row + e / 2 * 8, c = column + e % 2;
    if (r < job.in && c < job.out) job.d_weight[int64_t{r} * job.out + c] += sum.v[e];
  }
}

/// Where partials of the tile's slice 0 are, and those of the next slice behind them. They are
/// [unit][warp][fragment 8 i + j][lane][4]: registers as they are, 512 contiguous bytes per store of a warp.
/// Row groups are further parts of a unit and are added with the slices.
__device__ inline float* partials_of(const Args& args, const Unit& unit, int32_t tile) {
  return args.partials + int64_t{unit.first + tile} * kUnitFloats;
}
__device__ inline int64_t slice_stride_of(const Tiling& tiling) {
  return int64_t{tiling.tiles} * kUnitFloats;
}

__device__ inline void store_partials(const Args& args, const Unit& unit, int32_t tile, const Tiling& tiling,
                                      const Piece& piece) {
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  float* const to =
      partials_of(args, unit, tile) + unit.slice * slice_stride_of(tiling) + warp * kPieceFloats;
  for (int f = 0; f < 16; ++f) {
    const float(&sum)[4] = piece.sum[f / 8][f % 8];
    reinterpret_cast<Vector<float>*>(to)[f * 32 + lane] = {{sum[0], sum[1], sum[2], sum[3]}};
  }
}

/// Blocks of the sum of a job's partials, kSumVectors of a tile each.
constexpr int32_t sum_blocks_of_tile(const Tiling& tiling) {
  return tiling.pieces * (kPieceFloats / 4 / kSumVectors);
}

/// Adds kSumVectors vectors of a tile's slices to d_weight; `block` counts the blocks of all jobs and tiles.
/// Row groups count as further slices. Four parts of the slices are added side by side, then the parts.
__device__ inline void sum_slices(const Args& args, int32_t block) {
  constexpr int kBatch = 8;  // loads in flight: one takes several hundred cycles
  MESHGRAD_SHARED(Division, divisions, 32);
  MESHGRAD_SHARED(Vector<float>, part_sums, kThreads);
  if (threadIdx.x < 32) divisions[threadIdx.x] = divide(args);
  __syncthreads();
  int32_t j = 0;
  Tiling tiling = tiling_of(args.jobs[0].in, args.jobs[0].out);
  for (; block >= sum_blocks_of_tile(tiling) * tiling.tiles;) {
    block -= sum_blocks_of_tile(tiling) * tiling.tiles;
    ++j;
    tiling = tiling_of(args.jobs[j].in, args.jobs[j].out);
  }
  const Division& division = divisions[j];
  if (division.slices == 0 || args.jobs[j].d_weight == nullptr) return;
  const int32_t tile = block / sum_blocks_of_tile(tiling);
  const int32_t thread = static_cast<int32_t>(threadIdx.x), part = thread / kSumVectors;
  const int32_t at = block % sum_blocks_of_tile(tiling) * kSumVectors + thread % kSumVectors;
  const int32_t slices = division.slices * tiling.row_groups;
  const int32_t begin = slices * part / kSumParts, end = slices * (part + 1) / kSumParts;
  const float* const partials = args.partials + int64_t{division.first + tile} * kUnitFloats;
  Vector<float> sum{};
  for (int32_t first = begin; first < end; first += kBatch) {
    Vector<float> batch[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int32_t slice = (first + i) / tiling.row_groups, group = (first + i) % tiling.row_groups;
      const float* const from =
          partials + slice * slice_stride_of(tiling) + group * tiling.pieces * kPieceFloats;
      if (first + i < end) batch[i] = reinterpret_cast<const Vector<float>*>(from)[at];
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (first + i >= end) break;
      for (int e = 0; e < 4; ++e) sum.v[e] += batch[i].v[e];
    }
  }
  part_sums[thread] = sum;
  __syncthreads();
  if (part > 0) return;
  for (int p = 1; p < kSumParts; ++p) {
    for (int e = 0; e < 4; ++e) sum.v[e] += part_sums[p * kSumVectors + thread].v[e];
  }
  add_to_weight(args.jobs[j], tiling, tile, at, sum);
}

/// Computes one tile of the unit's slice, unit.tile or another one of the job. All threads of the block call.
/// Warps are numbered piece by piece, then row group by row group; left-over warps only load.
template <class T>
__device__ void add_unit(const Args& args, const Unit& unit, int32_t tile) {
  const Job& job = args.jobs[unit.job];
  const Tiling tiling = tiling_of(job.in, job.out);
  const int warp = static_cast<int>(threadIdx.x / 32), slot = warp % tiling.pieces;
  const bool has_piece = warp < tiling.pieces * tiling.row_groups;
  Piece piece{
      slot / tiling.pieces_out * kPieceIn, slot % tiling.pieces_out * kPieceOut, warp / tiling.pieces, {}};
  sum_rows(StageRing<T>(job, unit, tile, tiling, dynamic_shared<T>()), tiling, has_piece, piece);
  if (has_piece) store_partials(args, unit, tile, tiling, piece);
}

/// Sums 32 columns of the partials of a ColumnSum, a lane one of them: each warp adds every eighth row, then
/// the warps' sums are added in order. `block` counts the blocks of all sums.
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

/// What a block of a kernel does: blocks [0, units) have one unit each, which `add` computes, those behind
/// them 32 columns of a column sum each.
template <class Add>
__device__ void run_block(const Args& args, const Add& add) {
  const auto block = static_cast<int32_t>(blockIdx.x);
  if (block >= args.units) {
    sum_columns(args, block - args.units);
    return;
  }
  // In shared memory, so that the loop over rows has the registers that it would occupy.
  MESHGRAD_SHARED(Unit, unit, 1);
  if (threadIdx.x < 32) find_unit(args, block, unit[0]);
  __syncthreads();
  // Without slices: launched for capacities that the real counts do not reach.
  if (unit[0].slices > 0) add(unit[0]);
}

/// The kernel arguments with the workspace that they point into, and the grid. With `edges`, the blocks of
/// jobs.front() compute its d_z themselves (first_makes_d_z), and its d_weight may be undefined.
struct PreparedLaunch {
  Args args{};
  int64_t blocks = 0, sum_blocks = 0;
  Tensor partials;
  PreparedLaunch(std::span<const WeightGradientJob> jobs, std::span<const ColumnSumJob> sums,
                 int64_t resident_blocks, const Rows* edges, Runtime& runtime);
};

/// The second launch: adds the slices of all jobs to their d_weight.
void start_sum_of_slices(const PreparedLaunch& prepared, const Stream& stream);

}  // namespace meshgrad::cuda::gradients
