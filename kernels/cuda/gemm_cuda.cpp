// SPDX-License-Identifier: Apache-2.0
// gemm by cuBLASLt. Each Runtime has a handle and a cache of prepared calls: descriptors, layouts and the
// chosen algorithm of one shape. The algorithm is found in this order: the prepared call of the same shape,
// the choices on disk of similar shapes, measurements (with autotune), the library's heuristic. Where the
// library has no algorithm, the bias is added apart from the product; if it has none without a bias,
// plain_gemm multiplies.
#include <fmt/format.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/launch_trace.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cuda/cublaslt_library.h>
#include <meshgrad/kernels/cuda/gemm.h>
#include <meshgrad/kernels/cuda/plain_gemm.h>
#include <meshgrad/kernels/gemm_tuning.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace meshgrad::cuda {
namespace {

constexpr auto kMaxWorkspaceBytes = static_cast<size_t>(kMaxGemmWorkspaceBytes);
constexpr int kCandidates = 8;  // algorithms that autotuning measures
constexpr size_t kMaxCachedGemms = 512;
constexpr int kTimedRuns = 5;

void require(cublasStatus_t status, std::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw device_error("gemm", fmt::format("{} to succeed", call),
                     fmt::format("cuBLAS status {}", static_cast<int>(status)),
                     fmt::format("see that the driver and cuBLAS are of CUDA {}", CUBLAS_VER_MAJOR));
}

/// The library cannot do what was asked, and has done nothing.
bool declined(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH;
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      check_internal(dtype == DType::f32, "a matrix multiplication in f32, f16 or bf16");
      return CUDA_R_32F;
  }
}

/// One shape's descriptors and algorithm. cuBLASLt has column-major matrices; a row-major c = a b is, read
/// column-major, c^T = b^T a^T. So its first operand is our b and its second our a, and nothing is transposed
/// in memory.
struct PreparedGemm {
  using Owned = std::shared_ptr<void>;
  Owned description, first, second, result;
  bool has_algorithm = false;  ///< else the library has none
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;
};

/// The row-major [rows, width] as the column-major [width, rows] with leading dimension `width`.
PreparedGemm::Owned layout_of(const Tensor& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  require(cublaslt_library().create_layout(&layout, type_of(matrix.dtype()),
                                           static_cast<uint64_t>(matrix.width()),
                                           static_cast<uint64_t>(matrix.rows()), matrix.width()),
          "cublasLtMatrixLayoutCreate");
  return {layout,
          [](void* made) { cublaslt_library().destroy_layout(static_cast<cublasLtMatrixLayout_t>(made)); }};
}

template <class Handle>
Handle of(const PreparedGemm::Owned& owned) {
  return static_cast<Handle>(owned.get());
}

template <class Value>
void set_attribute(const PreparedGemm& prepared, cublasLtMatmulDescAttributes_t attribute,
                   const Value& value) {
  require(cublaslt_library().set_attribute(of<cublasLtMatmulDesc_t>(prepared.description), attribute, &value,
                                           sizeof value),
          "cublasLtMatmulDescSetAttribute");
}

