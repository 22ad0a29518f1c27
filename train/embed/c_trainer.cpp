// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/train/embed/c_border.h>
#include <meshgrad/train/embed/ghost_rows.h>
#include <meshgrad/train/embed/online_trainer.h>

#include <functional>

namespace meshgrad::c {
namespace {

meshgrad_trainer_options default_options() {
  const OnlineOptions defaults;
  return {.dim = defaults.dim,
          .capacity = defaults.capacity,
          .held_out_every = defaults.held_out_every,
          .held_out = defaults.held_out};
}

OnlineOptions options_of(const meshgrad_trainer_options& given_options) {
  OnlineOptions options;
  options.dim = given_options.dim;
  options.dt = given_options.dt;
  if (given_options.most_recent != 0 && given_options.most_recent != 1) {
    throw invalid_argument("meshgrad_trainer_options: most_recent", "0 or 1",
                           std::to_string(given_options.most_recent), "1 keeps the newest samples");
  }
  options.replay = given_options.most_recent != 0 ? Replay::most_recent : Replay::reservoir;
  options.capacity = given_options.capacity;
  options.held_out_every = given_options.held_out_every;
  options.held_out = given_options.held_out;
  for (int32_t i = 0; i < given_options.field_count; ++i) {
    const meshgrad_field& field = (&given(given_options.fields, "meshgrad_trainer_options: fields"))[i];
    options.fields.push_back({.name = &given(field.name, "meshgrad_field: name"),
                              .components = field.components,
                              .unit = field.unit == nullptr ? "" : field.unit,
                              .on = field.on_graph != 0 ? FieldOn::graph : FieldOn::node});
  }
  return options;
}

/// Where `body` throws, the other ranks refuse the trainers that they are making.
void or_refuse_on_ranks(Ranks& ranks, const std::function<void()>& body) {
  try {
    body();
  } catch (...) {
    const auto refuse = [] { throw; };
    try {
      on_all_ranks(ranks, refuse, "OnlineTrainer");  // as the constructor of the others' OnlineTrainer does
    } catch (...) {                                  // the caller gets the reason instead
    }
    throw;
  }
}

}  // namespace
}  // namespace meshgrad::c

using namespace meshgrad;
using namespace meshgrad::c;

void meshgrad_trainer_options_init_sized(meshgrad_trainer_options* options, size_t size) {
  initialise(options, size, default_options());
}

int meshgrad_trainer_create(meshgrad_runtime* runtime, const meshgrad_trainer_options* options,
                            meshgrad_trainer** trainer) {
  return guarded([&] {
    given(trainer, "meshgrad_trainer_create: trainer") = nullptr;
    meshgrad_runtime& on = given(runtime, "runtime");
    OnlineOptions ours;
    Config config;
    or_refuse_on_ranks(on.ranks, [&] {
      const meshgrad_trainer_options all =
          completed(given(options, "options"), default_options(), {}, "meshgrad_trainer_options");
      ours = options_of(all);
      config = parse_config(&given(all.config, "meshgrad_trainer_options: config"),
                            "meshgrad_trainer_options: config");
    });
    *trainer = new meshgrad_trainer{RuntimeUse(on), OnlineTrainer(on.runtime, config, ours, &on.ranks)};
  });
}

int meshgrad_trainer_load(meshgrad_runtime* runtime, const char* path, meshgrad_trainer** trainer) {
  return guarded([&] {
    given(trainer, "meshgrad_trainer_load: trainer") = nullptr;
    meshgrad_runtime& on = given(runtime, "runtime");
    or_refuse_on_ranks(on.ranks, [&] { given(path, "path"); });
    *trainer = new meshgrad_trainer{RuntimeUse(on), OnlineTrainer(on.runtime, path, &on.ranks)};
  });
}

void meshgrad_trainer_destroy(meshgrad_trainer* trainer) { delete trainer; }

int meshgrad_trainer_set_mesh(meshgrad_trainer* trainer, const meshgrad_mesh* mesh) {
  return guarded([&] {
    OnlineTrainer& ours = given(trainer, "trainer").trainer;
    Meshes::read(trainer->runtime, mesh, 1, ours.options().dim,
                 [&](std::span<const MeshArrays> arrays) { ours.set_mesh(arrays.front()); });
  });
}

int meshgrad_trainer_set_field(meshgrad_trainer* trainer, const char* name, const meshgrad_array* values) {
  return guarded([&] {
    OnlineTrainer& ours = given(trainer, "trainer").trainer;
    ours.forget_field(&given(name, "name"));  // where the values are refused it has none
    check_columns(given(values, name), components_of(ours.options().fields, name), name);
    ours.set_field(name, numbers_of(trainer->runtime->runtime, *values, name));
  });
}

int meshgrad_trainer_append(meshgrad_trainer* trainer) {
  return guarded([&] { given(trainer, "trainer").trainer.append(); });
}

int meshgrad_trainer_restart_trajectory(meshgrad_trainer* trainer) {
  return guarded([&] { given(trainer, "trainer").trainer.restart_trajectory(); });
}

int meshgrad_trainer_train(meshgrad_trainer* trainer, int64_t steps, double seconds, int64_t* taken,
                           double* loss) {
  return guarded([&] {
    const OnlineTrainer::Trained result = seconds < 0
                                              ? given(trainer, "trainer").trainer.train(steps)
                                              : given(trainer, "trainer").trainer.train(steps, seconds);
    if (taken != nullptr) *taken = result.steps;
    if (loss != nullptr) *loss = result.loss;
  });
}

int meshgrad_trainer_held_out_loss(meshgrad_trainer* trainer, double* loss) {
  return guarded([&] { given(loss, "loss") = given(trainer, "trainer").trainer.held_out_loss(); });
}

int meshgrad_trainer_counts(const meshgrad_trainer* trainer, int64_t* steps, int64_t* samples,
                            int64_t* seen) {
  return guarded([&] {
    const OnlineTrainer& ours = given(trainer, "trainer").trainer;
    if (steps != nullptr) *steps = ours.steps();
    if (samples != nullptr) *samples = ours.samples();
    if (seen != nullptr) *seen = ours.seen();
  });
}

int meshgrad_trainer_save(const meshgrad_trainer* trainer, const char* path) {
  return guarded([&] { given(trainer, "trainer").trainer.save(&given(path, "path")); });
}
