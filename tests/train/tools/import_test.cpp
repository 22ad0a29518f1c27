// SPDX-License-Identifier: Apache-2.0
// Weights of other frameworks: PhysicsNeMo's own file, and the same weights under the names, layouts and
// conventions of others.
#include <doctest/doctest.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/task/evaluation.h>
#include <meshgrad/train/tools/extras/foreign_weights.h>

#include "paths.h"
#include "support.h"
#include "train/link_case.h"
#include "train/process.h"
#include "train/small_run.h"

#include <algorithm>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;
using test::contains;
using test::message_of;
using test::ScratchDirectory;

struct FileTensor {
  std::vector<int64_t> shape;
  std::vector<double> values;
};
using FileTensors = std::map<std::string, FileTensor>;

/// All tensors as f64; integers too, which to_i64 then refuses, so those of graphs are written apart.
FileTensors read_tensors(const fs::path& path) {
  const SafetensorsFile file(path);
  FileTensors tensors;
  for (const SafetensorsTensor& tensor : file.view().tensors)
    tensors[tensor.name] = {tensor.shape, to_f64(tensor)};
  return tensors;
}

void write_tensors(const fs::path& path, const FileTensors& file) {
  std::vector<std::vector<int32_t>> integers;
  std::vector<SafetensorsTensor> tensors;
  integers.reserve(file.size());
  for (const auto& [name, tensor] : file) {
    const bool integer = name == "in.senders" || name == "in.receivers";
    if (integer) integers.emplace_back(tensor.values.begin(), tensor.values.end());
    tensors.push_back(
        {name, integer ? SafetensorsDtype::i32 : SafetensorsDtype::f64, tensor.shape,
         integer ? std::as_bytes(std::span(integers.back())) : std::as_bytes(std::span(tensor.values))});
  }
  write_safetensors(path, tensors);
}

/// Columns [begin, end) of a matrix.
FileTensor column_block(const FileTensor& matrix, int64_t begin, int64_t end) {
  FileTensor part{{matrix.shape[0], end - begin}, {}};
  for (int64_t row = 0; row < matrix.shape[0]; ++row) {
    const auto at = matrix.values.begin() + row * matrix.shape[1];
    part.values.insert(part.values.end(), at + begin, at + end);
  }
  return part;
}

/// The columns from `first` on, then those before.
FileTensor rotated(const FileTensor& matrix, int64_t first) {
  const FileTensor front = column_block(matrix, first, matrix.shape[1]);
  const FileTensor back = column_block(matrix, 0, first);
  FileTensor result{matrix.shape, {}};
  for (int64_t row = 0; row < matrix.shape[0]; ++row) {
    for (const FileTensor* part : {&front, &back}) {
      const auto at = part->values.begin() + row * part->shape[1];
      result.values.insert(result.values.end(), at, at + part->shape[1]);
    }
  }
  return result;
}

FileTensor transposed(const FileTensor& matrix) {
  FileTensor result{{matrix.shape[1], matrix.shape[0]}, {}};
  for (int64_t j = 0; j < matrix.shape[1]; ++j)
    for (int64_t i = 0; i < matrix.shape[0]; ++i)
      result.values.push_back(matrix.values[static_cast<size_t>(i * matrix.shape[1] + j)]);
  return result;
}

fs::path physicsnemo_file() { return test::data_file("oracles/physicsnemo_small.safetensors"); }

/// PhysicsNeMo's weights as the pyg form has them: the same model, since it also sums after the residual.
FileTensors pyg_of_physicsnemo() {
  FileTensors file;
  for (const auto& [name, tensor] : read_tensors(physicsnemo_file())) {
    if (name.starts_with("grad.") || name == "out.loss_mean") continue;
    if (!name.starts_with("state.")) {
      file[name] = tensor;
      continue;
    }
    std::string pyg = name.substr(6);
    if (pyg.starts_with("processor.")) {
      const int layer = std::stoi(pyg.substr(27));
      pyg = "processor." + std::to_string(layer / 2) + pyg.substr(pyg.find('.', 27));
    }
    pyg.erase(pyg.find(".model"), 6);
    if (pyg.starts_with("node_decoder")) pyg.erase(0, 5);
    const bool first = pyg.starts_with("processor.") && pyg.ends_with("mlp.0.weight");
    file[pyg] = first ? rotated(tensor, 24) : tensor;  // both put 24 columns in front
  }
  return file;
}

