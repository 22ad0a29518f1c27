// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/data/text.h>
#include <meshgrad/train/tools/extras/foreign_weights.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

namespace meshgrad {
namespace {

/// Where the names of a source come from, and what writes them.
std::string_view fix_of(WeightSource source) {
  switch (source) {
    case WeightSource::physicsnemo:
      return "check --from: physicsnemo's names are those of the state_dict of NVIDIA PhysicsNeMo's "
             "MeshGraphNet, "
             "which scripts/pt-to-safetensors writes";
    case WeightSource::deepmind:
      return "check --from: deepmind's names are those of the TensorFlow variables in a checkpoint of "
             "deepmind-research/meshgraphnets, which tf.train.load_checkpoint lists";
    case WeightSource::pyg:
      return "check --from: pyg's names are those of the state_dict of Stanford CS224W's MeshGraphNet, of "
             "torch_geometric.nn.GAT, or of torch_geometric.nn.VGAE with GCNConv, which "
             "scripts/pt-to-safetensors writes";
  }
  return "";
}

/// One layer of an MLP: matrix and bias, or a norm's gain and bias.
struct ForeignLayer {
  std::string weight, bias;  ///< names in the file
  bool norm = false;
};

/// The file's tensors by name, common prefix removed, and which of them were used.
class ForeignFile {
 public:
  ForeignFile(const SafetensorsView& view, WeightSource source) : view_(view), source_(source) {
    for (const SafetensorsTensor& tensor : view.tensors) {
      if (std::string name = bare(tensor.name); !name.empty()) tensors_.emplace(std::move(name), &tensor);
    }
  }

  const std::string& name() const { return view_.file; }
  std::string_view fix() const { return fix_of(source_); }
  bool contains(const std::string& name) const { return tensors_.contains(name); }
  bool contains_under(const std::string& prefix) const {
    const auto next = tensors_.lower_bound(prefix);
    return next != tensors_.end() && next->first.starts_with(prefix);
  }
  /// What follows `prefix` in names.
  std::vector<std::string> names_under(const std::string& prefix) const {
    std::vector<std::string> rest;
    for (auto at = tensors_.lower_bound(prefix); at != tensors_.end() && at->first.starts_with(prefix); ++at)
      rest.push_back(at->first.substr(prefix.size()));
    return rest;
  }
  size_t rank(const std::string& name) const { return tensors_.at(name)->shape.size(); }

  ForeignParameter take(const std::string& name) {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) throw data_error(view_.file, "tensor " + name, "none", fix());
    used_.insert(name);
    const SafetensorsTensor& tensor = *found->second;
    ForeignParameter parameter{tensor.name, tensor.shape, to_f64(tensor)};
    if (source_ == WeightSource::deepmind && tensor.shape.size() == 2) transpose(parameter);
    return parameter;
  }

  /// Nothing is left out in silence.
  void check_all_used() const {
    std::vector<std::string> unused;
    for (const auto& [name, tensor] : tensors_)
      if (!used_.contains(name)) unused.push_back(tensor->name);
    if (unused.empty()) return;
    const size_t count = unused.size();
    if (count > 3) unused.resize(3);
    throw data_error(view_.file, "only weights of a model that can be read",
                     fmt::format("{} of other names, such as {}",
                                 counted(static_cast<int64_t>(count), "tensor"), listed(unused)),
                     fix());
  }

 private:
  /// Empty for tensors that are no weights: reference values, and counters of optimizers.
  static std::string bare(std::string name) {
    for (const std::string_view other : {"in.", "out.", "grad.", "adam."})
      if (name.starts_with(other)) return {};
    for (bool found = true; found;) {
      found = false;
      for (const std::string_view prefix :
           {"state.", "module.", "model.", "_orig_mod.", "Model/", "EncodeProcessDecode/"}) {
        if (!name.starts_with(prefix)) continue;
        name.erase(0, prefix.size());
        found = true;
      }
    }
    return name == "device_buffer" || name == "global_step" ? std::string() : name;
  }

