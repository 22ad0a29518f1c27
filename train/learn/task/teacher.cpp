// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/span.h>
#include <meshgrad/train/learn/task/teacher.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace meshgrad {
namespace {

/// What is normalised, and the names of the tensors that convert it: a diagonal matrix and a shift.
struct Conversion {
  Normalizer Normalizers::*values;
  std::string_view scale, shift;
};
constexpr Conversion kConversions[] = {{&Normalizers::nodes, "teacher.nodes.scale", "teacher.nodes.shift"},
                                       {&Normalizers::edges, "teacher.edges.scale", "teacher.edges.shift"},
                                       {&Normalizers::world, "teacher.world.scale", "teacher.world.shift"},
                                       {&Normalizers::targets, "teacher.scale", "teacher.shift"}};
constexpr size_t kNodes = 0, kEdges = 1, kWorld = 2, kTargets = 3;
constexpr std::string_view kCachedPredictions = "teacher";

bool same_units(const Normalizer& a, const Normalizer& b) {
  for (size_t c = 0; c < a.width(); ++c)
    if (a.mean(c) != b.mean(c) || a.standard_deviation(c) != b.standard_deviation(c)) return false;
  return true;
}

}  // namespace

Teacher::Teacher(Model model, const ModelSizes& sizes, Normalizers normalizers, const DistillConfig& config,
                 std::string hash, const Normalizers* student)
    : model_(std::move(model)),
      rows_(sizes.pool ? TensorRows::graphs : TensorRows::nodes),
      outputs_(sizes.outputs),
      normalizers_(std::move(normalizers)),
      config_(config),
      hash_(std::move(hash)) {
  for (size_t i = 0; i < converts_.size(); ++i) {
    const Normalizer& own = normalizers_.*kConversions[i].values;
    converts_[i] = own.width() > 0 && (i == kTargets || !is_cached()) &&
                   (student == nullptr || !same_units(own, student->*kConversions[i].values));
  }
}

Teacher Teacher::reading(std::shared_ptr<const TeacherCache> cache) const {
  Teacher same = *this;
  same.cache_ = std::move(cache);
  return same;
}

int64_t Teacher::bytes(Device device) const {
  int64_t bytes = 0;
  for (const Tensor& arena : {parameters().values(), parameters().storage()})
    if (arena.defined() && arena.device().kind == device.kind)
      bytes += (arena.elements() - parameters().table_elements()) * size_of(arena.dtype());
  return bytes;
}

void Teacher::add_to(BatchLayout& layout) const {
  const BatchShape& shape = layout.shape();
  const int64_t rows = rows_ == TensorRows::graphs ? shape.graphs : shape.nodes;
  if (is_cached()) layout.add(kCachedPredictions, {rows, outputs_}, layout.dtype(), rows_);
  for (size_t i = 0; i < converts_.size(); ++i) {
    if (!converts_[i]) continue;
    const auto width = static_cast<int64_t>((normalizers_.*kConversions[i].values).width());
    layout.add(kConversions[i].scale, {width, width}, layout.dtype());
    layout.add(kConversions[i].shift, {width}, accumulator_of(layout.dtype()));
  }
}

void Teacher::write(const Batch& batch, std::string_view split, const std::vector<Sample>& samples,
                    const Normalizers& student) const {
  write_conversions(batch, student);
  if (is_cached()) write_predictions(batch, split, samples);
}

void Teacher::write_predictions(const Batch& batch, std::string_view split,
                                const std::vector<Sample>& samples) const {
  const Tensor& predictions = batch.tensor(kCachedPredictions);
  auto* to = static_cast<std::byte*>(predictions.raw());
  std::byte* const end = to + predictions.bytes();
  if (cache_ != nullptr && split == cache_->split()) {
    for (const Sample& sample : samples) to = std::ranges::copy(cache_->rows(sample), to).out;
    cache_->check_read();
  }
  std::fill(to, end, std::byte());
}

void Teacher::write_conversions(const Batch& batch, const Normalizers& student) const {
  for (size_t i = 0; i < converts_.size(); ++i) {
    if (!converts_[i]) continue;
    const Normalizer& own = normalizers_.*kConversions[i].values;
    const Normalizer& other = student.*kConversions[i].values;
    const Normalizer& from = i == kTargets ? own : other;
    const Normalizer& to = i == kTargets ? other : own;
    const Tensor &scale = batch.tensor(kConversions[i].scale), &shift = batch.tensor(kConversions[i].shift);
    dispatch_cpu_storage(scale.dtype(), [&]<class T>() {
      std::fill_n(scale.data<T>(), scale.elements(), T());
      for (size_t c = 0; c < own.width(); ++c) {
        const double unit = to.standard_deviation(c);
        scale.data<T>()[c * own.width() + c] =
            T(static_cast<Accumulator<T>>(from.standard_deviation(c) / unit));
        shift.data<Accumulator<T>>()[c] = static_cast<Accumulator<T>>((from.mean(c) - to.mean(c)) / unit);
      }
    });
  }
}

Variable Teacher::converted(Tape& tape, const Variable& x, const Batch& batch, size_t which) const {
  if (!converts_[which]) return x;
  return ops::linear(tape, x, {batch.tensor(kConversions[which].scale), {}},
                     {batch.tensor(kConversions[which].shift), {}});
}

/// In its own units.
Variable Teacher::run(Tape& tape, const Batch& batch) const {
  if (is_cached()) return Variable(batch.tensor(kCachedPredictions), false);
  Values inputs = input_values(tape, batch.graph);
  inputs.front() = converted(tape, inputs.front(), batch, kNodes);
  for (size_t set = 0; set < batch.graph.edge_sets.size(); ++set)
    inputs[set + 1] = converted(tape, inputs[set + 1], batch,
                                batch.graph.edge_sets[set].name == kWorldEdges ? kWorld : kEdges);
  Runtime& runtime = tape.runtime();
  if (parameters().values().device().kind == runtime.device().kind)
    return forward(model_, tape, batch.graph, inputs).front();
  const Model copied{parameters().copied(runtime), model_.stages};
  return forward(copied, tape, batch.graph, inputs).front();
}

TeacherOutput Teacher::predict(Runtime& runtime, const Batch& batch) const {
  const MemoryScope scope(runtime.allocator(), "teacher");
  const Span span("teacher");
  Tape tape(runtime, Tape::Mode::evaluate);
  Variable given = converted(tape, run(tape, batch), batch, kTargets);
  const bool fields = normalizers_.targets.width() > 0;
  if (fields && given.value().dtype() != accumulator_of(given.value().dtype()))
    given = ops::accumulate_error(tape, {}, given, {}, batch.tensor("mask"));
  return {given.value(), config_.alpha, config_.temperature};
}

Variable field_loss(Tape& tape, const Variable& prediction, const Batch& batch, const LossForm& form,
                    const TeacherOutput& teacher) {
  const Tensor &target = batch.tensor("target"), &mask = batch.tensor("mask");
  if (!teacher.values.defined()) return ops::masked_loss(tape, prediction, target, mask, form).sum;
  LossForm of_data = form, of_teacher = form;
  of_data.factor *= 1.0 - teacher.share;
  of_teacher.factor *= teacher.share;
  const Variable sum = ops::masked_loss(tape, prediction, target, mask, of_data).sum;
  const Variable error = ops::accumulate_error(tape, {}, prediction, teacher.values, mask);
  return ops::masked_loss(tape, sum, {error}, mask, of_teacher).sum;
}

}  // namespace meshgrad