ImportCheck check_of(const fs::path& file, WeightSource source) {
  Runtime runtime = test::make_runtime();
  return check_weights(runtime, file, source, Activation::relu);
}

TEST_CASE("PhysicsNeMo's own prediction is matched") {
  const ScratchDirectory scratch;
  const ImportCheck check = check_of(physicsnemo_file(), WeightSource::physicsnemo);
  CHECK(check.nodes == 64);
  CHECK(check.edges == 322);
  CHECK(check.difference < 1e-12);
  CHECK(check.tolerance == 1e-9);
  CHECK(check.passed());

  FileTensors file = read_tensors(physicsnemo_file());
  for (const int layer : {0, 2, 4}) {
    const std::string mlp = "state.processor.processor_layers." + std::to_string(layer) + ".edge_mlp.";
    const FileTensor matrix = file.extract(mlp + "model.0.weight").mapped();
    file[mlp + "lin_efeat"] = column_block(matrix, 0, 24);
    file[mlp + "lin_src"] = column_block(matrix, 24, 48);
    file[mlp + "lin_dst"] = column_block(matrix, 48, 72);
    file[mlp + "bias"] = file.extract(mlp + "model.0.bias").mapped();
    for (const char* kind : {".weight", ".bias"}) {  // numbers after the missing layer shift
      for (const int number : {2, 4, 5}) {
        auto node = file.extract(mlp + "model." + std::to_string(number) + kind);
        node.key() = mlp + "model." + std::to_string(number - 1) + kind;
        file.insert(std::move(node));
      }
    }
  }
  write_tensors(scratch.path / "split.safetensors", file);
  CHECK(check_of(scratch.path / "split.safetensors", WeightSource::physicsnemo).difference < 1e-12);
}

TEST_CASE("weights read under other conventions fail the check") {
  const ScratchDirectory scratch;
  const fs::path path = scratch.path / "pyg.safetensors";
  write_tensors(path, pyg_of_physicsnemo());
  CHECK(check_of(path, WeightSource::pyg).difference < 1e-12);
  FileTensors file = pyg_of_physicsnemo();
  FileTensor& matrix = file["processor.1.node_mlp.0.weight"];
  matrix = rotated(matrix, 24);
  write_tensors(path, file);
  CHECK_FALSE(check_of(path, WeightSource::pyg).passed());
}

TEST_CASE("DeepMind's names, matrices and normalisers") {
  const ScratchDirectory scratch;
  FileTensors file;
  for (const auto& [name, tensor] : read_tensors(test::data_file("oracles/mgn_small.safetensors"))) {
    if (name.starts_with("in.") || name == "out.prediction") file[name] = tensor;
    if (!name.starts_with("param.")) continue;
    std::string theirs = name.substr(6);
    const size_t dot = theirs.rfind('.');
    const bool weight = theirs.substr(dot) == ".weight";
    const size_t layer_dot = theirs.rfind('.', dot - 1);
    const std::string layer = theirs.substr(layer_dot + 1, dot - layer_dot - 1);
    const std::string mlp = theirs.substr(0, layer_dot);
    std::string scope = mlp == "node_decoder" ? "decoder" : "encoder";
    const std::string second = mlp == "edge_encoder" ? "_1" : "";
    if (mlp.starts_with("processor.")) {
      const std::string number = mlp.substr(10, mlp.find('.', 10) - 10);
      scope = "GraphNetBlock" + (number == "0" ? "" : "_" + number) +
              (mlp.ends_with("node_mlp") ? "/node_fn" : "/mesh_edges_edge_fn");
    }
    theirs = layer == "norm" ? scope + "/layer_norm" + second + (weight ? "/gamma" : "/beta")
                             : scope + "/mlp" + second + "/" + layer + (weight ? "/w" : "/b");
    file["Model/EncodeProcessDecode/" + theirs] = tensor.shape.size() == 2 ? transposed(tensor) : tensor;
  }
  // 4 rows of mean 3 and variance 25 - 9.
  for (const auto& [name, width] : {std::pair("node", 11), std::pair("edge", 3), std::pair("output", 2)}) {
    const std::string prefix = std::string("Model/") + name + "_normalizer/Variable";
    const std::vector<int64_t> shape{width};
    const auto count = static_cast<size_t>(width);
    file[prefix] = {{}, {4.0}};
    file[prefix + "_1"] = {{}, {1.0}};
    file[prefix + "_2"] = {shape, std::vector<double>(count, 12.0)};
    file[prefix + "_3"] = {shape, std::vector<double>(count, 100.0)};
  }
  const fs::path path = scratch.path / "deepmind.safetensors";
  write_tensors(path, file);
  CHECK(check_of(path, WeightSource::deepmind).difference < 1e-12);
  const SafetensorsFile written(path);
  const ForeignModel model = read_foreign_model(written.view(), WeightSource::deepmind);
  REQUIRE(model.normalizers.has_value());
  CHECK(model.normalizers->targets.width() == 2);
  CHECK(model.normalizers->nodes.mean(10) == 3.0);
  CHECK(model.normalizers->edges.standard_deviation(0) == 4.0);
}