  static void transpose(ForeignParameter& parameter) {
    const auto rows = static_cast<size_t>(parameter.shape[0]);
    const auto columns = static_cast<size_t>(parameter.shape[1]);
    std::vector<double> values(parameter.values.size());
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < columns; ++j) values[j * rows + i] = parameter.values[i * columns + j];
    parameter.values = std::move(values);
    std::swap(parameter.shape[0], parameter.shape[1]);
  }

  const SafetensorsView& view_;
  WeightSource source_;
  std::map<std::string, const SafetensorsTensor*> tensors_;
  std::set<std::string> used_;
};

bool all_digits(std::string_view text) {
  return !text.empty() && text.size() < 6 && text.find_first_not_of("0123456789") == text.npos;
}

/// PREFIX.I.weight of an nn.Sequential in ascending I; activations have numbers too, but no tensors.
std::vector<ForeignLayer> sequential_layers(const ForeignFile& file, const std::string& prefix) {
  std::map<int, ForeignLayer> layers;
  for (const std::string& rest : file.names_under(prefix)) {
    const size_t dot = rest.find('.');
    if (dot == rest.npos || rest.substr(dot) != ".weight" || !all_digits(rest.substr(0, dot))) continue;
    const std::string layer = prefix + rest.substr(0, dot);
    layers[std::stoi(rest)] = {layer + ".weight", layer + ".bias", file.rank(layer + ".weight") == 1};
  }
  std::vector<ForeignLayer> result;
  for (const auto& [number, layer] : layers) result.push_back(layer);
  return result;
}

/// SCOPE/mlp/linear_I/w, and SCOPE/layer_norm; `suffix` numbers the second of a scope.
std::vector<ForeignLayer> sonnet_layers(const ForeignFile& file, const std::string& scope,
                                        const std::string& suffix) {
  std::vector<ForeignLayer> layers;
  for (int i = 0;; ++i) {
    const std::string layer = fmt::format("{}/mlp{}/linear_{}/", scope, suffix, i);
    if (!file.contains(layer + "w")) break;
    layers.push_back({layer + "w", layer + "b", false});
  }
  const std::string norm = scope + "/layer_norm" + suffix + "/";
  if (file.contains(norm + "gamma")) layers.push_back({norm + "gamma", norm + "beta", true});
  return layers;
}

/// Where the file has an MLP that we call node_encoder, edge_encoder, processor.K.edge_mlp,
/// processor.K.node_mlp or node_decoder.
struct MlpPlace {
  std::string scope;   ///< physicsnemo and pyg: with the dot at its end
  std::string suffix;  ///< deepmind
};
MlpPlace place_of(WeightSource source, const std::string& ours) {
  const bool block = ours.starts_with("processor.");
  const int number = block ? std::stoi(ours.substr(10)) : 0;
  const std::string part = ours.substr(ours.rfind('.') + 1);
  switch (source) {
    case WeightSource::physicsnemo:
      if (!block) return {ours + ".model.", ""};
      return {fmt::format("processor.processor_layers.{}.{}.model.",
                          2 * number + (part == "node_mlp" ? 1 : 0), part),
              ""};
    case WeightSource::pyg:
      if (ours == "node_decoder") return {"decoder.", ""};
      return {ours + ".", ""};
    case WeightSource::deepmind:
      if (ours == "node_encoder") return {"encoder", ""};
      if (ours == "edge_encoder") return {"encoder", "_1"};
      if (ours == "node_decoder") return {"decoder", ""};
      return {fmt::format("GraphNetBlock{}/{}", number == 0 ? "" : fmt::format("_{}", number),
                          part == "node_mlp" ? "node_fn" : "mesh_edges_edge_fn"),
              ""};
  }
  return {};
}

