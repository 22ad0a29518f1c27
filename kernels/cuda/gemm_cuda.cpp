// SPDX-License-Identifier: Apache-2.0
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <meshgrad/engine/gpu.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/kernels/cuda/gemm.h>
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

constexpr size_t kMostWorkspace = size_t{32} << 20;  // what NVIDIA recommends for Hopper
constexpr int kCandidates = 8;
constexpr size_t kMostPlans = 512;
constexpr int kTimedRuns = 5;

/// The functions of libcublasLt that are used here.
struct Library {
  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_description = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_description = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) describe = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) prefer = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) candidates = nullptr;
  decltype(&cublasLtMatmulAlgoCheck) check = nullptr;
  decltype(&cublasLtMatmul) multiply = nullptr;
};

Library load_library() {
  void* file = nullptr;
  for (const char* name : {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13"}) {
    if (file == nullptr) file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (file == nullptr) {
    throw device_error("gemm", "libcublasLt.so.13", dlerror(),
                       "install cuBLAS of CUDA 13, or put its folder on LD_LIBRARY_PATH");
  }
  Library library;
  const auto load = [&]<class Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(file, name));
    if (function == nullptr)
      throw device_error("gemm", std::string(name) + " in libcublasLt", "none", "install cuBLAS of CUDA 13");
  };
  load(library.version, "cublasLtGetVersion");
  load(library.create, "cublasLtCreate");
  load(library.destroy, "cublasLtDestroy");
  load(library.create_description, "cublasLtMatmulDescCreate");
  load(library.destroy_description, "cublasLtMatmulDescDestroy");
  load(library.describe, "cublasLtMatmulDescSetAttribute");
  load(library.create_layout, "cublasLtMatrixLayoutCreate");
  load(library.destroy_layout, "cublasLtMatrixLayoutDestroy");
  load(library.create_preference, "cublasLtMatmulPreferenceCreate");
  load(library.destroy_preference, "cublasLtMatmulPreferenceDestroy");
  load(library.prefer, "cublasLtMatmulPreferenceSetAttribute");
  load(library.candidates, "cublasLtMatmulAlgoGetHeuristic");
  load(library.check, "cublasLtMatmulAlgoCheck");
  load(library.multiply, "cublasLtMatmul");
  return library;
}

/// Loaded once a process, as shared libraries are.
const Library& library() {
  static const Library loaded = load_library();
  return loaded;
}

void require(cublasStatus_t status, std::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw device_error("gemm", fmt::format("{} to succeed", call),
                     fmt::format("cuBLAS status {}", static_cast<int>(status)),
                     "see that driver and cuBLAS are of CUDA 13");
}

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      check_internal(dtype == DType::f32, "a matrix product in f32, f16 or bf16");
      return CUDA_R_32F;
  }
}

/// The library sees column-major matrices, in which a row-major c = a b is c^T = b^T a^T: its first operand
/// is our b, its second our a, and nothing is moved.
struct Plan {
  using Owned = std::shared_ptr<void>;
  Owned description, first, second, result;
  cublasLtMatmulAlgo_t algorithm{};
  size_t workspace = 0;
};

Plan::Owned layout_of(const Tensor& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  require(library().create_layout(&layout, type_of(matrix.dtype()), static_cast<uint64_t>(matrix.width()),
                                  static_cast<uint64_t>(matrix.rows()), matrix.width()),
          "cublasLtMatrixLayoutCreate");
  return {layout, [](void* made) { library().destroy_layout(static_cast<cublasLtMatrixLayout_t>(made)); }};
}

template <class Handle>
Handle of(const Plan::Owned& owned) {
  return static_cast<Handle>(owned.get());
}

template <class Value>
void describe(const Plan& plan, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  require(library().describe(of<cublasLtMatmulDesc_t>(plan.description), attribute, &value, sizeof value),
          "cublasLtMatmulDescSetAttribute");
}