/// The configuration of the waves, in f64.
Config wave_config(const fs::path& folder) {
  Config config = test::small_config(folder, test::pack_waves(folder));
  config.precision = DType::f64;
  config.train.steps = 2;
  config.train.validate_every = 0;
  return config;
}

TEST_CASE("an imported checkpoint predicts, evaluates, and starts a run") {
  const ScratchDirectory scratch;
  Config config = wave_config(scratch.path);
  FileTensors file = read_tensors(physicsnemo_file());
  file["normalizer.nodes.mean"] = {{11}, std::vector<double>(11, 0.25)};
  file["normalizer.nodes.std"] = {{11}, std::vector<double>(11, 2.0)};
  for (const char* const name : {"edges", "targets"}) {
    const int64_t width = std::string_view(name) == "edges" ? 3 : 2;
    file[std::string("normalizer.") + name + ".mean"] = {
        {width}, std::vector<double>(static_cast<size_t>(width), 0.5)};
    file[std::string("normalizer.") + name + ".std"] = {{width},
                                                        std::vector<double>(static_cast<size_t>(width), 4.0)};
  }
  const fs::path path = scratch.path / "theirs.safetensors";
  write_tensors(path, file);
  const fs::path checkpoint = scratch.path / "imported/checkpoints/last.safetensors";
  Runtime runtime = test::make_runtime();
  const ImportReport report = import_weights(runtime, config, {path, WeightSource::physicsnemo, checkpoint});
  CHECK(report.width == 24);
  CHECK(report.blocks == 3);
  CHECK(report.hidden_layers == 2);
  CHECK(report.normalizers == "file");

  const Predictor predictor(runtime, checkpoint);
  CHECK(predictor.warnings().empty());
  CHECK(predictor.config().model.concat_order == ConcatOrder::edge_sender_receiver);
  CHECK(predictor.config().model.aggregate == AggregateOrder::after_residual);
  const TrainedModel trained = predictor.trained();
  CHECK(trained.normalizers.nodes.mean(0) == 0.25);
  CHECK(trained.normalizers.edges.standard_deviation(2) == doctest::Approx(4.0));
  const ParameterSet& parameters = trained.model.parameters;
  const auto index = static_cast<size_t>(parameters.find("processor.2.edge_mlp.linear_0.weight"));
  const Tensor ours = to_file_order(parameters.parameters()[index], parameters.value(index));
  const std::vector<double>& theirs =
      file["state.processor.processor_layers.4.edge_mlp.model.0.weight"].values;
  CHECK(std::equal(theirs.begin(), theirs.end(), ours.data<double>()));
  CHECK(evaluate(predictor, {.split = "test"}).fields.size() == 1);

  config.model = predictor.config().model;
  config.train.init = checkpoint.string();
  CHECK(test::train_here(config).state.step == 2);
}