/// PhysicsNeMo's do_concat_trick: the first layer's matrix in three parts, put together in its own order.
std::optional<std::pair<ForeignParameter, ForeignParameter>> split_first_layer(ForeignFile& file,
                                                                               const std::string& scope) {
  const std::string mlp = scope.substr(0, scope.size() - std::string_view("model.").size());
  if (!file.contains(mlp + "lin_efeat")) return {};
  ForeignParameter whole = file.take(mlp + "lin_efeat");
  for (const char* part : {"lin_src", "lin_dst"}) {
    const ForeignParameter columns = file.take(mlp + part);
    if (columns.shape.size() != 2 || whole.shape.size() != 2 || columns.shape[0] != whole.shape[0]) {
      throw data_error(file.name() + ": " + columns.name,
                       fmt::format("a matrix with the rows of lin_efeat, [{}]", fmt::join(whole.shape, ", ")),
                       fmt::format("[{}]", fmt::join(columns.shape, ", ")), file.fix());
    }
    std::vector<double> joined;
    const int64_t a = whole.shape[1];
    const int64_t b = columns.shape[1];
    for (int64_t row = 0; row < whole.shape[0]; ++row) {
      joined.insert(joined.end(), whole.values.begin() + row * a, whole.values.begin() + (row + 1) * a);
      joined.insert(joined.end(), columns.values.begin() + row * b, columns.values.begin() + (row + 1) * b);
    }
    whole.values = std::move(joined);
    whole.shape[1] = a + b;
  }
  return std::pair(std::move(whole), file.take(mlp + "bias"));
}

/// The name of an MLP's first matrix.
std::string first_name(WeightSource source, const MlpPlace& place) {
  if (source == WeightSource::deepmind) return fmt::format("{}/mlp{}/linear_0/w", place.scope, place.suffix);
  return place.scope + "0.weight";
}

/// Reads one MLP under our names; returns its number of matrices.
int64_t read_mlp(ForeignFile& file, WeightSource source, const std::string& ours, ForeignModel& model) {
  const MlpPlace place = place_of(source, ours);
  const std::vector<ForeignLayer> layers = source == WeightSource::deepmind
                                               ? sonnet_layers(file, place.scope, place.suffix)
                                               : sequential_layers(file, place.scope);
  int64_t linears = 0;
  const auto name = [&] { return fmt::format("{}.linear_{}", ours, linears); };
  if (source == WeightSource::physicsnemo && ours.ends_with("edge_mlp")) {
    if (auto first = split_first_layer(file, place.scope)) {
      model.parameters[name() + ".weight"] = std::move(first->first);
      model.parameters[name() + ".bias"] = std::move(first->second);
      ++linears;
    }
  }
  for (const ForeignLayer& layer : layers) {
    const std::string to = layer.norm ? ours + ".norm" : name();
    model.parameters[to + ".weight"] = file.take(layer.weight);
    if (!layer.norm || file.contains(layer.bias)) model.parameters[to + ".bias"] = file.take(layer.bias);
    linears += layer.norm ? 0 : 1;
  }
  if (linears == 0) {
    throw data_error(file.name(), fmt::format("the layers of {}, named {}", ours, first_name(source, place)),
                     "none", file.fix());
  }
  return linears;
}

Normalizer normalizer_of(const ForeignParameter& mean, const ForeignParameter& deviation,
                         const ForeignFile& file) {
  if (mean.values.size() != deviation.values.size()) {
    throw data_error(file.name() + ": " + mean.name, "as many means as deviations",
                     fmt::format("{} and {}", mean.values.size(), deviation.values.size()), file.fix());
  }
  for (size_t i = 0; i < mean.values.size(); ++i) {
    if (std::isfinite(mean.values[i]) && std::isfinite(deviation.values[i]) && deviation.values[i] >= 0)
      continue;
    throw data_error(file.name() + ": " + mean.name, "finite statistics",
                     fmt::format("{} +- {} at {}", mean.values[i], deviation.values[i], i), file.fix());
  }
  return Normalizer::fixed(mean.values, deviation.values);
}

