// SPDX-License-Identifier: Apache-2.0
#include "gradcheck_samples.h"

namespace meshgrad {

void add_slices(Runtime& runtime, Source& source, std::vector<OpSample>& list) {
  // A graph without nodes, and one of a single node.
  const std::vector<int32_t> begins{0, 3, 3, 4, 6};
  SliceInputs in{.heads = 2,
                 .graph_starts = Tensor::from<int32_t>(runtime, begins, Shape{5}, Tag::data, "graph starts"),
                 .keys = source.leaf({6, 4}),
                 .weight = source.weight({2, 3}),
                 .bias = source.weight({3}),
                 .temperatures = source.weight({2})};
  // One of them counts as the least.
  const std::vector<double> temperatures{0.75, 0.0625};
  dispatch_storage(in.temperatures.value.dtype(), [&]<class T>() {
    for (size_t h = 0; h < 2; ++h) in.temperatures.value.data<T>()[h] = static_cast<T>(temperatures[h]);
  });
  const std::vector<Weight> weights{in.weight, in.bias, in.temperatures};
  const Variable values = source.leaf({6, 4}), tokens = source.leaf({24, 2});
  // Ops that are used twice, so that the second gradient is added to the first.
  list.push_back({"slice_tokens", "", {in.keys, values}, weights, [=](Tape& t) {
                    return std::vector{ops::slice_tokens(t, in, values), ops::slice_tokens(t, in, values)};
                  }});
  list.push_back({"slice_tokens", "of the keys", {in.keys}, weights, [=](Tape& t) {
                    return std::vector{ops::slice_tokens(t, in, in.keys)};
                  }});
  list.push_back({"slice_spread", "", {in.keys, tokens}, weights, [=](Tape& t) {
                    return std::vector{ops::slice_spread(t, in, tokens), ops::slice_spread(t, in, tokens)};
                  }});
  const Variable queries = source.leaf({6, 2}), keys = source.leaf({6, 2}), taken = source.leaf({6, 2});
  list.push_back({"token_attention", "", {queries, keys, taken}, {}, [=](Tape& t) {
                    return std::vector{ops::token_attention(t, 3, queries, keys, taken),
                                       ops::token_attention(t, 2, taken, keys, keys)};
                  }});
}

}  // namespace meshgrad
