// SPDX-License-Identifier: Apache-2.0
// Of cuBLASLt this has what gemm calls, on the simulated device, and no more patience than the real one. Its
// algorithms want aligned rows: 16-bit operands on 4 bytes, a bias in the epilogue everything on 16 bytes. It
// refuses sizes that do not match, a workspace that is smaller than the algorithm's or not on 256 bytes,
// addresses less aligned than was promised, other operands than the algorithm was chosen for, another current
// device, and what a capture forbids: making a handle, and an algorithm's first run, which loads its kernel.
#include <meshgrad/engine/gpu.h>
#include <meshgrad/kernels/cuda/cublaslt_library.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "arena.h"
#include "device.h"
#include "gemm_loops.h"
#include "streams.h"

namespace meshgrad::cuda {
namespace {

using Lock = std::lock_guard<std::recursive_mutex>;

struct Handle {
  int device;
  std::set<uint64_t> loaded;  ///< algorithms whose kernel is
};
struct Description {
  cublasComputeType_t compute;
  cublasOperation_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct Layout {
  cudaDataType type;
  uint64_t rows, columns;
  int64_t leading;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = ~0u;
  std::array<uint32_t, 4> alignments{256, 256, 256, 256};  // of A, B, C, D
};
/// The words of cublasLtMatmulAlgo_t.
struct Algorithm {
  uint64_t magic, operands, a_alignment, b_alignment, c_alignment, workspace, unused[2];
};
static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
constexpr uint64_t kMagic = 0x6d65736867656d6d;
constexpr uint64_t kWorkspaceBytes = 4096, kWorkspaceAlignment = 256;

simt::GemmAlgorithms algorithms = simt::GemmAlgorithms::all;

template <class T, class Opaque>
T& known(Opaque handle) {
  return *reinterpret_cast<T*>(handle);
}

/// One product: everything that an algorithm depends on.
struct Problem {
  const Description& how;
  const Layout &a, &b, &c, &d;