TEST_CASE("pyg's relative positions change their sign") {
  const ScratchDirectory scratch;
  const Config config = wave_config(scratch.path);
  const fs::path path = scratch.path / "pyg.safetensors";
  const FileTensors file = pyg_of_physicsnemo();
  write_tensors(path, file);
  Runtime runtime = test::make_runtime();
  const fs::path checkpoint = scratch.path / "pyg/last.safetensors";
  CHECK(import_weights(runtime, config, {path, WeightSource::pyg, checkpoint}).normalizers == "data");
  const FileTensors imported = read_tensors(checkpoint);
  const FileTensor& ours = imported.at("model.edge_encoder.linear_0.weight");
  const FileTensor& theirs = file.at("edge_encoder.0.weight");
  REQUIRE(ours.values.size() == theirs.values.size());
  for (size_t i = 0; i < ours.values.size(); ++i)
    CHECK(ours.values[i] == (i % 3 == 2 ? 1.0 : -1.0) * theirs.values[i]);
  CHECK(imported.at("normalizer.targets.count").values[0] > 0.0);

  FileTensors with_means = file;
  for (const auto& [name, width] : {std::pair("nodes", 11), std::pair("edges", 3), std::pair("targets", 2)}) {
    const FileTensor half{{width}, std::vector<double>(static_cast<size_t>(width), 0.5)};
    with_means[std::string("normalizer.") + name + ".mean"] = half;
    with_means[std::string("normalizer.") + name + ".std"] = half;
  }
  write_tensors(path, with_means);
  CHECK(import_weights(runtime, config, {path, WeightSource::pyg, checkpoint}).normalizers == "file");
  const Predictor predictor(runtime, checkpoint);
  const TrainedModel trained = predictor.trained();
  CHECK(trained.normalizers.edges.mean(0) == -0.5);
  CHECK(trained.normalizers.edges.mean(1) == -0.5);
  CHECK(trained.normalizers.edges.mean(2) == 0.5);
  CHECK(trained.normalizers.nodes.mean(0) == 0.5);
}