/// Descriptor and layouts with a and b swapped as above, so their transpositions are swapped, too; the bias
/// is one value per row of the column-major result, which is per column of ours.
PreparedGemm describe_gemm(const Gemm& args, bool tf32) {
  PreparedGemm prepared;
  cublasLtMatmulDesc_t description = nullptr;
  const bool rounds = tf32 && args.a.dtype() == DType::f32;
  require(cublaslt_library().create_description(
              &description, rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
  prepared.description = {description, [](void* made) {
                            cublaslt_library().destroy_description(static_cast<cublasLtMatmulDesc_t>(made));
                          }};
  set_attribute(prepared, CUBLASLT_MATMUL_DESC_TRANSA, args.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set_attribute(prepared, CUBLASLT_MATMUL_DESC_TRANSB, args.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (args.bias.defined()) {
    set_attribute(prepared, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set_attribute(prepared, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(args.bias.raw()));
  }
  prepared.first = layout_of(args.b);
  prepared.second = layout_of(args.a);
  prepared.result = layout_of(args.c);
  return prepared;
}

/// The largest power of two up to 16 that divides the address: algorithms differ in what they require.
uint32_t alignment_of(const Tensor& tensor) {
  if (!tensor.defined()) return 16;
  uint32_t alignment = 16;
  while (reinterpret_cast<uintptr_t>(tensor.raw()) % alignment != 0) alignment /= 2;
  return alignment;
}

/// The key of a call: everything that descriptors and the heuristic depend on.
std::string name_of(const Gemm& args, const GemmSizes& s) {
  return fmt::format("{}{} {}{} {}{}{} {}x{}x{} aligned {} {} {} {}", meshgrad::name_of(args.a.dtype()),
                     args.transpose_a ? "^T" : "", meshgrad::name_of(args.b.dtype()),
                     args.transpose_b ? "^T" : "", meshgrad::name_of(args.c.dtype()),
                     args.accumulate ? " added" : "", args.bias.defined() ? " bias" : "", s.m, s.n, s.k,
                     alignment_of(args.a), alignment_of(args.b), alignment_of(args.c),
                     alignment_of(args.bias));
}

/// Sizes that share a measured algorithm: m and k rounded up to powers of two. Meshes differ in size from
/// step to step, and measuring each of them would stall the run.
GemmSizes tuning_class_of(const Gemm& args) {
  const auto rounded = [](auto size) {
    return static_cast<decltype(size)>(std::bit_ceil(static_cast<uint64_t>(size)));
  };
  GemmSizes s = sizes_of(args);
  s.m = rounded(s.m);
  s.k = rounded(s.k);
  return s;
}

/// One Runtime's cuBLASLt handle and its cache of prepared calls.
class CublasLt {
 public:
  explicit CublasLt(const Runtime& runtime) : device_(runtime.device().index) {
    const gpu::CurrentDevice current(device_);
    require(cublaslt_library().create(&handle_), "cublasLtCreate");
    if (!runtime.autotune()) return;
    const std::string device = gpu::devices().at(static_cast<size_t>(device_)).name;
    choices_ = GemmChoices(gemm_choices_file(device),
                           fmt::format("{}, cuBLASLt {}", device, cublaslt_library().version()));
    if (!choices_.problem().empty())
      runtime.log(LogLevel::warning, choices_.problem() + "; GEMM algorithms are measured again");
  }
  ~CublasLt() { cublaslt_library().destroy(handle_); }
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  void run(const Gemm& args, Runtime& runtime, const Stream& stream) {
    const std::lock_guard lock(mutex_);
    const gpu::CurrentDevice current(device_);
    Gemm call = args;
    PreparedGemm* prepared = &prepared_for(call, runtime, stream);
    if (!prepared->has_algorithm && call.bias.defined()) {
      start_with_bias(call, stream);
      call.bias = Tensor();
      call.accumulate = true;
      prepared = &prepared_for(call, runtime, stream);
    }
    if (prepared->has_algorithm && multiplied(*prepared, call, runtime, stream)) return;
    runtime.log_once(LogLevel::warning,
                     "cuBLASLt has no algorithm for some matrix multiplications, the first is " +
                         first_without_algorithm_ + ": meshgrad's own kernel multiplies there, more slowly");
    plain_gemm(call, stream);
  }

 private:
  PreparedGemm& prepared_for(const Gemm& args, Runtime& runtime, const Stream& stream);
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const PreparedGemm& prepared,
                                                          const Gemm& args) const;
  void choose_algorithm(PreparedGemm& prepared, const Gemm& args, const std::string& name, Runtime& runtime,
                        const Stream& stream);
  bool restore_choice(PreparedGemm& prepared, const std::string& name) const;
  double milliseconds(const PreparedGemm& prepared, const Gemm& args, const Tensor& c, Runtime& runtime,
                      const Stream& stream) const;
  bool multiplied(PreparedGemm& prepared, const Gemm& args, Runtime& runtime, const Stream& stream);
  cublasStatus_t multiply(const PreparedGemm& prepared, const Gemm& args, const Tensor& c, Runtime& runtime,
                          const Stream& stream) const;

  int device_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<std::string, PreparedGemm> prepared_;
  GemmChoices choices_;
  std::string first_without_algorithm_;
};

/// False if the library declines the algorithm that it has chosen; it is then not asked again.
bool CublasLt::multiplied(PreparedGemm& prepared, const Gemm& args, Runtime& runtime, const Stream& stream) {
  if (args.bias.defined())
    set_attribute(prepared, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(args.bias.raw()));
  const TracedLaunch traced("cuBLASLt", stream);
  const cublasStatus_t status = multiply(prepared, args, args.c, runtime, stream);
  if (declined(status)) {
    prepared.has_algorithm = false;
    if (first_without_algorithm_.empty()) first_without_algorithm_ = name_of(args, sizes_of(args));
    return false;
  }
  require(status, "cublasLtMatmul for " + name_of(args, sizes_of(args)));
  if (!stream.dry()) gpu::count_launch();
  return true;
}

cublasStatus_t CublasLt::multiply(const PreparedGemm& prepared, const Gemm& args, const Tensor& c,
                                  Runtime& runtime, const Stream& stream) const {
  Tensor workspace;
  if (prepared.workspace > 0) {
    workspace = Tensor::empty(runtime, Shape{static_cast<int64_t>(prepared.workspace)}, DType::u8,
                              Tag::workspace, "cuBLASLt");
  }
  if (stream.dry()) return CUBLAS_STATUS_SUCCESS;
  const float one = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  const auto layout = [](const PreparedGemm::Owned& owned) { return of<cublasLtMatrixLayout_t>(owned); };
  return cublaslt_library().multiply(
      handle_, of<cublasLtMatmulDesc_t>(prepared.description), &one, args.b.raw(), layout(prepared.first),
      args.a.raw(), layout(prepared.second), &beta, c.raw(), layout(prepared.result), c.raw(),
      layout(prepared.result), &prepared.algorithm, workspace.defined() ? workspace.raw() : nullptr,
      prepared.workspace, static_cast<cudaStream_t>(stream.native()));
}

/// Empty if the library has none.
std::vector<cublasLtMatmulHeuristicResult_t> CublasLt::candidates(const PreparedGemm& prepared,
                                                                  const Gemm& args) const {
  cublasLtMatmulPreference_t made = nullptr;
  require(cublaslt_library().create_preference(&made), "cublasLtMatmulPreferenceCreate");
  const std::shared_ptr<void> preference(made, [](void* owned) {
    cublaslt_library().destroy_preference(static_cast<cublasLtMatmulPreference_t>(owned));
  });
  const auto set_preference = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    require(cublaslt_library().set_preference(made, attribute, &value, sizeof value),
            "cublasLtMatmulPreferenceSetAttribute");
  };
  set_preference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMaxWorkspaceBytes);
  // Split-K reduces in f32 workspace; in place, its partial sums would be rounded to a 16-bit result's type.
  set_preference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                 uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(args.b));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(args.a));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(args.c));
  set_preference(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                 std::min(alignment_of(args.c), alignment_of(args.bias)));
  std::vector<cublasLtMatmulHeuristicResult_t> found(kCandidates);
  int count = 0;
  const auto layout = [](const PreparedGemm::Owned& owned) { return of<cublasLtMatrixLayout_t>(owned); };
  const cublasStatus_t status =
      cublaslt_library().candidates(handle_, of<cublasLtMatmulDesc_t>(prepared.description),
                                    layout(prepared.first), layout(prepared.second), layout(prepared.result),
                                    layout(prepared.result), made, kCandidates, found.data(), &count);
  if (declined(status)) return {};
  require(status, "cublasLtMatmulAlgoGetHeuristic for " + name_of(args, sizes_of(args)));
  found.resize(static_cast<size_t>(count));
  return found;
}