/// From DeepMind's variables: rows, updates, sums, sums of squares.
Normalizer accumulated_normalizer(ForeignFile& file, const std::string& scope) {
  const ForeignParameter count = file.take(scope + "/Variable");
  file.take(scope + "/Variable_1");
  ForeignParameter mean = file.take(scope + "/Variable_2");
  ForeignParameter deviation = file.take(scope + "/Variable_3");
  const double rows = std::max(1.0, count.values.empty() ? 0.0 : count.values.front());
  for (size_t i = 0; i < std::min(mean.values.size(), deviation.values.size()); ++i) {
    mean.values[i] /= rows;
    const double variance = deviation.values[i] / rows - mean.values[i] * mean.values[i];
    deviation.values[i] = std::sqrt(std::max(0.0, variance));  // rounding in f32 makes it negative
  }
  return normalizer_of(mean, deviation, file);
}

std::optional<Normalizers> read_normalizers(ForeignFile& file) {
  Normalizers normalizers;
  if (file.contains_under("normalizer.")) {
    const auto read = [&](const std::string& name) {
      return normalizer_of(file.take("normalizer." + name + ".mean"),
                           file.take("normalizer." + name + ".std"), file);
    };
    return Normalizers{read("nodes"), read("edges"), read("targets")};
  }
  if (!file.contains_under("output_normalizer/")) return {};
  return Normalizers{accumulated_normalizer(file, "node_normalizer"),
                     accumulated_normalizer(file, "edge_normalizer"),
                     accumulated_normalizer(file, "output_normalizer")};
}

void check_range(const ForeignFile& file, std::string_view what, int64_t value, int64_t most) {
  if (value >= 1 && value <= most) return;
  throw data_error(file.name(), fmt::format("1 to {} as {}", most, what), fmt::format("{}", value),
                   file.fix());
}

int64_t columns_of(const ForeignModel& model, const std::string& name) {
  const ForeignParameter& matrix = model.parameters.at(name);
  return matrix.shape.size() == 2 ? matrix.shape[1] : 0;
}

int64_t rows_of(const ForeignModel& model, const std::string& name) {
  const ForeignParameter& matrix = model.parameters.at(name);
  return matrix.shape.size() == 2 ? matrix.shape[0] : 0;
}

/// PyTorch Geometric's name of an attention layer's parameter, and ours.
struct AttentionName {
  const char* theirs;
  const char* ours;
};
constexpr AttentionName kGatNames[] = {{"lin.weight", "values.weight"},
                                       {"att_src", "sender_score"},
                                       {"att_dst", "receiver_score"},
                                       {"bias", "bias"}};
constexpr AttentionName kGatv2Names[] = {{"lin_l.weight", "values.weight"},
                                         {"lin_l.bias", "values.bias"},
                                         {"lin_r.weight", "queries.weight"},
                                         {"lin_r.bias", "queries.bias"},
                                         {"att", "score"},
                                         {"bias", "bias"}};

/// Heads and the width of one, from a layer's scores [1, heads, width].
std::pair<int64_t, int64_t> heads_of(const ForeignFile& file, const ForeignParameter& score) {
  if (score.shape.size() == 3 && score.shape[0] == 1) {
    check_range(file, "heads", score.shape[1], kMaxHeads);
    check_range(file, "width of a head", score.shape[2], 16384);
    return {score.shape[1], score.shape[2]};
  }
  throw data_error(file.name() + ": " + score.name, "a shape of [1, heads, width]",
                   fmt::format("[{}]", fmt::join(score.shape, ", ")), file.fix());
}

