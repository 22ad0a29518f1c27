/* SPDX-License-Identifier: Apache-2.0
 * Predicts 10 steps of the checkpoint of examples/cpp/heat.cpp on a mesh in memory: docs/embedding.md. */
#include <math.h>
#include <meshgrad.h>
#include <stdio.h>

int main(int count, char **words) {
  enum { side = 9, nodes = side * side, cells = (side - 1) * (side - 1) };
  double xy[nodes][2], u[nodes];
  int32_t quads[side - 1][side - 1][4], type[nodes]; /* of nodes: 0 is predicted, 1 keeps its value */
  for (int32_t i = 0; i < nodes; ++i) {
    const int x = i % side, y = i / side;
    xy[i][0] = x / (side - 1.0), xy[i][1] = y / (side - 1.0);
    u[i] = sin(3.14159265 * xy[i][0]) * sin(3.14159265 * xy[i][1]);
    type[i] = x == 0 || y == 0 || x == side - 1 || y == side - 1;
    for (int k = 0; k < 4 && x < side - 1 && y < side - 1; ++k)
      quads[y][x][k] = i + (int[]){0, 1, side + 1, side}[k];
  }
  const meshgrad_mesh mesh = meshgrad_mesh_of_cells(
      meshgrad_f64(xy[0], nodes, 2), meshgrad_i32(quads[0][0], cells, 4), meshgrad_i32(type, nodes, 1));
  const meshgrad_array field = meshgrad_f64(u, nodes, 1);
  meshgrad_predictor *predictor = NULL;
  const int failed = meshgrad_predictor_open(count > 1 ? words[1] : "heat.safetensors", &predictor) ||
                     meshgrad_predictor_set_mesh(predictor, &mesh) || meshgrad_predictor_set_field(predictor, 0, "u", &field) ||
                     meshgrad_predictor_predict(predictor, 10) || meshgrad_predictor_get_field(predictor, 0, "u", &field);
  if (failed) fprintf(stderr, "%s\n", meshgrad_last_error());
  else printf("u in the middle after 10 steps: %.4f\n", u[nodes / 2]);
  meshgrad_predictor_destroy(predictor);
  return failed;
}
