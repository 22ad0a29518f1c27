// SPDX-License-Identifier: Apache-2.0
// meshgrad.h in the child of fork(). ThreadSanitizer runs these tests, too.
#include <doctest/doctest.h>
#include <meshgrad/engine/device.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "support.h"
#include "train/embed/c_cases.h"
#include "train/process.h"

namespace meshgrad::test::c_interface {
namespace {

/// What a child makes of `body`, an exit code; -1 when it fails.
int in_child(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(300);  // of a child that waits for threads that it does not have
    try {
      _exit(body());
    } catch (const std::exception& error) {
      std::fputs(error.what(), stderr);
    }
    _exit(255);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return exit_code_of_status(status);
}

TEST_CASE("the child of fork() makes a runtime of its own") {
  Host c({}, 0);
  auto both = std::make_unique<Predictors>(c, flow_checkpoint());
  Handle<meshgrad_trainer> trainer = c.trainer();
  const HostMesh mesh = c.mesh();
  const HostValues<float> velocity = c.velocity(0), load = c.load();
  both->set_meshes(mesh.mesh, 2);
  both->call(meshgrad_predictor_record_steps, &MeshPredictor::record_steps, 1);
  c.call(meshgrad_trainer_set_mesh, trainer, &mesh.mesh).ok();
  const auto work = [&] {
    for (int32_t i = 0; i < 2; ++i) both->set_fields(velocity, load, i);
    both->predict(2);
    both->compare_field(1);
    both->set(meshgrad_predictor_set_gradient, &MeshPredictor::set_gradient, "velocity", velocity, 1);
    both->call(meshgrad_predictor_backward, &MeshPredictor::backward);
    both->compare(meshgrad_predictor_get_gradient, &MeshPredictor::get_gradient, "velocity", 1);
    for (int frame = 0; frame < 3; ++frame) append_frame(c, trainer, velocity, load);
    int64_t taken = 0;
    c.call(meshgrad_trainer_train, trainer, 2, -1.0, &taken, nullptr).ok();
    same(taken, int64_t{2});
  };
  work();
  const int code = in_child([&] {
    work();
    both.reset();
    trainer.reset();
    meshgrad_runtime_destroy(c.runtime);
#if !defined(__SANITIZE_THREAD__)  // it ends a child that starts threads
    Host own({}, 1);
    for (const Case& each : cases()) each.run(own);
#endif
    return 7;
  });
  CHECK(code == 7);
  work();  // the parent's handles are as they were
}

constexpr const char* kLeftBehind = "made before fork(); fix: make a runtime in this process";

int refused(const Answer& answer) {
  return answer.status == MESHGRAD_INVALID_ARGUMENT && contains(answer.text, kLeftBehind) ? 1 : 0;
}

/// The same through C++.
int refused_in_cpp(const std::function<void()>& call) {
  return contains(invalid_argument_text(call), kLeftBehind) ? 1 : 0;
}

/// Of six calls a child is refused all. There the handles, and the objects of C++, end without a trace; here
/// they then go on.
void refuse_to_child(Host& c) {
  Handle<meshgrad_predictor> predictor = c.predictor(flow_checkpoint());
  Handle<meshgrad_trainer> trainer = c.trainer();
  auto own_predictor =
      std::make_unique<MeshPredictor>(c.runtime->runtime, flow_checkpoint(), &c.runtime->ranks);
  auto own_trainer = std::make_unique<OnlineTrainer>(c.runtime->runtime, config_of(kFlow), online_options(),
                                                     &c.runtime->ranks);
  const HostMesh mesh = c.mesh();
  same(in_child([&] {
         meshgrad_predictor* another = nullptr;
         const int right =
             refused(c.call(meshgrad_predictor_set_mesh, predictor, &mesh.mesh)) +
             refused(c.call(meshgrad_predictor_create, c.runtime, flow_checkpoint().c_str(), &another)) +
             refused(c.call(meshgrad_trainer_train, trainer, 1, -1.0, nullptr, nullptr)) +
             refused(c.call(meshgrad_trainer_set_mesh, trainer, &mesh.mesh)) +
             refused_in_cpp([&] { own_predictor->predict(1); }) +
             refused_in_cpp([&] { own_trainer->append(); });
         own_predictor.reset();
         own_trainer.reset();
         predictor.reset();
         trainer.reset();
         meshgrad_runtime_destroy(c.runtime);
         return right;
       }),
       6);
  c.call(meshgrad_predictor_set_mesh, predictor, &mesh.mesh).ok();
  c.call(meshgrad_trainer_train, trainer, 1, -1.0, nullptr, nullptr).ok();
  own_trainer->train(1);
}

TEST_CASE("the child of fork() is refused a communicator's handles") {
  CHECK(run_hosts({.ranks = 3}, refuse_to_child) == Endings(3));
}

TEST_CASE("the child of fork() is refused handles on a GPU" * doctest::skip(cuda_devices().empty())) {
  CHECK(run_hosts({.on_device = true}, refuse_to_child) == Endings(1));
}

}  // namespace
}  // namespace meshgrad::test::c_interface
