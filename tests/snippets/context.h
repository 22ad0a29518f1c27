// SPDX-License-Identifier: Apache-2.0
// What snippets of C++ in the docs take as given; compile.py compiles each after this.
#pragma once
#include <meshgrad/autograd/ops.h>
#include <meshgrad/engine/memory/caching_allocator.h>
#include <meshgrad/engine/memory/source.h>
#include <meshgrad/nn/mesh_graph_net.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>
#include <meshgrad/train/embed/predictor.h>
#include <meshgrad/train/learn/run/optimizer.h>
#include <meshgrad/train/learn/train.h>

#include <cstdio>
#include <string>
#include <vector>

using namespace meshgrad;

struct Solver {
  void step();
};
void* solver_malloc(int64_t bytes);
void solver_free(void* memory);

extern Runtime runtime;
extern GraphBatch batch;
extern Tensor target, mask;
extern MeshArrays mesh;
extern std::vector<float> xy, velocity, u;
extern std::vector<int32_t> triangles, type;
extern Config config;
extern Solver solver;
