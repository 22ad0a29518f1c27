// SPDX-License-Identifier: Apache-2.0
#include "gradcheck.h"
#include <meshgrad/autograd/halo.h>

#include <cmath>
#include <memory>

#include "gradcheck_samples.h"

namespace meshgrad {
namespace {

std::shared_ptr<Graph> sample_graph(Runtime& runtime) {
  // Node 3 receives nothing, node 4 sends nothing, node 0 is connected to itself and receives most.
  const std::vector<int32_t> senders{1, 2, 3, 0, 1, 0, 2, 5, 5};
  const std::vector<int32_t> receivers{0, 0, 0, 0, 2, 4, 4, 1, 5};
  return std::make_shared<Graph>(build_graph(runtime, 6, senders, receivers));
}

MlpParameters sample_mlp(Source& source, const std::vector<int64_t>& inputs, Activation activation,
                         Norm norm) {
  constexpr int64_t kHidden = 5;
  constexpr int64_t kOut = 4;
  MlpParameters p;
  for (const int64_t in : inputs) p.first.push_back(source.weight({in, kHidden}));
  p.first_bias = source.weight({kHidden});
  p.weights = {source.weight({kHidden, kHidden}), source.weight({kHidden, kOut})};
  p.biases = {source.weight({kHidden}), source.weight({kOut})};
  p.activation = activation;
  p.norm = norm;
  if (norm != Norm::none) p.gain = source.weight({kOut});
  if (norm == Norm::layer) p.norm_bias = source.weight({kOut});
  return p;
}

std::vector<Weight> weights_of(const MlpParameters& p) {
  std::vector<Weight> all = p.first;
  all.push_back(p.first_bias);
  all.insert(all.end(), p.weights.begin(), p.weights.end());
  all.insert(all.end(), p.biases.begin(), p.biases.end());
  if (p.gain.value.defined()) all.push_back(p.gain);
  if (p.norm_bias.value.defined()) all.push_back(p.norm_bias);
  return all;
}

void add_basic(Runtime& runtime, Source& source, std::vector<OpSample>& list) {
  const Variable x = source.leaf({7, 4});
  const Variable z = source.leaf({7, 4});
  const Weight w = source.weight({4, 3});
  const Weight b = source.weight({3});
  list.push_back(
      {"linear", "bias", {x}, {w, b}, [=](Tape& t) { return std::vector{ops::linear(t, x, w, b)}; }});
  for (const Activation kind : {Activation::relu, Activation::silu, Activation::gelu, Activation::tanh,
                                Activation::elu, Activation::leaky_relu}) {
    // Used twice, so that the second gradient is added to the first.
    list.push_back({"activation", std::string(name_of(kind)), {x}, {}, [=](Tape& t) {
                      return std::vector{
                          ops::add(t, ops::activation(t, x, kind), ops::activation(t, x, kind))};
                    }});
  }
  const Weight gain = source.weight({4});
  const Weight shift = source.weight({4});
  list.push_back({"norm", "layer", {x}, {gain, shift}, [=](Tape& t) {
                    return std::vector{ops::norm(t, x, Norm::layer, gain, shift, 1e-5)};
                  }});
  list.push_back({"norm", "rms", {x}, {gain}, [=](Tape& t) {
                    return std::vector{ops::norm(t, x, Norm::rms, gain, {}, 1e-5)};
                  }});
  list.push_back({"add", "", {x, z}, {}, [=](Tape& t) {
                    return std::vector{ops::add(t, x, z), ops::add(t, z, z)};
                  }});
  const auto graph = sample_graph(runtime);
  const Variable nodes = source.leaf({6, 3});
  const Variable edges = source.leaf({9, 2});
  list.push_back({"concat", "sender, receiver, edge", {nodes, edges}, {}, [=](Tape& t) {
                    return std::vector{ops::concat(t,
                                                   {{nodes, ConcatPart::Rows::sender},
                                                    {nodes, ConcatPart::Rows::receiver},
                                                    {edges, ConcatPart::Rows::own}},
                                                   graph.get())};
                  }});
  list.push_back({"segment_sum", "", {edges}, {}, [=](Tape& t) {
                    return std::vector{ops::segment_sum(t, edges, *graph)};
                  }});
}

/// Ops that are used twice, so that the second gradient is added to the first.
void add_graphs(Runtime& runtime, Source& source, std::vector<OpSample>& list) {
  const auto graph = sample_graph(runtime);
  const Variable nodes = source.leaf({6, 3});
  const std::vector<float> values{0.5f, -1.25f, 2.0f, 0.0f, 1.0f, -0.75f, 3.0f, 0.25f, -2.0f};
  const Tensor weights = Tensor::from<float>(runtime, values, Shape{9}, Tag::data, "weights");
  list.push_back({"weighted_sum", "", {nodes}, {}, [=](Tape& t) {
                    return std::vector{ops::weighted_sum(t, nodes, *graph, weights),
                                       ops::weighted_sum(t, nodes, *graph, weights)};
                  }});
  const std::vector<int64_t> keys{7, int64_t{1} << 40, -3, 12, 13, 2};
  const DropoutKey drop{.seed = 5,
                        .op = 2,
                        .rate = 0.4,
                        .row_keys = Tensor::from<int64_t>(runtime, keys, Shape{6}, Tag::data, "row keys")};
  list.push_back({"dropout", "", {nodes}, {}, [=](Tape& t) {
                    return std::vector{ops::dropout(t, nodes, drop), ops::dropout(t, nodes, drop)};
                  }});
  const Variable others = source.leaf({6, 3});
  list.push_back({"maximum", "", {nodes, others}, {}, [=](Tape& t) {
                    return std::vector{ops::maximum(t, nodes, others), ops::maximum(t, others, nodes)};
                  }});
  const Weight bias = source.weight({3});
  list.push_back({"add_bias", "", {nodes}, {bias}, [=](Tape& t) {
                    return std::vector{ops::add_bias(t, nodes, bias), ops::add_bias(t, nodes, bias)};
                  }});
  list.push_back({"mean_of_heads", "", {nodes}, {}, [=](Tape& t) {
                    return std::vector{ops::mean_of_heads(t, nodes, 3), ops::mean_of_heads(t, nodes, 3)};
                  }});
  // Identifier 1 has no row, and 2 most.
  const std::vector<int32_t> identifiers{2, 0, 2, 3, 2}, rows{0, 1, 2, 3, 4};
  const auto named = std::make_shared<Graph>(build_bipartite_graph(runtime, 4, 5, identifiers, rows));
  const Weight table = source.weight({4, 3});
  list.push_back({"embedding", "", {}, {table}, [=](Tape& t) {
                    return std::vector{ops::embedding(t, table, *named), ops::embedding(t, table, *named)};
                  }});
  // A graph without nodes, and one of a single node.
  const std::vector<int32_t> begins{0, 3, 3, 4, 6};
  const Tensor starts = Tensor::from<int32_t>(runtime, begins, Shape{5}, Tag::data, "graph starts");
  for (const GraphPool pool : {GraphPool::sum, GraphPool::mean, GraphPool::max}) {
    list.push_back({"graph_pool", std::string(name_of(pool)), {nodes}, {}, [=](Tape& t) {
                      return std::vector{ops::graph_pool(t, nodes, starts, pool),
                                         ops::graph_pool(t, nodes, starts, pool)};
                    }});
    const Variable edges = source.leaf({9, 3});
    list.push_back(
        {"edge_pool", std::string(name_of(pool)), {edges}, {}, [=](Tape& t) {
           return std::vector{ops::edge_pool(t, edges, *graph, pool), ops::edge_pool(t, edges, *graph, pool)};
         }});
  }
}

void add_fused(Runtime& runtime, Source& source, std::vector<OpSample>& list) {
  const auto graph = sample_graph(runtime);
  for (const bool keep : {true, false}) {
    for (const Norm kind : {Norm::none, Norm::layer, Norm::rms}) {
      const std::string variant = std::string(name_of(kind)) + (keep ? ", kept" : ", recomputed");
      const Variable x = source.leaf({7, 4});
      const Variable z = source.leaf({7, 3});
      const MlpParameters p = sample_mlp(source, {4, 3}, Activation::silu, kind);
      list.push_back({"mlp", variant, {x, z}, weights_of(p), [=](Tape& t) {
                        return std::vector{ops::mlp(t, {x, z}, p, x, keep)};
                      }});
      const Variable nodes = source.leaf({6, 3});
      const Variable edges = source.leaf({9, 4});
      const MlpParameters q = sample_mlp(source, {3, 3, 4}, Activation::gelu, kind);
      for (const bool after : {false, true}) {
        list.push_back({"edge_update",
                        variant + (after ? ", after residual" : ""),
                        {nodes, edges},
                        weights_of(q),
                        [=](Tape& t) {
                          const EdgeUpdate u =
                              ops::edge_update(t, *graph, nodes, edges, q,
                                               {.aggregate_after_residual = after, .keep_hidden = keep});
                          return std::vector{u.edges, u.aggregate};
                        }});
      }
      const Variable none(Tensor::zeros(runtime, {9, 0}, nodes.value().dtype(), Tag::data), false);
      const MlpParameters first = sample_mlp(source, {3, 3, 0}, Activation::tanh, kind);
      list.push_back(
          {"edge_update", variant + ", edges without features", {nodes}, weights_of(first), [=](Tape& t) {
             const EdgeUpdate u = ops::edge_update(t, *graph, nodes, none, first, {.keep_hidden = keep});
             return std::vector{u.edges, u.aggregate};
           }});
      list.push_back(
          {"edge_update", variant + ", aggregate only", {nodes, edges}, weights_of(q), [=](Tape& t) {
             return std::vector{ops::edge_update(t, *graph, nodes, edges, q,
                                                 {.keep_hidden = keep, .edges_out_needed = false})
                                    .aggregate};
           }});
    }
  }
}

void add_attention(Runtime& runtime, Source& source, std::vector<OpSample>& list) {
  const auto graph = sample_graph(runtime);
  const Variable values = source.leaf({6, 6}), edge_scores = source.leaf({9, 2});
  const Weight by_sender = source.weight({6}), by_receiver = source.weight({6});
  for (const bool self : {false, true}) {
    // Head scores are used twice, so that the second gradient is added to the first.
    list.push_back({"head_scores",
                    self ? "gat, self edges, dropout" : "gat, edge scores",
                    self ? std::vector{values} : std::vector{values, edge_scores},
                    {by_sender, by_receiver},
                    [=](Tape& t) {
                      AttentionInputs in{.heads = 2, .self_edges = self, .values = values};
                      in.sender_scores = ops::head_scores(t, values, by_sender, 2);
                      in.receiver_scores = ops::head_scores(t, values, by_receiver, 2);
                      if (self) in.dropout = {.seed = 4, .rate = 0.4};
                      if (!self) in.edge_scores = edge_scores;
                      return std::vector{ops::edge_attention(t, *graph, in),
                                         ops::edge_attention(t, *graph, in), in.sender_scores};
                    }});
  }
  const Variable keys = source.leaf({6, 6}), queries = source.leaf({6, 6}), small = source.leaf({6, 6});
  const Weight weight = source.weight({6});
  // Values of few digits meet leaky's kink at 0: not when one is far smaller than the other.
  dispatch_cpu_storage(small.value().dtype(), [&]<class S>() {
    for (S& value : small.value().values<S>())
      value = S(static_cast<Accumulator<S>>(value) * Accumulator<S>(0x1p-8));
  });
  for (const bool own_keys : {false, true}) {
    for (const AttentionScore score : {AttentionScore::gatv2, AttentionScore::dot}) {
      const Variable own = score == AttentionScore::gatv2 ? small : queries;
      AttentionInputs in{
          .score = score, .heads = 3, .self_edges = !own_keys, .values = values, .queries = own};
      if (own_keys) in.keys = keys;
      if (own_keys) in.dropout = {.seed = 5, .op = 1, .rate = 0.25};
      std::vector<Variable> leaves{values, own};
      if (own_keys) leaves.push_back(keys);
      std::vector<Weight> weights;
      if (score == AttentionScore::gatv2) weights.push_back(in.weight = weight);
      list.push_back(
          {"edge_attention",
           std::string(score == AttentionScore::dot ? "dot" : "gatv2") +
               (own_keys ? ", keys, dropout" : ", self edges"),
           leaves, weights, [=](Tape& t) {
             return std::vector{ops::edge_attention(t, *graph, in), ops::edge_attention(t, *graph, in)};
           }});
    }
  }
  const Variable scores = source.leaf({9, 3});
  list.push_back({"edge_attention", "dot, edge scores", {values, queries, scores}, {}, [=](Tape& t) {
                    return std::vector{ops::edge_attention(t, *graph,
                                                           {.score = AttentionScore::dot,
                                                            .heads = 3,
                                                            .values = values,
                                                            .queries = queries,
                                                            .edge_scores = scores})};
                  }});
}

void add_loss(Runtime& runtime, Source& source, std::vector<OpSample>& list) {
  const Variable prediction = source.leaf({5, 2});
  const Tensor target = source.target({5, 2});
  const std::vector<uint8_t> flags{1, 0, 1, 1, 0};
  const Tensor mask = Tensor::from<uint8_t>(runtime, flags, Shape{5}, Tag::data, "mask");
  list.push_back({"masked_loss", "", {prediction}, {}, [=](Tape& t) {
                    return std::vector{ops::masked_loss(t, prediction, target, mask).sum};
                  }});
  LossForm form{.kind = LossKind::huber,
                .delta = 0.7,
                .factor = 0.3,
                .row_weights = source.target({5}),
                .column_weights = source.target({2})};
  list.push_back({"masked_loss", "huber, weighted", {prediction}, {}, [=](Tape& t) {
                    return std::vector{ops::masked_loss(t, prediction, target, mask, form).sum};
                  }});
  form.kind = LossKind::absolute;
  list.push_back({"masked_loss", "absolute, and a penalty", {prediction}, {}, [=](Tape& t) {
                    const LossSum errors = ops::masked_loss(t, prediction, target, mask, form);
                    return std::vector{
                        ops::masked_loss(t, errors.sum, {prediction}, mask, {.factor = 0.1}).sum};
                  }});
  const Variable logits = source.leaf({5, 3});
  const Tensor labels =
      Tensor::from<int32_t>(runtime, std::vector<int32_t>{2, -7, 0, 0, 1}, Shape{5}, Tag::data, "labels");
  list.push_back({"class_loss", "", {logits}, {}, [=](Tape& t) {
                    return std::vector{ops::class_loss(t, logits, labels, mask).sum};
                  }});
  const Tensor w = Tensor::from<float>(runtime, std::vector{0.5F, 3.0F, 1.25F}, {3}, Tag::data, "weights");
  const Tensor by = source.leaf({5, 3}).value();
  list.push_back({"class_loss", "taught", {logits}, {}, [=](Tape& t) {
                    return std::vector{ops::class_loss(t, logits, labels, mask, w, {by, 0.7, 4.0}).sum};
                  }});
}

void add_latent(Runtime& runtime, Source& source, std::vector<OpSample>& list) {
  const Variable moments = source.leaf({6, 4});
  const std::vector<int64_t> keys{7, int64_t{1} << 40, -3, 12, 13, 2};
  const NoiseKey key{
      .seed = 5, .op = 2, .row_keys = Tensor::from<int64_t>(runtime, keys, Shape{6}, Tag::data, "row keys")};
  list.push_back(
      {"sample_latent", "", {moments}, {}, [=](Tape& t) {
         return std::vector{ops::sample_latent(t, moments, key), ops::sample_latent(t, moments, key)};
       }});
  const std::vector<float> weights{0.5F, 1.0F, 0.0F, 2.0F, 0.25F, 1.0F};
  const Tensor rows = Tensor::from<float>(runtime, weights, Shape{6}, Tag::data, "row weights");
  list.push_back({"latent_loss", "two in a row", {moments}, {}, [=](Tape& t) {
                    return std::vector{
                        ops::latent_loss(t, ops::latent_loss(t, {}, moments, rows), moments, rows)};
                  }});
  // Two graphs, one between them without nodes; in the list node 1 meets itself.
  const auto index = [&](const std::vector<int32_t>& values) {
    return Tensor::from<int32_t>(runtime, values, Shape{std::ssize(values)}, Tag::data, "pairs");
  };
  const std::vector<float> each{0.5F, 0.25F, 7.0F, 7.0F, 2.0F, 0.125F};
  NodePairs pairs{.graph_starts = index({0, 4, 4, 6}),
                  .offsets = index({0, 2, 4, 5, 5, 6, 7}),
                  .others = index({1, 2, 0, 1, 0, 5, 4}),
                  .weights = Tensor::from<float>(runtime, each, Shape{3, 2}, Tag::data, "weights")};
  pairs.all_pairs = true;
  list.push_back({"pair_loss", "all pairs", {moments}, {}, [=](Tape& t) {
                    return std::vector{
                        ops::pair_loss(t, ops::pair_loss(t, {}, moments, pairs), moments, pairs)};
                  }});
  pairs.all_pairs = false;
  const std::vector<uint8_t> linked{1, 0, 1, 1, 0, 0, 0};
  pairs.linked = Tensor::from<uint8_t>(runtime, linked, Shape{7}, Tag::data, "linked");
  list.push_back({"pair_loss", "a list", {moments}, {}, [=](Tape& t) {
                    return std::vector{ops::pair_loss(t, {}, moments, pairs)};
                  }});
}

void add_unroll(Runtime& runtime, Source& source, std::vector<OpSample>& list) {
  const Variable before = source.wide_leaf({5, 2});
  const Variable prediction = source.leaf({5, 2});
  const Tensor target = source.target({5, 2});
  const std::vector<uint8_t> flags{1, 0, 1, 1, 0};
  const Tensor mask = Tensor::from<uint8_t>(runtime, flags, Shape{5}, Tag::data, "mask");
  list.push_back({"masked_loss", "errors", {before, prediction}, {}, [=](Tape& t) {
                    const LossSum loss = ops::masked_loss(t, Variable(), {before, prediction}, mask);
                    return std::vector{ops::masked_loss(t, loss.sum, {before}, mask).sum};
                  }});
  list.push_back({"accumulate_error", "first", {prediction}, {}, [=](Tape& t) {
                    return std::vector{ops::accumulate_error(t, {}, prediction, target, mask)};
                  }});
  list.push_back({"accumulate_error", "two in a row", {before, prediction}, {}, [=](Tape& t) {
                    const Variable after = ops::accumulate_error(t, before, prediction, target, mask);
                    return std::vector{after, ops::accumulate_error(t, before, after, {}, mask)};
                  }});
  const Tensor given = source.leaf({5, 4}).value();
  const std::vector<int32_t> columns{1, -1, 0, 1};
  const Tensor map = Tensor::from<int32_t>(runtime, columns, Shape{4}, Tag::data, "source");
  const Tensor ratio = source.target({4});
  // Used twice, so that the second gradient is added to the first.
  list.push_back({"add_columns", "", {before}, {}, [=](Tape& t) {
                    return std::vector{ops::add_columns(t, given, before, map, ratio),
                                       ops::add_columns(t, given, before, map, ratio)};
                  }});
}

/// A part whose neighbour is itself, as the two ends of a periodic mesh are.
class ExchangeWithItself : public HaloExchange {
 public:
  explicit ExchangeWithItself(Runtime& runtime) : runtime_(runtime) {}
  std::unique_ptr<Request> forward(const Halo&, const Tensor& sent, const Tensor& ghosts) override {
    copy(sent, ghosts, runtime_.stream());
    return nullptr;
  }
  std::unique_ptr<Request> backward(const Halo&, const Tensor& d_ghosts, const Tensor& d_sent) override {
    copy(d_ghosts, d_sent, runtime_.stream());
    return nullptr;
  }

