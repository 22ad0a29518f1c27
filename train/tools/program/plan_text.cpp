// SPDX-License-Identifier: Apache-2.0
// A memory plan as text and as JSON.
#include <meshgrad/engine/byte_size.h>
#include <meshgrad/train/tools/program/plan_text.h>
#include <meshgrad/train/tools/program/progress.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace meshgrad {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string_view fits_text(bool fits) { return fits ? "fits" : "does not fit"; }

std::string milliseconds(double ms) { return fmt::format("{:.{}f} ms", ms, ms < 10.0 ? 2 : 1); }

/// The bound, and what it is of.
std::string bound_lines(const MemoryPlan& plan) {
  const BatchShape& batch = plan.bounded;
  std::string edges = fmt::format("{} directed edges", batch.edges);
  if (batch.world_edges > 0) edges += fmt::format(", {} world edges", batch.world_edges);
  return fmt::format(
      "time: at least {} at the stated peaks of one {}: a bound, not measured\n"
      "  for a batch of {}, which has {} nodes and {} in all\n"
      "  of {:.1f} GFLOP and {:.2f} GB\n",
      milliseconds(plan.bound->ms), plan.peaks, plan.batch, batch.nodes, edges, plan.bound->work.flops / 1e9,
      plan.bound->work.bytes / 1e9);
}

/// Which kernels a GPU runs.
std::string kernel_lines(const MemoryPlan& plan) {
  const auto line = [](std::string_view how, const std::vector<std::string>& ops) {
    return ops.empty() ? std::string() : fmt::format("{}: {}\n", how, fmt::join(ops, ", "));
  };
  return line("fused", plan.fused) + line("op by op, all or some calls", plan.op_by_op);
}

std::string time_line(const MemoryPlan& plan) {
  return fmt::format("time: {:.3g} s a step, by ten measured steps on this CPU: {} for {} steps\n",
                     *plan.step_seconds, duration_text(*plan.step_seconds * static_cast<double>(plan.steps)),
                     plan.steps);
}

std::string table(const MemoryPlan& plan) {
  const auto row = [&](std::string_view name, int64_t bytes) {
    return fmt::format("  {:<14} {:>12.3f} {:>7.1f} %\n", name, mebibytes(bytes),
                       100.0 * static_cast<double>(bytes) / static_cast<double>(plan.step.live));
  };
  std::string text = fmt::format("  {:<14} {:>12} {:>9}\n", "at the peak", "MiB", "share");
  for (int tag = 0; tag < kTagCount; ++tag) {
    const int64_t bytes = plan.step.by_tag[static_cast<size_t>(tag)];
    if (bytes > 0) text += row(meshgrad::name_of(static_cast<Tag>(tag)), bytes);
  }
  text += row("total", plan.step.live);
  text += fmt::format("reserved {:.3f} MiB, including the allocator's cache", mebibytes(plan.step.reserved));
  if (plan.mode == PlanMode::measured)
    text += fmt::format("; predicted: total {:.3f} MiB, reserved {:.3f} MiB", mebibytes(plan.predicted.live),
                        mebibytes(plan.predicted.reserved));
  if (plan.step.offloaded > 0)
    text += fmt::format("; {:.3f} MiB offloaded (recompute.offload)", mebibytes(plan.step.offloaded));
  if (plan.room.context > 0)
    text += fmt::format("; {:.3f} MiB of the device are in use by its context and others",
                        mebibytes(plan.room.context));
  text += "\n";
  if (plan.bound) text += bound_lines(plan);
  text += kernel_lines(plan);
  if (plan.step_seconds) text += time_line(plan);
  for (const std::string& note : plan.notes) text += "note: " + note + "\n";
  return text;
}

std::string choices(const MemoryPlan& plan) {
  const bool measured = plan.mode == PlanMode::measured;
  const auto columns = [](const StepMemory& step) {
    return fmt::format("{:>11.3f} {:>11.3f} ", mebibytes(step.live), mebibytes(step.reserved));
  };
  std::string text = fmt::format("  {:<14} {:>11} {:>11} ", "predicted, MiB", "total", "reserved");
  if (measured) text += fmt::format("{:>11} {:>11} ", "measured", "reserved");
  text += fmt::format("{:>13}{}\n", "largest batch", plan.bound ? " at least, ms" : "");
  const auto settings = [](const MemoryPlan::Choice& choice) {
    return choice.settings.empty() ? std::string() : "    " + choice.settings + "\n";
  };
  for (const MemoryPlan::Choice& choice : plan.choices) {
    if (!choice.possible) {
      text += fmt::format("  {:<14} {:>23}\n", choice.name, "over recompute.budget") + settings(choice);
      continue;
    }
    text += fmt::format("  {:<14} {}", choice.name, columns(choice.predicted));
    if (measured)
      text += choice.measured ? columns(*choice.measured) : fmt::format("{:>23} ", "out of memory");
    text += fmt::format("{:>13}", choice.batch_size);
    if (choice.bound) text += fmt::format("{:>13.1f}", choice.bound->ms);
    text += "\n" + settings(choice);
  }
  if (plan.recommended < 0) return text + "recommended: none, as no choice fits; see below what else saves\n";
  const MemoryPlan::Choice& best = plan.choices[static_cast<size_t>(plan.recommended)];
  const bool narrow = plan.recommended >= 2, recomputes = plan.recommended % 2 == 1;
  const char* const why = narrow != plan.narrow ? "as nothing fits in the configuration's precision"
                          : recomputes          ? "as the step fits only with recomputation"
                                                : "as the step fits without recomputation";
  return text + fmt::format("recommended: {}, {}\n", best.name, why);
}

