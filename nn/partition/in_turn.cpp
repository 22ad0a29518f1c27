// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/autograd/halo.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/nn/partition/in_turn.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace meshgrad {

/// Ghost rows are read where their owners' values lie. Their gradients are kept for the owners, who add them
/// when they compute the stage before.
class PartsInTurn::Exchange final : public HaloExchange {
 public:
  explicit Exchange(const std::vector<Part>& parts)
      : parts_(parts), received_(parts.size()), arriving_(parts.size()) {}

  /// The part that computes now, and the values of all parts that its stage is given.
  void enter(size_t part, const Level* before) {
    current_ = part;
    before_ = before;
    used_ = false;
  }
  /// All parts have walked back through a stage: what arrived belongs to the stage before.
  void next_stage() { received_ = std::exchange(arriving_, std::vector<Tensor>(parts_.size())); }
  /// Gradients of the rows that a part sent, in host memory; undefined: none.
  const Tensor& received(size_t part) const { return received_[part]; }

  std::unique_ptr<Request> forward(const Halo&, const Tensor& sent, const Tensor& ghosts) override {
    check_stage(sent);
    const Part& part = parts_[current_];
    int64_t row = 0;
    for (const Neighbour& neighbour : part.neighbours) {
      if (neighbour.ghosts == 0) continue;
      const auto owner = static_cast<size_t>(neighbour.rank);
      copy_rows(nodes_of(owner), list_for(owner), ghosts.row_range(row, row + neighbour.ghosts));
      row += neighbour.ghosts;
    }
    return nullptr;
  }
  std::unique_ptr<Request> backward(const Halo&, const Tensor& d_ghosts, const Tensor& d_sent) override {
    int64_t row = 0;
    for (const Neighbour& neighbour : parts_[current_].neighbours) {
      if (neighbour.ghosts == 0) continue;
      const auto owner = static_cast<size_t>(neighbour.rank);
      const Part& other = parts_[owner];
      Tensor& list = arriving_[owner];
      if (!list.defined()) {
        list = host_tensor({static_cast<int64_t>(other.sent.size()), d_ghosts.width()}, d_ghosts.dtype());
      }
      const int64_t first = list_begin(owner);
      const Tensor place = list.row_range(first, first + neighbour.ghosts);
      std::memcpy(place.raw(), d_ghosts.row_range(row, row + neighbour.ghosts).raw(),
                  static_cast<size_t>(place.bytes()));
      row += neighbour.ghosts;
    }
    // Those that this part sent come when the others have computed.
    if (d_sent.bytes() > 0) std::memset(d_sent.raw(), 0, static_cast<size_t>(d_sent.bytes()));
    return nullptr;
  }

 private:
  const Tensor& nodes_of(size_t part) const { return (*before_)[part].front(); }
  /// Where the rows for the current part begin in the list of those that `owner` sends.
  int64_t list_begin(size_t owner) const {
    int64_t row = 0;
    for (const Neighbour& neighbour : parts_[owner].neighbours) {
      if (static_cast<size_t>(neighbour.rank) == current_) break;
      row += neighbour.sent;
    }
    return row;
  }
  std::span<const int32_t> list_for(size_t owner) const {
    const Part& other = parts_[owner];
    const auto to = std::find_if(other.neighbours.begin(), other.neighbours.end(),
                                 [&](const Neighbour& n) { return static_cast<size_t>(n.rank) == current_; });
    return std::span(other.sent)
        .subspan(static_cast<size_t>(list_begin(owner)), static_cast<size_t>(to->sent));
  }
  void check_stage(const Tensor& sent) {
    const bool second = std::exchange(used_, true);
    bool fits = before_ != nullptr && !second;
    const Part& part = parts_[current_];
    if (fits && !part.sent.empty()) {
      const Tensor& own = nodes_of(current_);
      fits = own.width() == sent.width() && own.dtype() == sent.dtype() &&
             std::memcmp(
                 static_cast<const char*>(own.raw()) + own.width() * size_of(own.dtype()) * part.sent.front(),
                 sent.raw(), static_cast<size_t>(own.width() * size_of(own.dtype()))) == 0;
    }
    if (fits) return;
    throw invalid_argument("parts in turn", "a stage that exchanges the node values it is given, once",
                           second ? "a second exchange" : "an exchange of values that the stage computed",
                           "divide the stage in two, each with one exchange of what it is given");
  }

  const std::vector<Part>& parts_;
  const Level* before_ = nullptr;
  size_t current_ = 0;
  bool used_ = false;
  std::vector<Tensor> received_, arriving_;
};

PartsInTurn::PartsInTurn(Runtime& runtime, const GraphBatch& whole, std::vector<Part> parts)
    : runtime_(runtime), parts_(std::move(parts)), exchange_(std::make_shared<Exchange>(parts_)) {
  for (size_t p = 0; p < parts_.size(); ++p) {
    check_internal(parts_[p].rank == static_cast<int32_t>(p), "parts in another order than their ranks");
    batches_.push_back(part_batch(runtime, whole, parts_[p], exchange_));
  }
}

PartsInTurn::~PartsInTurn() = default;

Tensor PartsInTurn::upload(const Tensor& host, std::string_view name) {
  const Tensor device = Tensor::empty(runtime_, host.shape(), host.dtype(), Tag::activations, name);
  copy(host, device, runtime_.stream());
  return device;
}

