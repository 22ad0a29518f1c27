/* SPDX-License-Identifier: Apache-2.0
 * Predicts 10 steps of the checkpoint of examples/cpp/heat.cpp on a mesh in memory: docs/embedding.md. */
#include <math.h>
#include <meshgrad.h>
#include <stdio.h>
#include <string.h>

int main(int count, char **words) {
  enum { side = 9, nodes = side * side, cells = (side - 1) * (side - 1) };
  double xy[nodes][2], u[nodes];
  int32_t quads[cells][4], type[nodes], cell = 0;
  for (int32_t i = 0; i < nodes; ++i) {
    const int x = i % side, y = i / side;
    xy[i][0] = x / (side - 1.0), xy[i][1] = y / (side - 1.0);
    u[i] = sin(3.14159265 * xy[i][0]) * sin(3.14159265 * xy[i][1]);
    type[i] = x == 0 || y == 0 || x == side - 1 || y == side - 1; /* 0: predicted, 1: kept at its value */
    if (x < side - 1 && y < side - 1)
      memcpy(quads[cell++], (int32_t[]){i, i + 1, i + side + 1, i + side}, sizeof *quads);
  }
  meshgrad_mesh mesh;
  meshgrad_mesh_init(&mesh);
  mesh.positions = (meshgrad_array){xy, MESHGRAD_F64, 2, {nodes, 2}, MESHGRAD_CPU};
  mesh.cells = (meshgrad_array){quads, MESHGRAD_I32, 2, {cells, 4}, MESHGRAD_CPU};
  mesh.node_type = (meshgrad_array){type, MESHGRAD_I32, 1, {nodes}, MESHGRAD_CPU};
  const meshgrad_array field = {u, MESHGRAD_F64, 1, {nodes}, MESHGRAD_CPU};

  meshgrad_runtime *runtime = NULL;
  meshgrad_predictor *predictor = NULL;
  const int failed = meshgrad_runtime_create(NULL, &runtime) ||
                     meshgrad_predictor_create(runtime, count > 1 ? words[1] : "heat.safetensors", &predictor) ||
                     meshgrad_predictor_set_mesh(predictor, &mesh) ||
                     meshgrad_predictor_set_field(predictor, 0, "u", &field) ||
                     meshgrad_predictor_predict(predictor, 10) ||
                     meshgrad_predictor_get_field(predictor, 0, "u", &field);
  if (failed) fprintf(stderr, "%s\n", meshgrad_last_error());
  else printf("u in the middle after 10 steps: %.4f\n", u[nodes / 2]);
  meshgrad_predictor_destroy(predictor);
  meshgrad_runtime_destroy(runtime);
  return failed;
}