std::string grid(const MemoryPlan& plan) {
  const auto trimmed = [](std::string line) { return line.substr(0, line.find_last_not_of(' ') + 1) + "\n"; };
  std::string head = fmt::format("  {:>7}", "batch"), row, rows;
  int64_t batch = 0;
  for (const MemoryPlan::Cell& cell : plan.grid) {
    if (cell.batch != batch && !row.empty()) rows += trimmed(std::exchange(row, {}));
    if (row.empty()) row = fmt::format("  {:>7}", cell.batch);
    if (rows.empty()) head += fmt::format(" {:>5} {:<9}", cell.steps, cell.steps == 1 ? "frame" : "frames");
    row += fmt::format(" {:>10.1f} {:<4}", mebibytes(cell.bytes), cell.fits ? "fits" : "no");
    batch = cell.batch;
  }
  return "  reserved, MiB, by batch size and by frames of a sample (unroll.steps)\n" + trimmed(head) + rows +
         trimmed(row);
}

OrderedJson to_json(const StepMemory& step) {
  OrderedJson tags = OrderedJson::object();
  for (int tag = 0; tag < kTagCount; ++tag)
    tags[std::string(meshgrad::name_of(static_cast<Tag>(tag)))] = step.by_tag[static_cast<size_t>(tag)];
  return {{"total", step.live}, {"tags", tags}, {"reserved", step.reserved}, {"offloaded", step.offloaded}};
}

OrderedJson to_json(const std::optional<StepBound>& bound) {
  if (!bound) return {};
  return {{"ms", bound->ms}, {"flops", bound->work.flops}, {"bytes", bound->work.bytes}};
}

OrderedJson to_json(const MemoryBudget& budget) {
  return {{"total", budget.total},           {"static", budget.fixed() + budget.context},
          {"params", budget.parameters},     {"embed", budget.embed},
          {"opt", budget.optimizer},         {"grad", budget.gradients},
          {"teacher", budget.teacher},       {"context", budget.context},
          {"activation", budget.activation}, {"per_graph", budget.per_graph},
          {"available", budget.available},   {"max_batch", budget.max_batch},
          {"batch_size", budget.batch_size}, {"mode", name_of(budget.mode)}};
}

}  // namespace

std::string to_text(const MemoryPlan& plan) {
  std::string text =
      fmt::format("{} plan for {}: a step of batch {} {} in {:.3f} MiB of {:.3f}\n", name_of(plan.mode),
                  plan.gpu.empty() ? name_of(plan.device) : plan.gpu, plan.batch, fits_text(plan.fits),
                  mebibytes(plan.usable), mebibytes(plan.room.total));
  text += table(plan) + "\n" + choices(plan) + "\n" + grid(plan) + "\n";
  if (!plan.changes.empty()) text += "to save memory, in this order:\n";
  for (size_t i = 0; i < plan.changes.size(); ++i)
    text += fmt::format("  {}. {}\n", i + 1, plan.changes[i].line());
  return text + to_text(plan.budget) + "\n";
}

std::string to_json(const MemoryPlan& plan) {
  OrderedJson choices = OrderedJson::array(), grid = OrderedJson::array(), changes = OrderedJson::array();
  for (const MemoryPlan::Choice& choice : plan.choices) {
    choices.push_back({{"name", choice.name},
                       {"settings", choice.settings},
                       {"predicted", choice.possible ? to_json(choice.predicted) : OrderedJson()},
                       {"measured", choice.measured ? to_json(*choice.measured) : OrderedJson()},
                       {"bound", to_json(choice.bound)},
                       {"batch_size", choice.batch_size},
                       {"fits", choice.fits}});
  }
  for (const MemoryPlan::Cell& cell : plan.grid)
    grid.push_back(
        {{"batch", cell.batch}, {"steps", cell.steps}, {"bytes", cell.bytes}, {"fits", cell.fits}});
  for (const MemoryChange& change : plan.changes)
    changes.push_back({{"change", change.text}, {"before", change.before}, {"after", change.after}});
  const OrderedJson json = {
      {"device", name_of(plan.device)},
      {"mode", name_of(plan.mode)},
      {"batch", plan.batch},
      {"fits", plan.fits},
      {"usable", plan.usable},
      {"step", to_json(plan.step)},
      {"predicted", to_json(plan.predicted)},
      {"context", plan.room.context},
      {"bound", to_json(plan.bound)},
      {"step_seconds", plan.step_seconds ? OrderedJson(*plan.step_seconds) : OrderedJson()},
      {"gpu", plan.gpu.empty() ? OrderedJson() : OrderedJson(plan.gpu)},
      {"peaks", plan.peaks.empty() ? OrderedJson() : OrderedJson(plan.peaks)},
      {"fused", plan.fused},
      {"op_by_op", plan.op_by_op},
      {"notes", plan.notes},
      {"choices", choices},
      {"recommended", plan.recommended < 0
                          ? OrderedJson()
                          : OrderedJson(plan.choices[static_cast<size_t>(plan.recommended)].name)},
      {"grid", grid},
      {"changes", changes},
      {"budget", to_json(plan.budget)},
  };
  return json.dump(2) + "\n";
}

}  // namespace meshgrad
