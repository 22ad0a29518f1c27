// SPDX-License-Identifier: Apache-2.0
// What keys are for: whether a resumed run may change them, and the tasks or the models that read them.
#pragma once
#include <meshgrad/train/learn/config/config_table.h>

namespace meshgrad::uses {

inline constexpr TaskName kTasksOverTime[] = {TaskName::mesh_dynamics};
inline constexpr TaskName kTasksOnMeshes[] = {TaskName::mesh_dynamics, TaskName::steady_field};
inline constexpr TaskName kTasksOfIdentifiers[] = {TaskName::node_classification, TaskName::graph_regression,
                                                   TaskName::graph_classification};
inline constexpr TaskName kTasksOnNodes[] = {TaskName::node_classification};
inline constexpr TaskName kTasksOnGraphs[] = {TaskName::graph_regression, TaskName::graph_classification,
                                              TaskName::mesh_dynamics, TaskName::steady_field};
inline constexpr TaskName kTasksOnLinks[] = {TaskName::link_reconstruction};
inline constexpr TaskName kTasksOfStudents[] = {TaskName::mesh_dynamics, TaskName::steady_field,
                                                TaskName::node_classification,
                                                TaskName::graph_classification};
inline constexpr TaskName kTasksOfClasses[] = {TaskName::node_classification, TaskName::graph_classification};

// What a resumed run may change, and the same for some tasks only.
inline constexpr KeyUse kFree{};
inline constexpr KeyUse kOnMeshes{false, kTasksOnMeshes, "has no mesh"};
inline constexpr KeyUse kTaught{false, kTasksOfStudents, "learns from no teacher"};
// What it may not.
inline constexpr KeyUse kFixed{true};
inline constexpr KeyUse kFixedOnMeshes{true, kTasksOnMeshes, "has no mesh"};
inline constexpr KeyUse kFixedOfIdentifiers{true, kTasksOfIdentifiers, "reads no identifiers"};
inline constexpr KeyUse kFixedOnNodes{true, kTasksOnNodes, "has no splits of nodes"};
inline constexpr KeyUse kFixedOnGraphs{true, kTasksOnGraphs, "predicts no values of graphs"};
inline constexpr KeyUse kFixedOnLinks{true, kTasksOnLinks, "splits no links"};
inline constexpr KeyUse kFixedOfClasses{true, kTasksOfClasses, "has no classes"};
inline constexpr KeyUse kFixedTaught{true, kTasksOfStudents, "learns from no teacher"};
inline constexpr KeyUse kFixedOverTime{true, kTasksOverTime, "has no time"};
inline constexpr KeyUse kFixedOfChanges{true, kTasksOverTime, "predicts values only"};

// The same for one model only.
inline constexpr ModelName kMeshGraphNets[] = {ModelName::mesh_graph_net};
inline constexpr ModelName kGats[] = {ModelName::gat};
inline constexpr KeyUse kFixedOfMeshGraphNet{true, {}, {}, kMeshGraphNets};
inline constexpr KeyUse kFixedOfGat{true, {}, {}, kGats};
inline constexpr ModelName kVgaes[] = {ModelName::vgae};
inline constexpr KeyUse kFixedOfVgae{true, {}, {}, kVgaes};

}  // namespace meshgrad::uses