Tensor PartsInTurn::download(const Tensor& device) {
  const Tensor host = host_tensor(device.shape(), device.dtype());
  copy(device, host, runtime_.stream());
  return host;
}

void PartsInTurn::count(const Level& level, int64_t sign) {
  for (const Held& held : level)
    for (const Tensor& tensor : held) host_bytes_ += sign * (tensor.defined() ? tensor.bytes() : 0);
  most_host_bytes_ = std::max(most_host_bytes_, host_bytes_);
}

/// What a stage of a part is given; the first one the batch's features.
Values PartsInTurn::values_of(const Tape& tape, size_t part, const Level* before, bool need_gradient) {
  if (before == nullptr) return input_values(tape, batches_[part]);
  Values values;
  for (const Tensor& held : (*before)[part])
    values.push_back(held.defined() ? Variable(upload(held, "values"), need_gradient) : Variable());
  return values;
}

PartsInTurn::Held PartsInTurn::forward_part(const Model& model, int64_t stage, size_t part,
                                            const Level* before) {
  Tape tape(runtime_, Tape::Mode::evaluate);
  exchange_->enter(part, before);
  const Values after = run_stage(model, tape, batches_[part], stage, values_of(tape, part, before, false));
  Held held;
  for (const Variable& value : after) held.push_back(value ? download(value.value()) : Tensor());
  if (runtime_.stream().on_gpu()) runtime_.stream().synchronize();
  return held;
}

PartsInTurn::Level PartsInTurn::forward_stage(const Model& model, int64_t stage, const Level* before) {
  Level after;
  for (size_t part = 0; part < parts_.size(); ++part)
    after.push_back(forward_part(model, stage, part, before));
  count(after, 1);
  return after;
}

PartsInTurn::Level PartsInTurn::loss_gradients(const Level& predictions, const Loss& loss) {
  Level gradients;
  for (size_t part = 0; part < parts_.size(); ++part) {
    const Variable prediction(upload(predictions[part].front(), "prediction"), true);
    loss(static_cast<int64_t>(part), prediction);
    const Tensor& d_prediction = prediction.gradient();
    gradients.push_back({d_prediction.defined() ? download(d_prediction) : Tensor()});
  }
  if (runtime_.stream().on_gpu()) runtime_.stream().synchronize();
  count(gradients, 1);
  return gradients;
}

PartsInTurn::Held PartsInTurn::backward_part(const Model& model, int64_t stage, size_t part,
                                             const Level* before, const Held& gradients) {
  Tape tape(runtime_);
  exchange_->enter(part, before);
  const Values inputs = values_of(tape, part, before, true);
  const Values outputs = run_stage(model, tape, batches_[part], stage, inputs);
  Values reached;
  std::vector<Tensor> d_outputs;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i] || i >= gradients.size() || !gradients[i].defined()) continue;
    reached.push_back(outputs[i]);
    d_outputs.push_back(upload(gradients[i], "gradient"));
    const Tensor& received = exchange_->received(part);
    if (i == 0 && received.defined()) {
      add_sent_gradients(*batches_[part].halo, upload(received, "gradients of sent rows"), d_outputs.back(),
                         runtime_.stream());
    }
  }
  tape.backward(std::span(reached.begin(), reached.end()), std::move(d_outputs));
  Held held;
  for (const Variable& input : inputs)
    held.push_back(input && input.gradient().defined() ? download(input.gradient()) : Tensor());
  if (runtime_.stream().on_gpu()) runtime_.stream().synchronize();
  return held;
}

PartsInTurn::Level PartsInTurn::backward_stage(const Model& model, int64_t stage, const Level* before,
                                               const Level& gradients) {
  Level d_before;
  for (size_t part = 0; part < parts_.size(); ++part)
    d_before.push_back(backward_part(model, stage, part, before, gradients[part]));
  exchange_->next_stage();
  count(d_before, 1);
  return d_before;
}

void PartsInTurn::add_gradients(const Model& model, const Loss& loss) {
  const auto stages = static_cast<int64_t>(model.stages.size());
  std::vector<Level> values;  // after each stage
  for (int64_t stage = 0; stage < stages; ++stage)
    values.push_back(forward_stage(model, stage, stage > 0 ? &values.back() : nullptr));
  Level gradients = loss_gradients(values.back(), loss);
  for (int64_t stage = stages - 1; stage >= 0; --stage) {
    count(values.back(), -1);
    values.pop_back();
    const Level* const before = stage > 0 ? &values.back() : nullptr;
    Level d_before = backward_stage(model, stage, before, gradients);
    count(gradients, -1);
    gradients = std::move(d_before);
  }
  count(gradients, -1);
}

Tensor PartsInTurn::predict(const Model& model) {
  Level values;
  for (int64_t stage = 0; stage < static_cast<int64_t>(model.stages.size()); ++stage) {
    Level after = forward_stage(model, stage, stage > 0 ? &values : nullptr);
    count(values, -1);
    values = std::move(after);
  }
  int64_t nodes = 0;
  for (const Part& part : parts_) nodes += part.owned;
  const Tensor& like = values.front().front();
  const Tensor prediction = host_tensor({nodes, like.width()}, like.dtype());
  for (size_t part = 0; part < parts_.size(); ++part)
    place_rows(values[part].front(), parts_[part], prediction);
  count(values, -1);
  return prediction;
}

}  // namespace meshgrad
