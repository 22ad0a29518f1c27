/* SPDX-License-Identifier: Apache-2.0
 * A heat solver that lets the model of examples/cpp/heat.cpp take its steps, and takes those itself whose state is out of
 * the model's range: docs/embedding.md. */
#include <math.h>
#include <meshgrad.h>
#include <stdio.h>
#include <string.h>

enum { side = 9, nodes = side * side, cells = (side - 1) * (side - 1), steps = 40, pulse = 20 };
static int32_t type[nodes]; /* 0 is predicted, 1 keeps its value */

/* The solver's own step. */
static void solve(double *u) {
  double old[nodes];
  memcpy(old, u, sizeof old);
  for (int i = 0; i < nodes; ++i)
    if (type[i] == 0) u[i] += 0.1 * (old[i - 1] + old[i + 1] + old[i - side] + old[i + side] - 4 * old[i]);
}

int main(int count, char **words) {
  double xy[nodes][2], start[nodes], u[nodes], solution[nodes];
  int32_t quads[side - 1][side - 1][4];
  for (int32_t i = 0; i < nodes; ++i) {
    const int x = i % side, y = i / side;
    xy[i][0] = x / (side - 1.0), xy[i][1] = y / (side - 1.0);
    start[i] = sin(3.14159265 * xy[i][0]) * sin(3.14159265 * xy[i][1]);
    u[i] = solution[i] = 0.6 * start[i];
    type[i] = x == 0 || y == 0 || x == side - 1 || y == side - 1;
    for (int k = 0; k < 4 && x < side - 1 && y < side - 1; ++k)
      quads[y][x][k] = i + (int[]){0, 1, side + 1, side}[k];
  }
  const meshgrad_mesh mesh = meshgrad_mesh_of_cells(
      meshgrad_f64(xy[0], nodes, 2), meshgrad_i32(quads[0][0], cells, 4), meshgrad_i32(type, nodes, 1));
  const meshgrad_array field = meshgrad_f64(u, nodes, 1);
  meshgrad_predictor *predictor = NULL;
  int failed = meshgrad_predictor_open(count > 1 ? words[1] : "heat.safetensors", &predictor) ||
               meshgrad_predictor_set_mesh(predictor, &mesh);
  int predicted = 0, solved = 0;
  double error = 0, size = 0;
  for (int step = 0; step < steps && !failed; ++step) {
    for (int i = 0; i < nodes && step == pulse; ++i) /* hotter than the model has ever seen */
      u[i] += 2 * start[i], solution[i] += 2 * start[i];
    double excess = 0;
    failed = meshgrad_predictor_set_field(predictor, 0, "u", &field) ||
             meshgrad_predictor_range_excess(predictor, 0, &excess, NULL);
    if (!failed && excess > 0.02) { /* of the range of the training */
      solve(u);
      ++solved;
    } else if (!failed) {
      failed = meshgrad_predictor_predict(predictor, 1) || meshgrad_predictor_get_field(predictor, 0, "u", &field);
      ++predicted;
    }
    solve(solution);
  }
  for (int i = 0; i < nodes; ++i)
    error += pow(u[i] - solution[i], 2), size += pow(solution[i], 2);
  if (failed) fprintf(stderr, "%s\n", meshgrad_last_error());
  else printf("%d steps predicted, %d solved; relative error %.3f\n", predicted, solved, sqrt(error / size));
  meshgrad_predictor_destroy(predictor);
  return failed || predicted <= pulse || solved == 0 || !(sqrt(error / size) < 0.3);
}
