// SPDX-License-Identifier: Apache-2.0
// The names that keys with a choice take, and what they stand for; and what other texts are taken.
#pragma once
#include <meshgrad/train/learn/config/config_table.h>

namespace meshgrad::choices {

/// Texts that name a device.
inline constexpr bool is_device(std::string_view text) {
  if (text == "auto" || text == "cpu" || text == "cuda") return true;
  constexpr std::string_view kIndexed = "cuda:";
  if (!text.starts_with(kIndexed)) return false;
  const std::string_view index = text.substr(kIndexed.size());
  return !index.empty() && index.size() <= 4 && index.find_first_not_of("0123456789") == text.npos;
}

template <class Enum>
constexpr Choice is(std::string_view name, Enum value) {
  return {name, static_cast<int>(value)};
}

inline constexpr Choice kPrecisions[] = {is("f32", DType::f32), is("f64", DType::f64), is("f16", DType::f16),
                                         is("bf16", DType::bf16)};
inline constexpr Choice kGraphs[] = {is("off", GraphsMode::off), is("capture", GraphsMode::capture)};
inline constexpr Choice kPredictions[] = {is("change", Prediction::change),
                                          is("second_change", Prediction::second_change)};
inline constexpr Choice kWorldPairs[] = {is("all", WorldPairs::all),
                                         is("other_type", WorldPairs::other_type)};
inline constexpr Choice kPlanModes[] = {is("static", PlanMode::predicted),
                                        is("measured", PlanMode::measured)};
inline constexpr Choice kVerify[] = {is("once", DataVerify::once), is("epoch", DataVerify::epoch)};
inline constexpr Choice kTasks[] = {is("mesh_dynamics", TaskName::mesh_dynamics),
                                    is("steady_field", TaskName::steady_field),
                                    is("node_classification", TaskName::node_classification),
                                    is("graph_regression", TaskName::graph_regression),
                                    is("graph_classification", TaskName::graph_classification),
                                    is("link_reconstruction", TaskName::link_reconstruction)};
inline constexpr Choice kModels[] = {is("mesh_graph_net", ModelName::mesh_graph_net),
                                     is("gat", ModelName::gat), is("vgae", ModelName::vgae)};
inline constexpr Choice kVgaeEncoders[] = {is("convolution", VgaeEncoder::convolution),
                                           is("attention", VgaeEncoder::attention)};
inline constexpr Choice kAttentionScores[] = {is("gat", AttentionScore::gat),
                                              is("gatv2", AttentionScore::gatv2)};
inline constexpr Choice kGatDecoders[] = {is("mlp", GatDecoder::mlp), is("attention", GatDecoder::attention)};
inline constexpr Choice kJumpings[] = {is("none", Jumping::none), is("concatenate", Jumping::concatenate),
                                       is("max", Jumping::max)};
inline constexpr Choice kActivations[] = {
    is("relu", Activation::relu), is("silu", Activation::silu), is("gelu", Activation::gelu),
    is("tanh", Activation::tanh), is("elu", Activation::elu),   is("leaky_relu", Activation::leaky_relu)};
inline constexpr Choice kNorms[] = {is("none", Norm::none), is("layer", Norm::layer), is("rms", Norm::rms)};
inline constexpr Choice kConcatOrders[] = {is("sender_receiver_edge", ConcatOrder::sender_receiver_edge),
                                           is("edge_sender_receiver", ConcatOrder::edge_sender_receiver)};
inline constexpr Choice kAggregates[] = {is("before_residual", AggregateOrder::before_residual),
                                         is("after_residual", AggregateOrder::after_residual)};
inline constexpr Choice kPools[] = {is("mean", GraphPool::mean), is("sum", GraphPool::sum),
                                    is("max", GraphPool::max)};
inline constexpr Choice kPaths[] = {is("fused", ComputePath::fused), is("op_by_op", ComputePath::op_by_op)};
inline constexpr Choice kOptimizers[] = {is("adam", OptimizerKind::adam), is("adamw", OptimizerKind::adamw),
                                         is("sgd", OptimizerKind::sgd)};
inline constexpr Choice kSchedules[] = {is("constant", RateCurve::constant),
                                        is("exponential", RateCurve::exponential),
                                        is("cosine", RateCurve::cosine), is("step", RateCurve::step)};
inline constexpr Choice kNormalizeModes[] = {is("dataset", NormalizeMode::dataset),
                                             is("online", NormalizeMode::online),
                                             is("none", NormalizeMode::none)};
inline constexpr Choice kInitNormalizers[] = {is("keep", InitNormalizers::keep),
                                              is("refit", InitNormalizers::refit)};
inline constexpr Choice kRecomputeModes[] = {
    is("off", RecomputeMode::off),       is("block", RecomputeMode::block),
    is("every", RecomputeMode::every),   is("sqrt", RecomputeMode::sqrt),
    is("budget", RecomputeMode::budget), is("auto", RecomputeMode::automatic)};
inline constexpr std::string_view kBalancedWord = "balanced";
inline constexpr std::string_view kKeepWords[] = {"auto", "none"};
inline constexpr Choice kOffloads[] = {is("none", OffloadTo::none), is("host", OffloadTo::host),
                                       is("file", OffloadTo::file)};
inline constexpr Choice kTeacherOffloads[] = {is("none", OffloadTo::none), is("host", OffloadTo::host)};
inline constexpr Choice kSegmentUnits[] = {is("block", SegmentUnit::block), is("frame", SegmentUnit::frame),
                                           is("sequence", SegmentUnit::sequence)};
inline constexpr Choice kLosses[] = {is("mse", LossName::mse), is("huber", LossName::huber),
                                     is("l1", LossName::l1), is("relative_l2", LossName::relative_l2)};
inline constexpr Choice kCurriculumScores[] = {is("none", CurriculumScore::none),
                                               is("loss", CurriculumScore::loss),
                                               is("model", CurriculumScore::model)};
inline constexpr Choice kBoundaries[] = {is("data", RolloutBoundary::data),
                                         is("initial", RolloutBoundary::initial)};
inline constexpr Choice kReductions[] = {is("fast", RankReduction::fast),
                                         is("ordered", RankReduction::ordered)};
inline constexpr Choice kPartitions[] = {is("none", MeshPartition::none), is("rcb", MeshPartition::rcb),
                                         is("metis", MeshPartition::metis), is("file", MeshPartition::file)};

}  // namespace meshgrad::choices
