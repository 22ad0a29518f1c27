// SPDX-License-Identifier: Apache-2.0
// A model trains within a solver of GetFEM (Debian's libgetfem-dev), then takes 20 steps in its place: heat
// in a plate whose edge stays at 0, linear triangles, implicit Euler. docs/embedding.md; examples/getfem/run
// builds and runs it.
#include <getfem/getfem_model_solvers.h>
#include <getfem/getfem_models.h>
#include <getfem/getfem_regular_meshes.h>

#include <meshgrad/engine/error.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/embed/mesh_predictor.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <cmath>
#include <cstdio>

namespace {

using Field = std::vector<double>;

/// GetFEM's side: mesh, finite elements, bricks and time integration.
class Plate {
 public:
  Plate() : fem_(mesh_), integration_(mesh_), model_() {
    getfem::regular_unit_mesh(mesh_, {14, 14}, bgeot::simplex_geotrans(2, 1), true);  // irregular triangles
    fem_.set_classical_finite_element(1);
    integration_.set_integration_method(2);
    getfem::mesh_region edge = getfem::outer_faces_of_mesh(mesh_);
    mesh_.region(kEdge) = edge;
    model_.add_fem_variable("u", fem_);
    model_.add_initialized_scalar_data("conductivity", 0.02);
    getfem::add_generic_elliptic_brick(model_, integration_, "u", "conductivity");
    getfem::add_Dirichlet_condition_with_multipliers(model_, integration_, "u", fem_, kEdge);
    getfem::add_theta_method_for_first_order(model_, "u", 1.0);
    getfem::add_mass_brick(model_, integration_, "Dot_u");
    model_.set_time_step(0.05);
  }
  size_t nodes() const { return fem_.nb_dof(); }
  double x(size_t node, int axis) const { return fem_.point_of_basic_dof(node)[axis]; }

  /// What meshgrad reads: in GetFEM's own numbers of degrees of freedom.
  Field positions() const {
    Field values;
    for (size_t i = 0; i < nodes(); ++i) values.insert(values.end(), {x(i, 0), x(i, 1)});
    return values;
  }
  std::vector<int32_t> triangles() const {
    std::vector<int32_t> numbers;
    for (dal::bv_visitor cell(mesh_.convex_index()); !cell.finished(); ++cell)
      for (const size_t node : fem_.ind_basic_dof_of_element(cell))
        numbers.push_back(static_cast<int32_t>(node));
    return numbers;
  }
  std::vector<int32_t> node_types() const {
    std::vector<int32_t> types(nodes(), 0);
    const dal::bit_vector on_edge = fem_.basic_dof_on_region(kEdge);
    for (dal::bv_visitor node(on_edge); !node.finished(); ++node) types[node] = 1;
    return types;
  }

  void start(double a, double b, double c) {
    current_.resize(nodes());
    const double pi = std::acos(-1.0);
    for (size_t i = 0; i < nodes(); ++i) {
      const double sx = std::sin(pi * x(i, 0)), sy = std::sin(pi * x(i, 1));
      current_[i] = sx * sy * (a + b * std::cos(pi * x(i, 0)) + c * std::cos(pi * x(i, 1)));
    }
    model_.set_real_variable("Previous_u") = current_;
  }
  void step() {
    gmm::iteration iteration(1e-10);
    getfem::standard_solve(model_, iteration);
    gmm::copy(model_.real_variable("u"), current_);
    model_.shift_variables_for_time_integration();
  }
  const Field& u() const { return current_; }

 private:
  static constexpr size_t kEdge = 1;
  getfem::mesh mesh_;
  getfem::mesh_fem fem_;
  getfem::mesh_im integration_;
  getfem::model model_;
  Field current_;
};

int run() {
  Plate plate;
  const Field positions = plate.positions();
  const std::vector<int32_t> triangles = plate.triangles(), types = plate.node_types();
  const meshgrad::MeshArrays mesh{
      .positions = positions, .cells = triangles, .nodes_per_cell = 3, .node_type = types};
  const meshgrad::Config config = meshgrad::parse_config(R"(
    [data]
    inputs = ["u"]
    targets = ["u"]
    node_types = 2
    predicted_types = [0]
    noise_types = [0]
    [model]
    width = 32
    blocks = 4
    [train]
    steps = 2400
    noise = 1e-4
    [optimizer]
    lr = 2e-3
  )",
                                                         "heat.cpp");
  meshgrad::Runtime runtime({.threads = 2});
  meshgrad::OnlineTrainer trainer(runtime, config, {.dim = 2, .fields = {{.name = "u", .components = 1}}});
  trainer.set_mesh(mesh);
  for (int run = 0; run < 12; ++run) {
    plate.start(1.0 - 0.1 * run, 0.2 * run - 1.0, std::sin(run));
    trainer.restart_trajectory();
    for (int t = 0; t < 25; ++t, plate.step()) {
      trainer.set_field("u", plate.u());
      trainer.append();
      trainer.train(8);
    }
  }
  std::printf("%zu nodes, held-out loss after %d steps: %.2e\n", plate.nodes(),
              static_cast<int>(trainer.steps()), trainer.held_out_loss());
  trainer.save("getfem_heat.safetensors");

  meshgrad::MeshPredictor predictor(runtime, "getfem_heat.safetensors");
  predictor.set_mesh(mesh);
  plate.start(0.45, -0.3, 0.4);
  predictor.set_field("u", plate.u());
  predictor.predict(20);
  Field predicted(plate.nodes());
  predictor.get_field("u", predicted);
  for (int t = 0; t < 20; ++t) plate.step();
  double error = 0, size = 0;
  for (size_t i = 0; i < predicted.size(); ++i) {
    error += std::pow(predicted[i] - plate.u()[i], 2);
    size += std::pow(plate.u()[i], 2);
  }
  std::printf("relative error of 20 predicted steps: %.3f\n", std::sqrt(error / size));
  return error < 0.04 * size ? 0 : 1;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