 private:
  Runtime& runtime_;
};

void add_halo(Runtime& runtime, Source& source, std::vector<OpSample>& list) {
  const std::vector<int32_t> sent{3, 1, 3, 4};
  const auto halo = std::make_shared<Halo>(
      make_halo(runtime, 5, {{0, 4, 4}}, sent, std::make_shared<ExchangeWithItself>(runtime)));
  const Variable x = source.leaf({5, 3});
  // Used twice, so that the second gradient is added to the first.
  list.push_back({"halo_exchange", "", {x}, {}, [=](Tape& t) {
                    return std::vector{ops::halo_exchange(t, x, *halo), ops::halo_exchange(t, x, *halo)};
                  }});
}

/// sum_k c_k y_k with the c of `seed`.
double weighted_sum(const std::vector<Variable>& outputs, uint64_t seed) {
  double total = 0.0;
  uint64_t purpose = 1000;
  for (const Variable& y : outputs) {
    for (int64_t i = 0; i < y.value().elements(); ++i) {
      total += value_of(seed, purpose, i) * y.value().data<double>()[i];
    }
    ++purpose;
  }
  return total;
}

double evaluate(Runtime& runtime, const OpSample& sample, uint64_t seed) {
  Tape tape(runtime, Tape::Mode::evaluate);
  return weighted_sum(sample.run(tape), seed);
}

}  // namespace

std::vector<Tensor> gradients_of(Runtime& runtime, const OpSample& sample, uint64_t seed) {
  Tape tape(runtime);
  // Samples may share leaves, whose gradients accumulate.
  for (const Variable& input : sample.inputs) tape.take_gradient(input.slot());
  for (const Weight& weight : sample.weights) fill_zero(weight.gradient, runtime.stream());
  const std::vector<Variable> outputs = sample.run(tape);
  const Variable sum(Tensor::zeros(runtime, {1}, DType::f64, Tag::activations, "sum"), true);
  tape.record({.op = "weighted_sum", .inputs = outputs}, [outputs, sum = sum.slot(), seed](Tape& back) {
    back.take_gradient(sum);
    uint64_t purpose = 1000;
    for (const Variable& y : outputs) {
      const Tensor d_y = back.scratch(y.value().shape(), y.value().dtype(), "d_y");
      draw(d_y, seed, purpose++);
      back.add_gradient(y.slot(), d_y);
    }
  });
  const Tensor one = Tensor::zeros(runtime, {1}, DType::f64, Tag::workspace, "seed");
  *one.data<double>() = 1.0;
  tape.backward(sum, one);
  std::vector<Tensor> gradients;
  for (const Variable& input : sample.inputs) gradients.push_back(input.gradient());
  for (const Weight& weight : sample.weights) gradients.push_back(weight.gradient);
  return gradients;
}

std::vector<OpSample> all_op_samples(Runtime& runtime, uint64_t seed, DType dtype) {
  Source source(runtime, seed, dtype);
  std::vector<OpSample> list;
  add_basic(runtime, source, list);
  add_graphs(runtime, source, list);
  add_fused(runtime, source, list);
  add_attention(runtime, source, list);
  add_slices(runtime, source, list);
  add_loss(runtime, source, list);
  add_latent(runtime, source, list);
  add_unroll(runtime, source, list);
  add_halo(runtime, source, list);
  return list;
}

GradientCheck check_gradients(Runtime& runtime, const OpSample& sample, uint64_t seed) {
  constexpr double kStep = 1e-6;
  struct Checked {
    std::string name;
    Tensor value, gradient;
  };
  const std::vector<Tensor> gradients = gradients_of(runtime, sample, seed);
  const size_t inputs = sample.inputs.size();
  std::vector<Checked> all;
  for (size_t i = 0; i < inputs; ++i)
    all.push_back({"input " + std::to_string(i), sample.inputs[i].value(), gradients[i]});
  for (size_t i = 0; i < sample.weights.size(); ++i)
    all.push_back({"weight " + std::to_string(i), sample.weights[i].value, gradients[inputs + i]});
  GradientCheck check;
  for (const Checked& checked : all)
    for (int64_t i = 0; i < checked.value.elements(); ++i) {
      double& x = checked.value.data<double>()[i];
      const double middle = x;
      x = middle + kStep;
      const double above = evaluate(runtime, sample, seed);
      x = middle - kStep;
      const double below = evaluate(runtime, sample, seed);
      x = middle;
      const double numeric = (above - below) / (2.0 * kStep);
      const double analytic = checked.gradient.defined() ? checked.gradient.data<double>()[i] : 0.0;
      const double error = std::abs(analytic - numeric) / (1.0 + std::abs(analytic));
      ++check.elements;
      if (!(error <= check.largest_error)) {
        check.largest_error = error;
        check.worst = checked.name + ", element " + std::to_string(i);
      }
    }
  return check;
}

}  // namespace meshgrad