std::string import_error(const Config& config, const fs::path& file, WeightSource source) {
  Runtime runtime = test::make_runtime();
  try {
    import_weights(runtime, config, {file, source, fs::path(config.run.dir) / "last.safetensors"});
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST_CASE("files that are not what they are said to be") {
  const ScratchDirectory scratch;
  Config config = wave_config(scratch.path);
  const fs::path path = scratch.path / "theirs.safetensors";
  const auto error_of = [&](const std::function<void(FileTensors&)>& change) {
    FileTensors file = read_tensors(physicsnemo_file());
    change(file);
    write_tensors(path, file);
    return import_error(config, path, WeightSource::physicsnemo);
  };
  const std::string layer = "state.processor.processor_layers.3.node_mlp.model.";
  CHECK(contains(error_of([&](FileTensors& file) { file.erase(layer + "2.bias"); }),
                 "needed tensor processor.processor_layers.3.node_mlp.model.2.bias, got none"));
  CHECK(contains(
      error_of([&](FileTensors& file) { file.erase(layer + "5.weight"), file.erase(layer + "5.bias"); }),
      "needed a tensor for processor.1.node_mlp.norm.weight, got none"));
  const std::string shape = error_of([&](FileTensors& file) {
    file[layer + "2.weight"] = {{24, 2}, std::vector<double>(48)};
  });
  CHECK(contains(shape, layer + "2.weight"));
  CHECK(contains(shape, "[24, 24]"));
  CHECK(contains(shape, "[24, 2]"));
  CHECK(contains(error_of([&](FileTensors& file) {
                   file["state.head.weight"] = {{1}, {0.0}};
                 }),
                 "1 tensor of other names, such as state.head.weight"));
  CHECK(contains(error_of([&](FileTensors& file) {
                   file["normalizer.nodes.mean"] = {{1}, {0.0}};
                 }),
                 "needed tensor normalizer.nodes.std, got none"));
  CHECK(contains(import_error(config, physicsnemo_file(), WeightSource::deepmind),
                 "the layers of node_encoder"));
  config.data.node_types = 7;
  CHECK(contains(import_error(config, physicsnemo_file(), WeightSource::physicsnemo),
                 "needed 9 node inputs, as the data have, got 11"));
}

/// The case "nodes" of gat_small.safetensors, under the names of torch_geometric.nn.GAT: 3 heads of 4, then 2
/// of 3 whose mean is the prediction.
FileTensors pyg_gat() {
  FileTensors file;
  for (const auto& [name, tensor] : read_tensors(test::data_file("oracles/gat_small.safetensors"))) {
    if (!name.starts_with("nodes.")) continue;
    const std::string key = name.substr(6);
    if (key == "in.nodes") file["in.node_features"] = tensor;
    if (key == "in.senders" || key == "in.receivers" || key == "out.prediction") file[key] = tensor;
    if (!key.starts_with("param.")) continue;
    const bool last = key.starts_with("param.decoder");
    const std::string part = key.substr(14), to = last ? "convs.1." : "convs.0.";
    const std::vector<int64_t> heads = last ? std::vector<int64_t>{1, 2, 3} : std::vector<int64_t>{1, 3, 4};
    if (part == "values.weight") file[to + "lin.weight"] = tensor;
    if (part == "sender_score") file[to + "att_src"] = {heads, tensor.values};
    if (part == "receiver_score") file[to + "att_dst"] = {heads, tensor.values};
    if (part == "bias") file[to + "bias"] = tensor;
  }
  return file;
}

TEST_CASE("a GAT of PyTorch Geometric is read with its own prediction") {
  const ScratchDirectory scratch;
  const fs::path path = scratch.path / "gat.safetensors";
  const FileTensors whole = pyg_gat();
  REQUIRE(whole.size() == 12);
  write_tensors(path, whole);
  Runtime runtime = test::make_runtime();
  const auto check = [&](const FileTensors& file) {
    write_tensors(path, file);
    return check_weights(runtime, path, WeightSource::pyg, Activation::elu);
  };
  CHECK(check(whole).difference < 1e-12);
  FileTensors swapped = whole;
  std::swap(swapped["convs.0.att_src"], swapped["convs.0.att_dst"]);
  CHECK_FALSE(check(swapped).passed());
  FileTensors lacking = whole;
  lacking.erase("convs.1.bias");
  CHECK(contains(message_of([&] { check(lacking); }), "needed tensor convs.1.bias, got none"));
  FileTensors more = whole;
  more["convs.0.lin_edge.weight"] = {{12, 3}, std::vector<double>(36)};
  CHECK(contains(message_of([&] { check(more); }), "convs.0.lin_edge.weight"));

  write_tensors(path, whole);
  Config config = test::class_config(scratch.path, test::pack_rings(scratch.path));
  config.data.classes = 3;
  const fs::path checkpoint = scratch.path / "theirs/checkpoints/last.safetensors";
  const auto read = [&] { import_weights(runtime, config, {path, WeightSource::pyg, checkpoint}); };
  CHECK(contains(message_of(read), "[model.name] needed \"gat\", whose weights the file has"));
  config.model.name = ModelName::gat;
  CHECK(contains(message_of(read), "needed 2 node inputs, as the data have, got 5"));
  FileTensors narrow = whole;
  narrow["convs.0.lin.weight"] = column_block(whole.at("convs.0.lin.weight"), 0, 2);
  write_tensors(path, narrow);
  config.data.node_split = "";
  read();
  const Predictor predictor(runtime, checkpoint);
  CHECK(predictor.config().model.gat.output_heads == 2);
  CHECK(predict_table(predictor, {.split = "test"}).classes.size() == 12);
}

/// The graph of vgae_pyg.safetensors, as data of f32.
fs::path pack_vgae_graph(const fs::path& folder, const FileTensors& file) {
  const std::vector<double>&x = file.at("in.node_features").values, &senders = file.at("in.senders").values,
        &receivers = file.at("in.receivers").values;
  std::vector<int32_t> edges;
  for (size_t e = 0; e < senders.size(); ++e)
    edges.insert(edges.end(), {static_cast<int32_t>(senders[e]), static_cast<int32_t>(receivers[e])});
  const std::vector<int32_t> label(8, 0);
  const std::vector<uint8_t> split{1, 2, 3, 1, 1, 1, 1, 1};
  return test::pack_graph(
      folder, test::graph_arrays<int32_t>(edges, std::vector<float>(x.begin(), x.end()), label, split));
}

TEST_CASE("a VGAE of PyTorch Geometric is read with its own prediction") {
  const ScratchDirectory scratch;
  const fs::path path = scratch.path / "vgae.safetensors";
  const FileTensors whole = read_tensors(test::data_file("oracles/vgae_pyg.safetensors"));
  Runtime runtime = test::make_runtime();
  const auto check = [&](const FileTensors& file) {
    write_tensors(path, file);
    return check_weights(runtime, path, WeightSource::pyg, Activation::relu);
  };
  CHECK(check(whole).difference < 1e-6);  // coefficients of edges are in f32
  CHECK(check(whole).passed());
  CHECK(check(whole).edges == 12 + 8);
  FileTensors bare;  // of the encoder alone
  for (const auto& [name, tensor] : whole)
    bare[name.starts_with("encoder.") ? name.substr(8) : name] = tensor;
  CHECK(check(bare).difference == check(whole).difference);
  const auto changed = [&](const auto& change) {
    FileTensors file = whole;
    change(file);
    return file;
  };
  CHECK_FALSE(check(changed([](FileTensors& file) {
                std::swap(file["encoder.conv_mu.bias"], file["encoder.conv_logstd.bias"]);
              })).passed());
  CHECK_FALSE(check(changed([](FileTensors& file) {
                FileTensor& square = file["encoder.conv2.lin.weight"];
                square = transposed(square);
              })).passed());
  const auto refused = [&](const auto& change) { return message_of([&] { check(changed(change)); }); };
  CHECK(contains(refused([](FileTensors& file) { file.erase("encoder.conv1.bias"); }),
                 "needed tensor encoder.conv1.bias, got none"));
  CHECK(contains(refused([](FileTensors& file) {
                   FileTensor& both = file["encoder.conv_logstd.bias"];
                   both.shape = {4}, both.values.push_back(0.0);
                 }),
                 "encoder.conv_logstd.bias] needed the shape of encoder.conv_mu.bias, [3], got [4]"));
  CHECK(contains(refused([](FileTensors& file) {
                   file["encoder.conv1.att_src"] = {{1, 1, 6}, std::vector<double>(6)};
                 }),
                 "encoder.conv1.att_src"));

  check(whole);
  Config config = test::link_config(scratch.path, pack_vgae_graph(scratch.path, whole));
  config.precision = DType::f64;
  config.data.link_valid = config.data.link_test = 0.0;
  const fs::path checkpoint = scratch.path / "theirs/checkpoints/last.safetensors";
  const auto read = [&] { return import_weights(runtime, config, {path, WeightSource::pyg, checkpoint}); };
  config.model.vgae.feature_weight = 0.5;
  CHECK(contains(message_of([&] { read(); }), "[vgae.feature_weight] needed 0, as the file has no weights"));
  config.model.vgae.feature_weight = 0.0;
  config.model.vgae.encoder = VgaeEncoder::attention;
  CHECK(contains(message_of([&] { read(); }), "[vgae.encoder] needed \"convolution\", as in the file"));
  config.model.vgae.encoder = VgaeEncoder::convolution;
  const ImportReport report = read();
  CHECK(report.width == 6);
  CHECK(report.blocks == 2);
  CHECK(report.normalizers == "none");
  const Predictor predictor(runtime, checkpoint);
  CHECK(predictor.config().model.vgae.latent == 3);
  Normalizers normalizers = predictor.trained().normalizers;
  const Batch batch =
      training_batch(predictor.task(), runtime, DType::f64, "train", {{0, 0, 0}}, {}, normalizers);
  Tape tape(runtime, Tape::Mode::evaluate);
  const Tensor ours = forward(predictor.trained().model, tape, batch.graph).front().value();
  const std::vector<double>& theirs = whole.at("out.prediction").values;
  REQUIRE(ours.elements() == std::ssize(theirs));
  for (size_t i = 0; i < theirs.size(); ++i)
    CHECK(ours.data<double>()[i] == doctest::Approx(theirs[i]).epsilon(1e-5));
  config.normalize.mode = NormalizeMode::dataset;
  CHECK(read().normalizers == "data");
}

TEST_CASE("meshgrad import checks and writes a checkpoint") {
  const ScratchDirectory scratch;
  const std::string file = physicsnemo_file().string();
  const test::Outcome check = test::run_meshgrad({"import", file, "--from", "physicsnemo", "--check"});
  CHECK(check.code == 0);
  CHECK(contains(check.out, "check       passed on 64 nodes, 322 edges"));
  const fs::path other = scratch.path / "other.safetensors";
  test::change_tensors(file, other, [](const std::string& name, std::vector<double>& values) {
    if (name == "state.node_encoder.model.0.bias") values[0] += 1e-6;
  });
  CHECK(test::run_meshgrad({"import", other.string(), "--from", "physicsnemo", "--check"}).code == 1);
  const std::string config = test::write_config(scratch.path, wave_config(scratch.path));
  const std::string run = (scratch.path / "theirs").string();
  const test::Outcome made = test::run_meshgrad({"import", file, "--from", "physicsnemo", "--config", config,
                                                 "-o", run + "/checkpoints/last.safetensors"});
  CHECK(made.err == "");
  CHECK(contains(made.out, "normalisers from the data set: the file has none"));
  CHECK(test::run_meshgrad({"evaluate", run, "--split", "test"}).code == 0);
  CHECK(contains(test::run_meshgrad({"import", file, "--from", "physicsnemo", "-o", "x"}).err, "--config"));
}

}  // namespace
}  // namespace meshgrad
