// SPDX-License-Identifier: Apache-2.0
// Values and gradients that another framework computed in FP64, from a file of tests/data/oracles.
#pragma once
#include <meshgrad/nn/model.h>
#include <meshgrad/train/data/safetensors.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "paths.h"
#include "support.h"

namespace meshgrad::test {

class OracleFile {
 public:
  /// Of one case of the file: tensors are PREFIXin.nodes and so on.
  explicit OracleFile(const std::string& name, std::string prefix = "")
      : file_(source_file("tests/data/oracles/" + name)), prefix_(std::move(prefix)) {}

  bool has(const std::string& key) const { return file_.view().contains(prefix_ + key); }
  const SafetensorsTensor& at(const std::string& key) const { return file_.at(prefix_ + key); }
  std::vector<int64_t> integers(const std::string& key) const { return to_i64(at(key)); }
  std::vector<int32_t> indices(const std::string& key) const {
    const std::vector<int64_t> values = integers(key);
    return {values.begin(), values.end()};
  }
  Tensor tensor(Runtime& runtime, const std::string& key, bool is_matrix = true) const {
    const SafetensorsTensor& stored = at(key);
    Matrix values(is_matrix ? stored.shape.at(0) : 1, stored.shape.back());
    values.v = to_f64(stored);
    return is_matrix ? to_tensor(runtime, values, DType::f64) : to_vector(runtime, values, DType::f64);
  }
  /// The largest |difference|.
  double difference(const std::string& key, const Tensor& actual) const {
    const std::vector<double> expected = to_f64(at(key));
    const Matrix values = to_matrix(actual);
    REQUIRE(values.v.size() == expected.size());
    double largest = 0.0;
    for (size_t i = 0; i < expected.size(); ++i)
      largest = std::max(largest, std::abs(values.v[i] - expected[i]));
    return largest;
  }

  /// Allocates a model in f64 and gives it the file's parameters, all of which it has.
  void set_parameters(Runtime& runtime, Model& model) const {
    model.parameters.allocate(runtime, DType::f64, 1);
    int64_t stored = 0;
    for (const SafetensorsTensor& tensor : file_.view().tensors)
      stored += tensor.name.starts_with(prefix_ + "param.") ? 1 : 0;
    REQUIRE(stored == std::ssize(model.parameters.parameters()));
    for (size_t i = 0; i < model.parameters.parameters().size(); ++i) {
      const ParameterInfo& info = model.parameters.parameters()[i];
      from_file_order(info, tensor(runtime, "param." + info.name, info.is_matrix()),
                      model.parameters.value(i));
    }
  }
  void check_gradients(const Model& model, double tolerance) const {
    for (size_t i = 0; i < model.parameters.parameters().size(); ++i) {
      const ParameterInfo& info = model.parameters.parameters()[i];
      CAPTURE(info.name);
      CHECK(difference("grad." + info.name, to_file_order(info, model.parameters.gradient(i))) < tolerance);
    }
  }

 private:
  SafetensorsFile file_;
  std::string prefix_;
};

}  // namespace meshgrad::test