/// Time of kTimedRuns calls; infinite if the algorithm fails. The first call is not timed: it loads the
/// kernel.
double CublasLt::milliseconds(const PreparedGemm& prepared, const Gemm& args, const Tensor& c,
                              Runtime& runtime, const Stream& stream) const {
  const auto event = [this] {
    return std::shared_ptr<void>(gpu::create_event(device_, true), gpu::destroy_event);
  };
  const auto from = event(), to = event();
  if (multiply(prepared, args, c, runtime, stream) != CUBLAS_STATUS_SUCCESS)
    return std::numeric_limits<double>::infinity();
  gpu::record(from.get(), stream.native());
  for (int i = 0; i < kTimedRuns; ++i) multiply(prepared, args, c, runtime, stream);
  gpu::record(to.get(), stream.native());
  stream.synchronize();
  return gpu::milliseconds(from.get(), to.get());
}

/// Takes the algorithm from the choices on disk: the words of cublasLtMatmulAlgo_t and the workspace size as
/// hexadecimal text. False if there is none, or if this library or device does not accept it.
bool CublasLt::restore_choice(PreparedGemm& prepared, const std::string& name) const {
  const std::string* text = choices_.find(name);
  if (text == nullptr) return false;
  std::vector<uint64_t> words;
  const char* at = text->c_str();
  while (*at != '\0') {
    char* end = nullptr;
    words.push_back(std::strtoull(at, &end, 16));
    if (end == at) return false;
    at = end;
  }
  constexpr size_t kWords = std::size(decltype(prepared.algorithm.data){});
  if (words.size() != kWords + 1 || words[kWords] > kMaxWorkspaceBytes) return false;
  PreparedGemm restored = prepared;
  std::copy_n(words.begin(), kWords, restored.algorithm.data);
  restored.workspace = words[kWords];
  restored.has_algorithm = true;
  cublasLtMatmulHeuristicResult_t result{};
  const auto layout = [](const PreparedGemm::Owned& owned) { return of<cublasLtMatrixLayout_t>(owned); };
  if (cublaslt_library().check(handle_, of<cublasLtMatmulDesc_t>(prepared.description),
                               layout(prepared.first), layout(prepared.second), layout(prepared.result),
                               layout(prepared.result), &restored.algorithm,
                               &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > restored.workspace) {
    return false;
  }
  prepared = restored;
  return true;
}

/// The heuristic's best algorithm or, with autotune, the fastest of its candidates, which is saved on disk.
/// Never measures in a dry run (no work may run) or while capturing (the calls would be recorded).
void CublasLt::choose_algorithm(PreparedGemm& prepared, const Gemm& args, const std::string& name,
                                Runtime& runtime, const Stream& stream) {
  const auto found = candidates(prepared, args);
  if (found.empty()) {
    if (!args.bias.defined() && first_without_algorithm_.empty())
      first_without_algorithm_ = name_of(args, sizes_of(args));
    return;
  }
  prepared.has_algorithm = true;
  prepared.algorithm = found.front().algo;
  prepared.workspace = found.front().workspaceSize;
  if (!runtime.autotune() || stream.dry() || gpu::capturing(stream.native())) return;
  // Measured into workspace: repeated runs would accumulate into c.
  const Tensor c = Tensor::empty(runtime, args.c.shape(), args.c.dtype(), Tag::workspace, "gemm tuning");
  double best = std::numeric_limits<double>::infinity();
  PreparedGemm tried = prepared;
  for (const auto& candidate : found) {
    tried.algorithm = candidate.algo;
    tried.workspace = candidate.workspaceSize;
    const double time = milliseconds(tried, args, c, runtime, stream);
    if (time >= best) continue;
    best = time;
    prepared.algorithm = tried.algorithm;
    prepared.workspace = tried.workspace;
  }
  std::string text;
  for (const uint64_t word : prepared.algorithm.data) text += fmt::format("{:x} ", word);
  choices_.add(name, text + fmt::format("{:x}", prepared.workspace));
}

PreparedGemm& CublasLt::prepared_for(const Gemm& args, Runtime& runtime, const Stream& stream) {
  const std::string name = name_of(args, sizes_of(args));
  const auto known = prepared_.find(name);
  if (known != prepared_.end()) return known->second;
  // Reached with hundreds of mesh sizes; preparing a call again costs microseconds.
  if (prepared_.size() >= kMaxCachedGemms) prepared_.clear();
  PreparedGemm prepared = describe_gemm(args, runtime.tf32());
  const std::string group = name_of(args, tuning_class_of(args)) + (runtime.tf32() ? " tf32" : "");
  if (!restore_choice(prepared, group)) choose_algorithm(prepared, args, group, runtime, stream);
  return prepared_.emplace(name, std::move(prepared)).first->second;
}

}  // namespace

void gemm(const Gemm& args, Runtime& runtime, const Stream& stream) {
  if (has_no_products(args)) return;
  if (stream.dry() && gpu::devices().empty()) return count_gemm_workspace(runtime);
  std::shared_ptr<void>& slot = runtime.gpu_libraries();
  if (slot == nullptr) slot = std::make_shared<CublasLt>(runtime);
  static_cast<CublasLt*>(slot.get())->run(args, runtime, stream);
}

}  // namespace meshgrad::cuda
