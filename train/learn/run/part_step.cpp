// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/nn/partition/in_turn.h>
#include <meshgrad/train/learn/run/part_step.h>
#include <meshgrad/train/learn/task/batch_rows.h>

#include <fmt/format.h>

namespace meshgrad {

std::optional<MeshParts> make_mesh_parts(Runtime& runtime, const Config& config, Ranks& ranks) {
  const int64_t in_turn = config.ranks.parts_in_turn;
  const bool over_ranks = config.ranks.partition != MeshPartition::none && !ranks.single();
  if (in_turn == 1 && !over_ranks) return std::nullopt;
  if (in_turn > 1 && !ranks.single()) {
    throw config_error("ranks.parts_in_turn", fmt::format("1 on {} ranks", ranks.size()),
                       fmt::format("{}", in_turn),
                       "start one process, or set ranks.partition for a part on each rank");
  }
  PartMaker make = cut_parts(mesh_cut(config.ranks), in_turn > 1 ? in_turn : ranks.size());
  if (in_turn > 1) return std::optional<MeshParts>(std::in_place, runtime, std::move(make), in_turn);
  return std::optional<MeshParts>(std::in_place, runtime, std::move(make), ranks);
}

std::optional<MeshParts> make_parts_to_train_on(Runtime& runtime, const Config& config, Ranks& ranks) {
  std::optional<MeshParts> parts = make_mesh_parts(runtime, config, ranks);
  if (!parts) return parts;
  if (config.ranks.parts_in_turn > 1 && config.unroll.steps > 1) {
    throw config_error("ranks.parts_in_turn", "1 with unroll.steps above 1",
                       fmt::format("{}", config.ranks.parts_in_turn),
                       "set unroll.steps = 1, or compute the parts on several ranks");
  }
  if (config.ranks.reduction == RankReduction::ordered) {
    throw config_error("ranks.reduction", "\"fast\" where meshes are cut into parts", "\"ordered\"",
                       "set ranks.reduction = \"fast\": it adds the parts in the order of the ranks");
  }
  if (config.graphs == GraphsMode::capture) {
    throw config_error("graphs", "\"off\" where meshes are cut into parts", "\"capture\"",
                       "set graphs = \"off\": a captured step cannot wait for other ranks");
  }
  return parts;
}

BatchLayout part_layout(const Task& task, MeshParts& parts, std::span<const MeshView> meshes,
                        const Batch& whole, DType dtype) {
  const Part& part = parts.part(meshes, whole.graph, parts.rank());
  BatchLayout layout = task.layout(shape_of(part), dtype, BatchLayout::Sizes::exact);
  layout.set_halo(parts.halo(meshes, whole.graph));
  return layout;
}

void run_in_turn(Runtime& runtime, const Task& task, const Model& model, const Optimizer& optimizer,
                 const Batch& whole, std::span<const MeshView> meshes, MeshParts& parts) {
  const DType dtype = whole.graph.node_features.dtype();
  PartsInTurn turns(runtime, whole.graph, parts.all(meshes, whole.graph));
  turns.add_gradients(model, [&](int64_t number, const Variable& prediction) {
    const Part& part = turns.part(number);
    const BatchLayout layout = task.layout(shape_of(part), dtype, BatchLayout::Sizes::exact);
    Batch own = make_batch(runtime, layout, [&](const Batch& host) { write_part(whole, part, host); });
    own.graph = turns.batch(number);
    Tape tape(runtime);
    const Recomputation none;
    const Model giving = model_giving(model, {prediction});
    const LossTerms loss = task.loss(tape, giving, own, none);
    tape.backward(loss.sum, optimizer.note_loss(runtime, loss, own.tensor(kWindowWeight)));
  });
}

PartsLoss loss_in_parts(Runtime& runtime, const Task& task, const Model& model, const Batch& batch,
                        const MeshView& mesh, MeshParts& parts) {
  const Tensor host = parts.predict(model, mesh, batch.graph);
  const Tensor device = Tensor::empty(runtime, host.shape(), host.dtype(), Tag::activations, "prediction");
  copy(host, device, runtime.stream());
  Tape tape(runtime, Tape::Mode::evaluate);
  const Model giving = model_giving(model, {Variable(device, false)});
  const Tensor loss = to_host(task.loss(tape, giving, batch, {}).sum.value(), runtime.stream());
  return {*loss.data<double>(), host};
}

}  // namespace meshgrad
