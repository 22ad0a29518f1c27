// SPDX-License-Identifier: Apache-2.0
// ParameterSet: all parameters of a model in one flat arena, in order of use, and their gradients in another.
// Both are f32 (f64 for checks). With storage in 16 bits a third arena holds the parameters rounded, from
// which kernels read the matrices; vectors (biases, norms) they read from the master weights.
#pragma once
#include <meshgrad/autograd/variable.h>

#include <string>
#include <utility>
#include <vector>

#pragma GCC visibility push(default)
namespace meshgrad {

enum class Initial : uint8_t {
  uniform_fan_in,  ///< uniform in +-1 / sqrt(fan_in), for weights and biases (PyTorch's default for linear
                   ///< layers)
  glorot,  ///< uniform in +-sqrt(6 / fan_in); fan_in is then the sum of both fans (Glorot, Bengio 2010)
  zero,
  half,  ///< 0.5
  one
};

/// One parameter. Matrices lie as [in, out]; files carry them as [out, in] (see to_file_order).
struct ParameterInfo {
  std::string name;  ///< as in files: "processor.3.edge_mlp.linear_0.weight"
  Shape shape;
  int64_t offset = 0;  ///< elements from the start of the arena
  Initial initial = Initial::zero;
  int64_t fan_in = 1;
  bool is_matrix() const { return shape.rank() == 2; }
};

class ParameterSet {
 public:
  /// Declares a parameter, before allocate(). Names are unique. Returns its index.
  size_t add(std::string name, const Shape& shape, Initial initial, int64_t fan_in);
  /// Says that what was added so far are tables of identifiers: their memory has Tag::embed. Before others
  /// are added; 0 parameters are none.
  void end_tables();
  int64_t table_elements() const { return tables_; }
  /// What shapes do not show, and weights are silently wrong without: "concat_order edge_sender_receiver,
  /// ...". Set by who makes the model; empty: unknown. Checkpoints are compared with it.
  const std::string& conventions() const { return conventions_; }
  void set_conventions(std::string text) { conventions_ = std::move(text); }

  /// Makes the arenas for storage in `dtype`, and sets initial values, a function of only (seed, name).
  void allocate(Runtime& runtime, DType dtype, uint64_t seed);

  /// Makes them without values and without gradients, to load weights into.
  void allocate_values(Runtime& runtime, DType dtype);

  /// The same in host memory that a GPU copies from, for copied().
  void allocate_pinned(Device device, DType dtype);
  /// The same parameters in arenas of Tag::activations on the runtime's device, for one use: copies of these,
  /// queued on its stream.
  ParameterSet copied(Runtime& runtime) const;

  /// Makes the gradients' arena, of zeros. allocate() makes it too.
  void allocate_gradients(Runtime& runtime);
  /// Frees it. Until it is allocated again, every weight is as if frozen.
  void release_gradients() { gradients_ = {}; }

  const std::vector<ParameterInfo>& parameters() const { return infos_; }
  /// Index of a name, or -1.
  int64_t find(std::string_view name) const;
  /// The master weight.
  Tensor value(size_t index) const { return slice(values_, index); }
  Tensor gradient(size_t index) const { return gradients_.defined() ? slice(gradients_, index) : Tensor(); }
  /// As ops take it.
  Weight weight(size_t index) const {
    const bool rounded = storage_.defined() && infos_[index].is_matrix();
    return {slice(rounded ? storage_ : values_, index), gradient(index)};
  }
  /// Part of an arena that belongs to one parameter, in its shape.
  Tensor slice(const Tensor& arena, size_t index) const;
  /// The arenas: [arena_elements()], with gaps of zeros so that each parameter begins on a cache line.
  const Tensor& values() const { return values_; }
  const Tensor& gradients() const { return gradients_; }
  const Tensor& storage() const { return storage_; }  ///< undefined unless stored in 16 bits
  /// Writes an arena from one on the host, of the same dtype; of the master weights, also the 16-bit copies.
  void set(const Tensor& arena, const Tensor& host, const Stream& stream) const;
  int64_t arena_elements() const { return arena_; }
  /// Number of scalars that are trained.
  int64_t count() const;

 private:
  Tensor empty_arena(Runtime& runtime, DType dtype, std::string_view name) const;

  std::vector<ParameterInfo> infos_;
  std::string conventions_;
  int64_t arena_ = 0, tables_ = 0;  // elements; the tables are first
  Tensor values_, gradients_, storage_;
};

/// A parameter-shaped tensor on the host (value, gradient or moment) as files hold it: a matrix as [out, in].
/// The result is f64 or f32 like the input, on the host.
Tensor to_file_order(const ParameterInfo& info, const Tensor& tensor);
/// The inverse: fills `tensor` ([in, out], on the host) from a file's values ([out, in]), converting between
/// f32 and f64. Throws DataError naming the parameter when the shape differs.
void from_file_order(const ParameterInfo& info, const Tensor& file, const Tensor& tensor);

}  // namespace meshgrad
#pragma GCC visibility pop