Plan describe_product(const Gemm& args) {
  Plan plan;
  cublasLtMatmulDesc_t description = nullptr;
  require(library().create_description(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
  plan.description = {description, [](void* made) {
                        library().destroy_description(static_cast<cublasLtMatmulDesc_t>(made));
                      }};
  describe(plan, CUBLASLT_MATMUL_DESC_TRANSA, args.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  describe(plan, CUBLASLT_MATMUL_DESC_TRANSB, args.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (args.bias.defined()) {
    describe(plan, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    describe(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(args.bias.raw()));
  }
  plan.first = layout_of(args.b);
  plan.second = layout_of(args.a);
  plan.result = layout_of(args.c);
  return plan;
}

uint32_t alignment_of(const Tensor& tensor) {
  if (!tensor.defined()) return 16;
  uint32_t alignment = 16;
  while (reinterpret_cast<uintptr_t>(tensor.raw()) % alignment != 0) alignment /= 2;
  return alignment;
}

std::string name_of(const Gemm& args, const GemmSizes& s) {
  return fmt::format("{}{} {}{} {}{}{} {}x{}x{} aligned {} {} {} {}", meshgrad::name_of(args.a.dtype()),
                     args.transpose_a ? "^T" : "", meshgrad::name_of(args.b.dtype()),
                     args.transpose_b ? "^T" : "", meshgrad::name_of(args.c.dtype()),
                     args.accumulate ? " added" : "", args.bias.defined() ? " bias" : "", s.m, s.n, s.k,
                     alignment_of(args.a), alignment_of(args.b), alignment_of(args.c),
                     alignment_of(args.bias));
}

/// Sizes that share a measured choice: meshes differ, and none of them is to be measured in the middle of a
/// run when one much like it has been.
GemmSizes class_of(const Gemm& args) {
  const auto rounded = [](auto size) {
    return static_cast<decltype(size)>(std::bit_ceil(static_cast<uint64_t>(size)));
  };
  GemmSizes s = sizes_of(args);
  s.m = rounded(s.m);
  s.k = rounded(s.k);
  return s;
}

/// What one Runtime keeps of the library.
class Products {
 public:
  explicit Products(const Runtime& runtime) : device_(runtime.device().index) {
    gpu::use(device_);
    require(library().create(&handle_), "cublasLtCreate");
    if (!runtime.autotune()) return;
    const std::string device = gpu::devices().at(static_cast<size_t>(device_)).name;
    choices_ =
        GemmChoices(gemm_choices_file(device), fmt::format("{}, cuBLASLt {}", device, library().version()));
    if (!choices_.problem().empty())
      runtime.log(LogLevel::warning, choices_.problem() + "; matrix products are measured anew");
  }
  ~Products() { library().destroy(handle_); }
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  void run(const Gemm& args, Runtime& runtime, const Stream& stream) {
    const std::lock_guard lock(mutex_);
    const Plan& plan = plan_for(args, runtime, stream);
    if (args.bias.defined())
      describe(plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(args.bias.raw()));
    require(multiply(plan, args, args.c, runtime, stream), "cublasLtMatmul");
    if (!stream.dry()) gpu::count_launch();
  }

 private:
  const Plan& plan_for(const Gemm& args, Runtime& runtime, const Stream& stream);
  std::vector<cublasLtMatmulHeuristicResult_t> candidates(const Plan& plan, const Gemm& args) const;
  void choose(Plan& plan, const Gemm& args, const std::string& name, Runtime& runtime, const Stream& stream);
  bool recall(Plan& plan, const std::string& name) const;
  double milliseconds(const Plan& plan, const Gemm& args, const Tensor& c, Runtime& runtime,
                      const Stream& stream) const;
  cublasStatus_t multiply(const Plan& plan, const Gemm& args, const Tensor& c, Runtime& runtime,
                          const Stream& stream) const;

  int device_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<std::string, Plan> plans_;
  GemmChoices choices_;
};

cublasStatus_t Products::multiply(const Plan& plan, const Gemm& args, const Tensor& c, Runtime& runtime,
                                  const Stream& stream) const {
  Tensor workspace;
  if (plan.workspace > 0) {
    workspace = Tensor::empty(runtime, Shape{static_cast<int64_t>(plan.workspace)}, DType::u8, Tag::workspace,
                              "cuBLASLt");
  }
  if (stream.dry()) return CUBLAS_STATUS_SUCCESS;
  const float one = 1.0f, beta = args.accumulate ? 1.0f : 0.0f;
  const auto layout = [](const Plan::Owned& owned) { return of<cublasLtMatrixLayout_t>(owned); };
  return library().multiply(handle_, of<cublasLtMatmulDesc_t>(plan.description), &one, args.b.raw(),
                            layout(plan.first), args.a.raw(), layout(plan.second), &beta, c.raw(),
                            layout(plan.result), c.raw(), layout(plan.result), &plan.algorithm,
                            workspace.defined() ? workspace.raw() : nullptr, plan.workspace,
                            static_cast<cudaStream_t>(stream.native()));
}

std::vector<cublasLtMatmulHeuristicResult_t> Products::candidates(const Plan& plan, const Gemm& args) const {
  cublasLtMatmulPreference_t made = nullptr;
  require(library().create_preference(&made), "cublasLtMatmulPreferenceCreate");
  const std::shared_ptr<void> preference(made, [](void* owned) {
    library().destroy_preference(static_cast<cublasLtMatmulPreference_t>(owned));
  });
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    require(library().prefer(made, attribute, &value, sizeof value), "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kMostWorkspace);
  // Partial sums in 16 bits would lose what f32 sums are for.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(args.b));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(args.a));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(args.c));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, std::min(alignment_of(args.c), alignment_of(args.bias)));
  std::vector<cublasLtMatmulHeuristicResult_t> found(kCandidates);
  int count = 0;
  const auto layout = [](const Plan::Owned& owned) { return of<cublasLtMatrixLayout_t>(owned); };
  require(library().candidates(handle_, of<cublasLtMatmulDesc_t>(plan.description), layout(plan.first),
                               layout(plan.second), layout(plan.result), layout(plan.result), made,
                               kCandidates, found.data(), &count),
          "cublasLtMatmulAlgoGetHeuristic for " + name_of(args, sizes_of(args)));
  check_internal(count > 0, "an algorithm for every matrix product");
  found.resize(static_cast<size_t>(count));
  return found;
}

double Products::milliseconds(const Plan& plan, const Gemm& args, const Tensor& c, Runtime& runtime,
                              const Stream& stream) const {
  const auto event = [] { return std::shared_ptr<void>(gpu::create_event(true), gpu::destroy_event); };
  const auto from = event(), to = event();
  if (multiply(plan, args, c, runtime, stream) != CUBLAS_STATUS_SUCCESS)
    return std::numeric_limits<double>::infinity();
  gpu::record(from.get(), stream.native());
  for (int i = 0; i < kTimedRuns; ++i) multiply(plan, args, c, runtime, stream);
  gpu::record(to.get(), stream.native());
  stream.synchronize();
  return gpu::milliseconds(from.get(), to.get());
}

/// A choice as text: the algorithm's words and its workspace, in hexadecimal.
bool Products::recall(Plan& plan, const std::string& name) const {
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
  constexpr size_t kWords = std::size(decltype(plan.algorithm.data){});
  if (words.size() != kWords + 1 || words[kWords] > kMostWorkspace) return false;
  Plan recalled = plan;
  std::copy_n(words.begin(), kWords, recalled.algorithm.data);
  recalled.workspace = words[kWords];
  cublasLtMatmulHeuristicResult_t result{};
  const auto layout = [](const Plan::Owned& owned) { return of<cublasLtMatrixLayout_t>(owned); };
  if (library().check(handle_, of<cublasLtMatmulDesc_t>(plan.description), layout(plan.first),
                      layout(plan.second), layout(plan.result), layout(plan.result), &recalled.algorithm,
                      &result) != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > recalled.workspace) {
    return false;
  }
  plan = recalled;
  return true;
}

void Products::choose(Plan& plan, const Gemm& args, const std::string& name, Runtime& runtime,
                      const Stream& stream) {
  const auto found = candidates(plan, args);
  plan.algorithm = found.front().algo;
  plan.workspace = found.front().workspaceSize;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  cudaStreamIsCapturing(static_cast<cudaStream_t>(stream.native()), &capture);
  if (!runtime.autotune() || stream.dry() || capture != cudaStreamCaptureStatusNone) return;
  // Into other memory: what is added to would change at every run.
  const Tensor c = Tensor::empty(runtime, args.c.shape(), args.c.dtype(), Tag::workspace, "measured product");
  double best = std::numeric_limits<double>::infinity();
  Plan tried = plan;
  for (const auto& candidate : found) {
    tried.algorithm = candidate.algo;
    tried.workspace = candidate.workspaceSize;
    const double time = milliseconds(tried, args, c, runtime, stream);
    if (time >= best) continue;
    best = time;
    plan.algorithm = tried.algorithm;
    plan.workspace = tried.workspace;
  }
  std::string text;
  for (const uint64_t word : plan.algorithm.data) text += fmt::format("{:x} ", word);
  choices_.add(name, text + fmt::format("{:x}", plan.workspace));
}

const Plan& Products::plan_for(const Gemm& args, Runtime& runtime, const Stream& stream) {
  const std::string name = name_of(args, sizes_of(args));
  const auto known = plans_.find(name);
  if (known != plans_.end()) return known->second;
  if (plans_.size() >= kMostPlans) plans_.clear();  // as many mesh sizes: a plan costs microseconds
  Plan plan = describe_product(args);
  const std::string group = name_of(args, class_of(args));
  if (!recall(plan, group)) choose(plan, args, group, runtime, stream);
  return plans_.emplace(name, std::move(plan)).first->second;
}

}  // namespace

void gemm(const Gemm& args, Runtime& runtime, const Stream& stream) {
  const GemmSizes sizes = sizes_of(args);
  if (sizes.m == 0 || sizes.n == 0) return;
  if (sizes.k == 0) {
    check_internal(args.accumulate, "a matrix product over something");
    return;
  }
  if (stream.dry() && gpu::devices().empty()) {  // nobody to ask: as much as a product may take
    Tensor::empty(runtime, Shape{static_cast<int64_t>(kMostWorkspace)}, DType::u8, Tag::workspace,
                  "cuBLASLt");
    return;
  }
  std::shared_ptr<void>& slot = runtime.gpu_libraries();
  if (slot == nullptr) slot = std::make_shared<Products>(runtime);
  static_cast<Products*>(slot.get())->run(args, runtime, stream);
}

}  // namespace meshgrad::cuda
