// SPDX-License-Identifier: Apache-2.0
#include <meshgrad/kernels/check.h>
#include <meshgrad/kernels/world_edges.h>

#include <fmt/format.h>

namespace meshgrad {

void kernels::find_world_edges(const FindWorldEdges& args, Runtime& runtime, const Stream& stream) {
  constexpr std::string_view kOp = "find_world_edges";
  const int64_t nodes = args.mesh.nodes, room = args.found.edges;
  check_defined(kOp, "positions", args.positions);
  check_defined(kOp, "features", args.features);
  const int64_t dim = args.positions.width();
  if (dim != 2 && dim != 3)
    throw invalid_argument("find_world_edges: positions", "2 or 3 columns", fmt::format("{}", dim));
  check_tensor(kOp, "positions", args.positions, DType::f32, {nodes, dim});
  check_tensor(kOp, "labels", args.labels, DType::i32, {3, nodes});
  check_tensor(kOp, "mesh.senders", args.mesh.senders, DType::i32, {args.mesh.edges});
  check_tensor(kOp, "mesh.receiver_offsets", args.mesh.receiver_offsets, DType::i32, {nodes + 1});
  check_tensor(kOp, "scale", args.scale, DType::f64, {2, dim + 1});
  check_tensor(kOp, "found.senders", args.found.senders, DType::i32, {room});
  check_tensor(kOp, "found.receivers", args.found.receivers, DType::i32, {room});
  check_tensor(kOp, "found.receiver_offsets", args.found.receiver_offsets, DType::i32, {nodes + 1});
  check_tensor(kOp, "found.sender_offsets", args.found.sender_offsets, DType::i32, {nodes + 1});
  check_tensor(kOp, "found.sender_order", args.found.sender_order, DType::i32, {room});
  check_tensor(kOp, "found.counts", args.found.counts, DType::i64, {3});
  check_tensor(kOp, "features", args.features, args.features.dtype(), {room, dim + 1});
  check_tensor(kOp, "missing", args.missing, DType::i64, {1});
  kernels::tables(args.positions.device()).world_edges.find(args, runtime, stream);
  note_work("find_world_edges", args);
}

Work work_of(const FindWorldEdges& args) {
  const Graph& found = args.found;
  return {.bytes = bytes_of(args.positions, args.labels, args.mesh.senders, args.mesh.receiver_offsets) +
                   bytes_of(found.senders, found.receivers, found.receiver_offsets, found.sender_offsets,
                            found.sender_order, args.features)};
}

}  // namespace meshgrad