  bool bias() const { return how.epilogue == CUBLASLT_EPILOGUE_BIAS; }
  uint64_t inner_of_a() const { return how.transpose_a == CUBLAS_OP_N ? a.columns : a.rows; }
  bool sizes_match() const {
    const uint64_t rows = how.transpose_a == CUBLAS_OP_N ? a.rows : a.columns;
    const bool transposed = how.transpose_b == CUBLAS_OP_T;
    const uint64_t inner = transposed ? b.columns : b.rows, columns = transposed ? b.rows : b.columns;
    bool match = inner == inner_of_a() && d.rows == rows && d.columns == columns && c.rows == d.rows &&
                 c.columns == d.columns && rows > 0 && columns > 0 && inner > 0;
    for (const Layout* layout : {&a, &b, &c, &d})
      match = match && layout->leading >= static_cast<int64_t>(layout->rows);
    return match;
  }
  bool types_fit() const {
    const bool wide = a.type == CUDA_R_32F;
    return a.type == b.type && c.type == d.type && (c.type == a.type || c.type == CUDA_R_32F) &&
           (how.compute == CUBLAS_COMPUTE_32F || (how.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && wide));
  }
  uint64_t operands() const {
    return static_cast<uint64_t>(a.type) << 40 | static_cast<uint64_t>(d.type) << 32 |
           static_cast<uint64_t>(how.compute) << 16 | static_cast<uint64_t>(how.transpose_a) << 8 |
           static_cast<uint64_t>(how.transpose_b) << 4 | static_cast<uint64_t>(bias());
  }
};

uint64_t bytes_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

/// The largest power of two, at most 16, that divides the rows and what the caller promises of the address.
uint64_t alignment_of(const Layout& layout, uint64_t promised) {
  uint64_t alignment = std::min<uint64_t>(promised, 16);
  while (static_cast<uint64_t>(layout.leading) * bytes_of(layout.type) % alignment != 0) alignment /= 2;
  return alignment;
}

bool aligned(const void* address, uint64_t alignment) {
  return reinterpret_cast<uintptr_t>(address) % alignment == 0;
}

cublasStatus_t create(cublasLtHandle_t* handle) {
  const Lock lock(simt::streams().lock);
  if (simt::streams().capturing()) return CUBLAS_STATUS_ALLOC_FAILED;
  *handle = reinterpret_cast<cublasLtHandle_t>(new Handle{simt::current_device(), {}});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t create_description(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                  cudaDataType scale) {
  if (scale != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  *made = reinterpret_cast<cublasLtMatmulDesc_t>(new Description{.compute = compute});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t create_layout(cublasLtMatrixLayout_t* made, cudaDataType type, uint64_t rows, uint64_t columns,
                             int64_t leading) {
  *made = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, columns, leading});
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t create_preference(cublasLtMatmulPreference_t* made) {
  *made = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T, class Opaque>
cublasStatus_t destroy(Opaque handle) {
  delete &known<T>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

template <class T>
cublasStatus_t set(T& to, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t set_attribute(cublasLtMatmulDesc_t handle, cublasLtMatmulDescAttributes_t attribute,
                             const void* value, size_t bytes) {
  auto& description = known<Description>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return set(description.transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return set(description.transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return set(description.epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return set(description.bias, value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t set_preference(cublasLtMatmulPreference_t handle,
                              cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                              size_t bytes) {
  auto& preference = known<Preference>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      return set(preference.workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      return set(preference.reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
      return set(preference.alignments[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
      return set(preference.alignments[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
      return set(preference.alignments[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
      return set(preference.alignments[3], value, bytes);
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
}

/// Two: with a workspace, for products that are worth one, and without.
cublasStatus_t candidates(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                          cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                          cublasLtMatmulPreference_t wanted, int most,
                          cublasLtMatmulHeuristicResult_t found[], int* count) {
  const Problem problem{known<Description>(description), known<Layout>(a), known<Layout>(b), known<Layout>(c),
                        known<Layout>(d)};
  const auto& preference = known<Preference>(wanted);
  *count = 0;
  if (!problem.sizes_match() || most < 2) return CUBLAS_STATUS_INVALID_VALUE;
  if (!problem.types_fit() || (problem.bias() && problem.how.bias == nullptr))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const uint64_t of_a = alignment_of(problem.a, preference.alignments[0]),
                 of_b = alignment_of(problem.b, preference.alignments[1]),
                 of_c = alignment_of(problem.c, std::min(preference.alignments[2], preference.alignments[3]));
  const uint64_t least = problem.bias() ? 16 : 4;
  if (algorithms == simt::GemmAlgorithms::none || std::min({of_a, of_b, of_c}) < least)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  for (const uint64_t workspace : {kWorkspaceBytes, uint64_t{0}}) {
    if (workspace > preference.workspace || (workspace > 0 && problem.inner_of_a() < 64)) continue;
    const Algorithm algorithm{kMagic, problem.operands(), of_a, of_b, of_c, workspace, {}};
    found[*count] = {
        std::bit_cast<cublasLtMatmulAlgo_t>(algorithm), workspace, CUBLAS_STATUS_SUCCESS, 1.0f, {}};
    ++*count;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t check(cublasLtHandle_t, cublasLtMatmulDesc_t description, cublasLtMatrixLayout_t a,
                     cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                     const cublasLtMatmulAlgo_t* chosen, cublasLtMatmulHeuristicResult_t* result) {
  const Problem problem{known<Description>(description), known<Layout>(a), known<Layout>(b), known<Layout>(c),
                        known<Layout>(d)};
  const auto algorithm = std::bit_cast<Algorithm>(*chosen);
  if (!problem.sizes_match() || algorithm.magic != kMagic) return CUBLAS_STATUS_INVALID_VALUE;
  const bool fits = algorithm.operands == problem.operands() &&
                    alignment_of(problem.a, 16) >= algorithm.a_alignment &&
                    alignment_of(problem.b, 16) >= algorithm.b_alignment &&
                    alignment_of(problem.c, 16) >= algorithm.c_alignment;
  if (!fits) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = algorithm.workspace;
  return CUBLAS_STATUS_SUCCESS;
}

DType dtype_of(cudaDataType type) {
  return type == CUDA_R_16F ? DType::f16 : type == CUDA_R_16BF ? DType::bf16 : DType::f32;
}

/// The column-major d^T = op(a) op(b) is the row-major d = op(b)^T op(a)^T.
void start(const Problem& problem, const void* a, const void* b, void* d, bool accumulate, void* stream) {
  const auto operand = [](const Layout& layout, const void* data, bool transposed) {
    return transposed ? simt::GemmOperand{data, 1, layout.leading}
                      : simt::GemmOperand{data, layout.leading, 1};
  };
  simt::start_gemm({.a = operand(problem.b, b, problem.how.transpose_b == CUBLAS_OP_T),
                    .b = operand(problem.a, a, problem.how.transpose_a == CUBLAS_OP_T),
                    .bias = problem.bias() ? problem.how.bias : nullptr,
                    .c = d,
                    .m = static_cast<int64_t>(problem.d.columns),
                    .n = static_cast<int64_t>(problem.d.rows),
                    .k = static_cast<int64_t>(problem.inner_of_a()),
                    .in = dtype_of(problem.a.type),
                    .out = dtype_of(problem.d.type),
                    .accumulate = accumulate,
                    .tf32 = problem.how.compute == CUBLAS_COMPUTE_32F_FAST_TF32},
                   stream);
}

cublasStatus_t multiply(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                        const void* a, cublasLtMatrixLayout_t layout_a, const void* b,
                        cublasLtMatrixLayout_t layout_b, const void* beta, const void* c,
                        cublasLtMatrixLayout_t layout_c, void* d, cublasLtMatrixLayout_t layout_d,
                        const cublasLtMatmulAlgo_t* chosen, void* workspace, size_t workspace_bytes,
                        cudaStream_t stream) {
  auto& owner = known<Handle>(handle);
  const Problem problem{known<Description>(description), known<Layout>(layout_a), known<Layout>(layout_b),
                        known<Layout>(layout_c), known<Layout>(layout_d)};
  const auto algorithm = std::bit_cast<Algorithm>(*chosen);
  const Lock lock(simt::streams().lock);
  if (owner.device != simt::current_device()) return CUBLAS_STATUS_EXECUTION_FAILED;
  const auto allocated = [](const void* memory, uint64_t bytes) {
    return simt::arena().contains(memory) && simt::arena().live(memory, static_cast<int64_t>(bytes));
  };
  const bool scratch = algorithm.workspace == 0 ||
                       (workspace_bytes >= algorithm.workspace && aligned(workspace, kWorkspaceAlignment) &&
                        allocated(workspace, algorithm.workspace));
  const bool addresses = aligned(a, algorithm.a_alignment) && aligned(b, algorithm.b_alignment) &&
                         aligned(c, algorithm.c_alignment) && aligned(d, algorithm.c_alignment) &&
                         (!problem.bias() || aligned(problem.how.bias, algorithm.c_alignment));
  if (algorithm.magic != kMagic || algorithm.operands != problem.operands() || !problem.sizes_match() ||
      !scratch || !addresses || *static_cast<const float*>(alpha) != 1.0f) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (algorithms == simt::GemmAlgorithms::declined) return CUBLAS_STATUS_NOT_SUPPORTED;
  const uint64_t kernel = algorithm.operands ^ algorithm.workspace << 48;
  if (owner.loaded.insert(kernel).second && gpu::capturing(stream)) return CUBLAS_STATUS_EXECUTION_FAILED;
  start(problem, a, b, d, *static_cast<const float*>(beta) != 0.0f, stream);
  return CUBLAS_STATUS_SUCCESS;
}

}  // namespace

const CublasLtLibrary& cublaslt_library() {
  static const CublasLtLibrary simulated{
      .version = [] { return size_t{CUBLAS_VERSION}; },
      .create = create,
      .destroy = destroy<Handle, cublasLtHandle_t>,
      .create_description = create_description,
      .destroy_description = destroy<Description, cublasLtMatmulDesc_t>,
      .set_attribute = set_attribute,
      .create_layout = create_layout,
      .destroy_layout = destroy<Layout, cublasLtMatrixLayout_t>,
      .create_preference = create_preference,
      .destroy_preference = destroy<Preference, cublasLtMatmulPreference_t>,
      .set_preference = set_preference,
      .candidates = candidates,
      .check = check,
      .multiply = multiply,
  };
  return simulated;
}

}  // namespace meshgrad::cuda

void simt::set_gemm_algorithms(GemmAlgorithms offered) { meshgrad::cuda::algorithms = offered; }