/// torch_geometric.nn.GAT: the layers convs.0, convs.1, ... of GATConv or GATv2Conv. The last makes the
/// prediction, the mean of its heads.
ForeignModel read_gat(ForeignFile& file) {
  ForeignModel model;
  GatOptions& options = model.gat.emplace(GatOptions{.decoder = GatDecoder::attention});
  options.edge_features = false;
  const bool second = file.contains("convs.0.att");
  options.score = second ? AttentionScore::gatv2 : AttentionScore::gat;
  const std::span<const AttentionName> names =
      second ? std::span<const AttentionName>(kGatv2Names) : std::span<const AttentionName>(kGatNames);
  int64_t layers = 0;
  while (file.contains_under(fmt::format("convs.{}.", layers))) ++layers;
  if (layers < 2)
    throw data_error(file.name(), "two layers convs.K or more", std::to_string(layers), file.fix());
  options.blocks = layers - 1;
  check_range(file, "blocks", options.blocks, 1024);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const bool last = layer == options.blocks;
    const std::string ours = last ? "decoder." : fmt::format("layer.{}.", layer);
    for (const AttentionName& name : names) {
      ForeignParameter parameter = file.take(fmt::format("convs.{}.{}", layer, name.theirs));
      if (std::string_view(name.theirs).starts_with("att")) {
        const auto [heads, width] = heads_of(file, parameter);
        parameter.shape = {heads * width};
        if (last) {
          options.output_heads = heads;
          model.sizes.outputs = width;
        } else if (layer == 0) {
          options.heads = heads;
          options.width = width;
        } else if (heads != options.heads || width != options.width) {
          throw data_error(
              file.name() + ": " + parameter.name,
              fmt::format("{} heads of {}, as the first layer has", options.heads, options.width),
              fmt::format("{} of {}", heads, width), file.fix());
        }
      }
      model.parameters[ours + name.ours] = std::move(parameter);
    }
  }
  model.sizes.node_inputs = columns_of(model, "layer.0.values.weight");
  check_range(file, "inputs", model.sizes.node_inputs, 1 << 20);
  model.sizes.edge_inputs = {0};
  model.sizes.edge_set_names = {std::string(kMeshEdges)};
  model.normalizers = read_normalizers(file);
  file.check_all_used();
  return model;
}

/// The columns of the means, then those of the logarithms.
ForeignParameter read_moments(ForeignFile& file, const std::string& scope, const std::string& name) {
  ForeignParameter both = file.take(scope + "conv_mu." + name);
  const ForeignParameter logarithms = file.take(scope + "conv_logstd." + name);
  if (both.shape.empty() || both.shape != logarithms.shape) {
    throw data_error(file.name() + ": " + logarithms.name,
                     fmt::format("the shape of {}, [{}]", both.name, fmt::join(both.shape, ", ")),
                     fmt::format("[{}]", fmt::join(logarithms.shape, ", ")), file.fix());
  }
  both.values.insert(both.values.end(), logarithms.values.begin(), logarithms.values.end());
  both.shape[0] *= 2;
  return both;
}

/// torch_geometric.nn.VGAE of an encoder of GCNConv, or that encoder alone.
ForeignModel read_vgae(ForeignFile& file, const std::string& scope) {
  ForeignModel model;
  VgaeOptions& options = model.vgae.emplace();
  for (options.blocks = 0; file.contains_under(fmt::format("{}conv{}.", scope, options.blocks + 1));
       ++options.blocks) {
    const std::string theirs = fmt::format("{}conv{}.", scope, options.blocks + 1);
    const std::string ours = fmt::format("encoder.{}.", options.blocks);
    model.parameters[ours + "weight"] = file.take(theirs + "lin.weight");
    model.parameters[ours + "bias"] = file.take(theirs + "bias");
  }
  check_range(file, "blocks", options.blocks, 1024);
  model.parameters["latent.weight"] = read_moments(file, scope, "lin.weight");
  model.parameters["latent.bias"] = read_moments(file, scope, "bias");
  options.width = rows_of(model, "encoder.0.weight");
  check_range(file, "width", options.width, 16384);
  model.sizes = {.node_inputs = columns_of(model, "encoder.0.weight"),
                 .edge_inputs = {0},
                 .edge_set_names = {std::string(kMeshEdges)},
                 .outputs = rows_of(model, "latent.weight") / 2,
                 .graph_starts = true,
                 .edge_weights = true};
  for (const int64_t size : {model.sizes.node_inputs, model.sizes.outputs})
    check_range(file, "inputs and latent values", size, 1 << 20);
  model.normalizers = read_normalizers(file);
  file.check_all_used();
  return model;
}

}  // namespace

