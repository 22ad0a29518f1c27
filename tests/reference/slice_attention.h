// SPDX-License-Identifier: Apache-2.0
// Reference implementation of slice_attention (kernels/slice_attention.h): node by node, with every soft
// weight written down.
#pragma once
#include "reference/matrix.h"

namespace meshgrad::reference {

struct Slices {
  int64_t heads = 1;
  std::vector<int32_t> starts;
  Matrix keys, weight, bias, temperatures;  // the last two: one row

  int64_t columns() const { return weight.rows; }
  int64_t slices() const { return weight.cols; }
  int64_t graphs() const { return static_cast<int64_t>(starts.size()) - 1; }
  int64_t tokens() const { return graphs() * heads * slices(); }
};
/// Of what is spread or collected, and of the soft weights.
struct SliceGradients {
  Matrix d_other, d_keys, d_weight, d_bias, d_temperatures;
};

/// [nodes, heads slices].
Matrix soft_weights(const Slices& a);

struct SliceTokens {
  Matrix tokens, sizes;  // [tokens, columns], [1, tokens]
};
SliceTokens slice_tokens(const Slices& a, const Matrix& values);
SliceGradients slice_tokens_backward(const Slices& a, const Matrix& values, const Matrix& d_tokens);
Matrix slice_spread(const Slices& a, const Matrix& tokens);
SliceGradients slice_spread_backward(const Slices& a, const Matrix& tokens, const Matrix& d_out);

struct Tokens {
  int64_t slices = 1;
  Matrix queries, keys, values;
};
Matrix token_attention(const Tokens& t);
struct TokenGradients {
  Matrix d_queries, d_keys, d_values;
};
TokenGradients token_attention_backward(const Tokens& t, const Matrix& d_out);

}  // namespace meshgrad::reference
