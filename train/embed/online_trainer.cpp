// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/engine/error.h>
#include <meshgrad/engine/random.h>
#include <meshgrad/engine/ranks/collectives.h>
#include <meshgrad/engine/runtime.h>
#include <meshgrad/train/data/world_edges.h>
#include <meshgrad/train/embed/online_trainer_state.h>
#include <meshgrad/train/learn/config/config_table.h>
#include <meshgrad/train/learn/run/batch_loader.h>
#include <meshgrad/train/learn/run/checkpoint.h>
#include <meshgrad/train/learn/run/checkpoint_check.h>
#include <meshgrad/train/learn/run/part_step.h>
#include <meshgrad/train/learn/run/same_config.h>
#include <meshgrad/train/learn/run/step_cache.h>
#include <meshgrad/train/learn/run/validation.h>
#include <meshgrad/train/learn/task/batch_rows.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

namespace meshgrad {
namespace {

namespace fs = std::filesystem;

/// Ranks that would train different models would wait for each other, or spoil the sums.
void check_same_on_ranks(Ranks& ranks, Config config, int64_t steps) {
  constexpr const char* kFix = "create it alike on all ranks, or load files that were saved together";
  config.run.dir.clear();
  check_same_config(ranks, config, kFix);
  const std::vector<int64_t> all = all_gather(ranks, steps, "start of an OnlineTrainer");
  const auto other = std::ranges::find_if(all, [&](int64_t there) { return there != all.front(); });
  if (other == all.end()) return;
  throw config_error("OnlineTrainer", "as many steps on all ranks",
                     fmt::format("{} on rank 0 and {} on rank {}", all.front(), *other, other - all.begin()),
                     kFix);
}

/// What `make` gives, unless it throws on one of the ranks.
template <class Make>
auto on_ranks(Ranks* ranks, const Make& make) {
  if (ranks == nullptr) return make().release();
  decltype(make()) made;
  on_all_ranks(
      *ranks, [&] { made = make(); }, "OnlineTrainer");
  return made.release();
}

OnlineOptions saved_options(const fs::path& saved) {
  const SafetensorsFile file = open_checkpoint(saved);
  OnlineOptions options = ReplayBuffer::saved_options(file.view());
  const TrainingData data = checkpoint_training_data(saved).value();
  options.dim = data.dim;
  options.dt = data.dt;
  options.fields = data.fields;
  return options;
}

/// The normalisers learn from the nodes that this rank owns, and from its edges.
void learn_from_part(Runtime& runtime, const Task& task, MeshParts& parts, std::string_view split,
                     const std::vector<Sample>& samples, const NoiseOptions& noise, DType precision,
                     Normalizers& to) {
  const auto unchanged = [](const Normalizer& one) {
    return Normalizer::fixed(std::vector<double>(one.width(), 0.0), std::vector<double>(one.width(), 1.0));
  };
  Normalizers none{unchanged(to.nodes), unchanged(to.edges), unchanged(to.targets)};
  const DType dtype = accumulator_of(precision);
  const BatchLayout layout = task.layout(task.shape(split, samples), dtype, BatchLayout::Sizes::exact);
  const Batch whole = layout.batch(batch_memory_to_write(runtime, layout.bytes()));
  SampleScratch scratch;
  task.write(whole, split, samples, noise, none, false, scratch);
  const std::vector<MeshView> meshes = meshes_of(task.dataset(), split, samples);
  const BatchLayout part = part_layout(task, parts, meshes, whole, dtype);
  const Batch own = part.batch(batch_memory_to_write(runtime, part.bytes()));
  write_part(whole, parts.part(meshes, whole.graph, parts.rank()), own);
  dispatch_storage(dtype, [&]<class T>() {
    const auto learn = [](Normalizer& one, const Tensor& rows) {
      one.accumulate(std::span<const T>(rows.values<T>()));
    };
    learn(to.nodes, own.graph.node_features);
    learn(to.edges, own.graph.edges(kMeshEdges).features);
    learn(to.targets, own.tensor("target"));
  });
}

}  // namespace

/// A frame that is refused later would be drawn by one step after another.
void OnlineTrainer::State::check_world_edges() {
  const WorldEdgeSearch& world = task.mesh().world;
  if (!world.any()) return;
  const MeshView& mesh = buffer.mesh();
  const std::string& position = task.mesh().fields.world_position->field.name;
  const int64_t edges = count_world_edges(mesh, buffer.current(position), world.dim(), world.options());
  if (edges <= world.limit(mesh.nodes)) return;
  throw world.refused(
      mesh.nodes, edges, "the current frame",
      "leave the frame out and call restart_trajectory; a trainer with a larger value takes more memory");
}

void OnlineTrainer::State::warn_of_data() {
  const FieldSelection& fields = task.mesh().fields;
  for (const std::string& text : learned_scale_warnings(fields, normalizers)) warn(text);
  if (config.train.noise_warmup_steps > 0) return;  // the statistics have noise of several sizes
  for (const std::string& text : learned_noise_warnings(fields, normalizers, noise_of(config))) warn(text);
}

/// Ranges of the current frame's fields.
void OnlineTrainer::State::see_frame() {
  const auto nodes = static_cast<double>(buffer.mesh().nodes);
  seen.nodes = seen.nodes.most == 0
                   ? SeenRange{nodes, nodes}
                   : SeenRange{std::min(seen.nodes.least, nodes), std::max(seen.nodes.most, nodes)};
  for (const FieldInfo& field : options.fields) {
    std::vector<SeenRange>& ranges = seen.fields[field.name];
    const std::span<const float> values = buffer.current(field.name);
    const auto components = static_cast<size_t>(field.components);
    constexpr double kNone = std::numeric_limits<double>::infinity();
    ranges.resize(components, {kNone, -kNone});
    for (size_t i = 0; i < values.size(); ++i) {
      SeenRange& range = ranges[i % components];
      range = {std::min(range.least, static_cast<double>(values[i])),
               std::max(range.most, static_cast<double>(values[i]))};
    }
  }
}

TrainingData OnlineTrainer::State::described_data() const {
  TrainingData data = training_data(task.dataset(), config.data);
  TrainingRanges all = seen;
  const auto merge = [&](SeenRange& range) {
    for (const SeenRange& one : all_gather(ranks, range, "ranges of the training"))
      range = {std::min(range.least, one.least), std::max(range.most, one.most)};
  };
  bool any = true;
  for (const FieldInfo& field : options.fields) {
    constexpr double kNone = std::numeric_limits<double>::infinity();
    all.fields[field.name].resize(static_cast<size_t>(field.components), {kNone, -kNone});
    for (SeenRange& range : all.fields[field.name]) {
      merge(range);
      any = any && range.least <= range.most;
    }
  }
  merge(all.nodes);
  if (any) data.ranges = all;
  return data;
}

/// Statistics are those of samples that were stored, as they came.
void OnlineTrainer::State::learn_from(const StoredSample& stored) {
  if (!stored.trajectory || stored.split != config.data.train_split) return;
  Normalizers& to = ranks.single() ? normalizers : learned;
  if (normalizers.edges.count() + to.edges.count() > 0 && buffer.seen() > config.normalize.max_samples)
    return;
  const std::vector<Sample> samples{{.trajectory = *stored.trajectory, .frame = first_frame()}};
  const NoiseOptions noise = noise_at(config, steps);
  if (parts) {
    learn_from_part(runtime, task, *parts, stored.split, samples, noise, config.precision, to);
  } else {
    training_batch(task, runtime, config.precision, stored.split, samples, noise, to, true);
  }
}

/// Weight of the loss on this rank.
double OnlineTrainer::State::loss_weight(const Task& of, std::string_view split,
                                         const std::vector<Sample>& samples) const {
  if (!parts) return samples.empty() ? 0.0 : of.loss_weight(split, samples);
  double weight = 0.0;
  for (const Sample& sample : samples) {
    const MeshView mesh = of.dataset().trajectory(split, sample.trajectory).mesh();
    const FieldSelection& fields = of.mesh().fields;
    const int64_t here = fields.predicted_nodes(mesh);
    const int64_t ghosts = std::ranges::count_if(
        mesh.node_type.subspan(
            static_cast<size_t>(solver_parts[static_cast<size_t>(mesh.index)].owned(mesh))),
        [&](int32_t type) { return fields.is_predicted(type); });
    if (here > 0)
      weight +=
          of.loss_weight(split, {sample}) * static_cast<double>(here - ghosts) / static_cast<double>(here);
  }
  return weight;
}

Batch OnlineTrainer::State::batch_of(const Task& of, std::string_view split,
                                     const std::vector<Sample>& samples, const NoiseOptions& noise,
                                     double weight) {
  const BatchLayout layout = of.layout(of.shape(split, samples), config.precision, BatchLayout::Sizes::exact);
  const auto write = [&](const Batch& host) {
    of.write(host, split, samples, noise, normalizers, false, scratch);
    *host.tensor(kWindowWeight).data<double>() = weight;
  };
  if (!parts) return make_batch(runtime, layout, write);
  const Batch whole = layout.batch(batch_memory_to_write(runtime, layout.bytes()));
  write(whole);
  const std::vector<MeshView> meshes = meshes_of(of.dataset(), split, samples);
  return make_batch(runtime, part_layout(of, *parts, meshes, whole, config.precision), [&](const Batch& own) {
    write_part(whole, parts->part(meshes, whole.graph, parts->rank()), own);
  });
}

std::vector<Sample> OnlineTrainer::State::draw() const {
  const auto held = static_cast<uint64_t>(buffer.training_samples());
  const uint64_t rank = parts ? 0 : static_cast<uint64_t>(ranks.rank());  // of parts all draw the same
  const uint64_t size = parts ? 1 : static_cast<uint64_t>(ranks.size());
  std::vector<Sample> samples;
  for (int64_t i = 0; held > 0 && i < config.train.batch; ++i) {
    const uint64_t number = static_cast<uint64_t>(steps * config.train.batch + i) * size + rank;
    const uint64_t trajectory = uniform_below(seed(), hash_of("online batch"), number, held);
    samples.push_back({.trajectory = static_cast<int64_t>(trajectory),
                       .frame = first_frame(),
                       .visit = static_cast<uint32_t>(number)});
  }
  return samples;
}

double OnlineTrainer::State::window_weight(const std::vector<Sample>& samples, bool stop) {
  struct Mine {
    double weight;
    int64_t stop;
  };
  const double own = loss_weight(task, config.data.train_split, samples);
  double weight = 0.0;
  for (const Mine& one : all_gather(ranks, Mine{own, stop ? 1 : 0}, "start of a step")) {
    if (one.stop != 0) return 0.0;
    weight += one.weight;
  }
  return weight;
}

bool OnlineTrainer::State::train_step(bool stop) {
  const std::vector<Sample> samples = draw();
  const double weight = window_weight(samples, stop);
  if (weight == 0.0) return false;
  const std::string& split = config.data.train_split;
  ranks.set_step(steps);
  window_sum.begin(nullptr, config.train.batch, optimizer);
  if (!samples.empty()) {
    const Batch batch = batch_of(task, split, samples, noise_at(config, steps), weight);
    run_batch(runtime, task.batch_loss(), model, optimizer, batch, {}, nullptr,
              window_sum.while_backward(model.parameters.gradients()));
  }
  window_sum.finish(model.parameters.gradients(), weight, optimizer);
  optimizer.step(runtime);
  ++steps;
  return true;
}

double OnlineTrainer::State::held_out_loss() {
  const auto held = static_cast<double>(buffer.held_out_samples());
  const double mean =
      held > 0 ? validate_model(runtime, alone, task, model, {}, normalizers, config, {}, {}).value().loss
               : 0.0;
  if (ranks.single()) return held > 0 ? mean : std::nan("");
  double sums[] = {held * mean, held};
  all_reduce(ranks, std::span<double>(sums), "sum of held-out losses");
  return sums[1] > 0 ? sums[0] / sums[1] : std::nan("");
}

double OnlineTrainer::State::held_out_loss_in_parts() {
  const Task tested = task.for_validation();
  const std::string& split = config.data.valid_split;
  if (buffer.held_out_samples() == 0) return std::nan("");
  const SplitSamples all = tested.samples(split);
  double sums[] = {0, 0};
  for (int64_t i = 0; i < all.size(); ++i) {
    const std::vector<Sample> samples{all.at(i)};
    const Batch batch = batch_of(tested, split, samples, {}, 1);
    Tape tape(runtime, Tape::Mode::evaluate);
    sums[0] += *to_host(tested.loss(tape, model, batch, {}).sum.value(), runtime.stream()).data<double>();
    sums[1] += loss_weight(tested, split, samples);
  }
  all_reduce(ranks, std::span<double>(sums), "sum of held-out losses");
  return sums[1] > 0 ? sums[0] / sums[1] : std::nan("");
}

void OnlineTrainer::State::check_finite() const {
  const StepState now = optimizer.state();
  const bool overflow = now.consecutive_skips >= config.loss_scale.max_skips;
  if (!overflow && (now.non_finite_losses == 0 || config.precision == DType::f16)) return;
  throw data_error(
      fmt::format("OnlineTrainer: step {}", steps), "a finite loss and gradient", "nan or infinity",
      "look for bad values in the appended frames, or lower optimizer.lr; then load the last save");
}

OnlineTrainer::OnlineTrainer(Runtime& runtime, const Config& config, const OnlineOptions& options,
                             Ranks* ranks)
    : state_(on_ranks(ranks, [&] { return std::make_unique<State>(runtime, ranks, config, options); })) {
  check_same_on_ranks(state_->ranks, state_->config, 0);
  state_->choose_path();
}

OnlineTrainer::OnlineTrainer(Runtime& runtime, const fs::path& saved, Ranks* ranks)
    : state_(on_ranks(ranks, [&] {
        auto made = std::make_unique<State>(runtime, ranks, checkpoint_config(saved), saved_options(saved));
        const RunState run = load_checkpoint(saved, runtime.stream(), made->model.parameters,
                                             &made->optimizer, made->normalizers);
        made->steps = run.step;
        if (const auto data = checkpoint_training_data(saved); data && data->ranges)
          made->seen = *data->ranges;
        made->buffer.load(open_checkpoint(saved).view());
        made->read_buffer();
        made->read_parts();
        return made;
      })) {
  State& s = *state_;
  check_same_on_ranks(s.ranks, s.config, s.steps);
  if (const GivenPart* part = s.buffer.part())
    s.ghost_rows.emplace(s.ranks, part->owned(s.buffer.mesh()), *part);
  s.choose_path();
}

OnlineTrainer::~OnlineTrainer() = default;
OnlineTrainer::OnlineTrainer(OnlineTrainer&&) noexcept = default;
OnlineTrainer& OnlineTrainer::operator=(OnlineTrainer&&) noexcept = default;
void OnlineTrainer::Delete::operator()(State* state) const { delete_in_own_process(state); }
OnlineTrainer::State& OnlineTrainer::state() const {
  state_->process.check("OnlineTrainer");
  return *state_;
}

const Config& OnlineTrainer::config() const { return state().config; }
const OnlineOptions& OnlineTrainer::options() const { return state().options; }
int64_t OnlineTrainer::steps() const { return state().steps; }
int64_t OnlineTrainer::samples() const { return state().buffer.training_samples(); }
int64_t OnlineTrainer::seen() const { return state().buffer.seen(); }

void OnlineTrainer::set_mesh(const MeshArrays& mesh) {
  State& s = state();
  if (!mesh.in_parts) {
    HostCopies copies(s.runtime);
    s.set_mesh(copies.read(mesh));
    s.ghost_rows.reset();
    return;
  }
  try {
    s.set_mesh_in_parts(mesh);
  } catch (...) {
    s.forget_mesh();  // other ranks may have set theirs
    throw;
  }
}
void OnlineTrainer::forget_field(std::string_view name) { state().buffer.forget_field(name); }
void OnlineTrainer::set_field(std::string_view name, Numbers values) {
  forget_field(name);  // also where they cannot be brought from a device
  State& s = state();
  HostCopies copies(s.runtime);
  s.buffer.set_field(name, copies.read(values, name));
}
void OnlineTrainer::restart_trajectory() { state().buffer.forget_frames(); }

void OnlineTrainer::append() {
  State& s = state();
  const auto check = [&] {
    s.buffer.check_frame();
    s.check_world_edges();
  };
  if (s.parts) {
    on_all_ranks(s.ranks, check);
  } else {
    check();
  }
  s.fill_ghosts();
  s.see_frame();
  const std::optional<StoredSample> stored = s.buffer.append();
  if (!stored) return;
  s.read_buffer();
  s.learn_from(*stored);
}

OnlineTrainer::Trained OnlineTrainer::train(int64_t steps, double seconds) {
  using Clock = std::chrono::steady_clock;
  State& s = state();
  if (steps < 0 || std::isnan(seconds))
    throw invalid_argument("OnlineTrainer: train", "at least 0 steps, and seconds that are a number",
                           fmt::format("{} steps in {} seconds", steps, seconds));
  const Clock::time_point begin = Clock::now();
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  Trained result;
  double longest = 0;
  s.merge_learned();
  s.warn_of_data();
  while (true) {
    const Clock::time_point start = Clock::now();
    const bool late = std::chrono::duration<double>(start - begin).count() + longest > seconds;
    const bool stepped = or_leave(s.ranks, [&] { return s.train_step(late || result.steps >= steps); });
    if (!stepped) break;
    ++result.steps;
    if (std::isfinite(seconds)) {
      s.runtime.stream().synchronize();
      longest = std::max(longest, since(start));
    }
  }
  if (result.steps > 0) {
    s.check_finite();
    result.loss = s.optimizer.state().last_loss;
  }
  result.seconds = since(begin);
  return result;
}

double OnlineTrainer::held_out_loss() {
  State& s = state();
  s.merge_learned();
  return or_leave(s.ranks, [&] { return s.parts ? s.held_out_loss_in_parts() : s.held_out_loss(); });
}

void OnlineTrainer::save(const fs::path& path) const {
  State& s = state();
  s.merge_learned();
  RunState run;
  run.step = s.steps;
  CheckpointExtra extra = s.buffer.saved();
  extra.metadata["data"] = to_json(s.described_data());
  save_checkpoint(path, s.runtime.stream(), s.config, s.task.dataset(), s.model.parameters, s.optimizer,
                  s.normalizers, run, &extra);
}

}  // namespace meshgrad