ForeignModel read_foreign_model(const SafetensorsView& view, WeightSource source) {
  ForeignFile file(view, source);
  if (source == WeightSource::pyg && file.contains_under("convs.")) return read_gat(file);
  for (const char* scope : {"encoder.", ""})
    if (source == WeightSource::pyg && file.contains_under(std::string(scope) + "conv_mu."))
      return read_vgae(file, scope);
  ForeignModel model;
  MeshGraphNetOptions& options = model.options;
  options.concat_order = source == WeightSource::physicsnemo ? ConcatOrder::edge_sender_receiver
                                                             : ConcatOrder::sender_receiver_edge;
  options.aggregate =
      source == WeightSource::deepmind ? AggregateOrder::before_residual : AggregateOrder::after_residual;
  options.hidden_layers = read_mlp(file, source, "node_encoder", model) - 1;
  read_mlp(file, source, "edge_encoder", model);
  for (options.blocks = 0;; ++options.blocks) {
    const std::string block = fmt::format("processor.{}.", options.blocks);
    const std::string scope = place_of(source, block + "node_mlp").scope;
    if (!file.contains_under(scope + (source == WeightSource::deepmind ? "/" : ""))) break;
    read_mlp(file, source, block + "edge_mlp", model);
    read_mlp(file, source, block + "node_mlp", model);
  }
  const int64_t decoder = read_mlp(file, source, "node_decoder", model);
  const bool norm = model.parameters.contains("node_encoder.norm.weight");
  const bool centred = model.parameters.contains("node_encoder.norm.bias");
  options.norm = !norm ? Norm::none : centred ? Norm::layer : Norm::rms;
  options.width = rows_of(model, "node_encoder.linear_0.weight");
  check_range(file, "width", options.width, 16384);
  check_range(file, "blocks", options.blocks, 1024);
  check_range(file, "hidden layers", options.hidden_layers, 7);
  const std::string last = fmt::format("node_decoder.linear_{}.weight", decoder - 1);
  model.sizes = {.node_inputs = columns_of(model, "node_encoder.linear_0.weight"),
                 .edge_inputs = {columns_of(model, "edge_encoder.linear_0.weight")},
                 .edge_set_names = {std::string(kMeshEdges)},
                 .outputs = rows_of(model, last)};
  for (const int64_t size : {model.sizes.node_inputs, model.sizes.edge_inputs.front(), model.sizes.outputs})
    check_range(file, "inputs and outputs", size, 1 << 20);
  model.normalizers = read_normalizers(file);
  file.check_all_used();
  return model;
}

void reverse_relative_positions(ForeignModel& model) {
  ForeignParameter& matrix = model.parameters.at("edge_encoder.linear_0.weight");
  const auto columns = static_cast<size_t>(model.sizes.edge_inputs.front());
  for (size_t i = 0; i < matrix.values.size(); ++i)
    if (i % columns + 1 < columns) matrix.values[i] = -matrix.values[i];  // the last is the distance
  if (!model.normalizers) return;
  Normalizer& edges = model.normalizers->edges;
  std::vector<double> means = edges.means();
  for (size_t i = 0; i + 1 < means.size(); ++i) means[i] = -means[i];
  edges.restore(edges.count(), means, edges.squared_deviations());
}

}  // namespace meshgrad
