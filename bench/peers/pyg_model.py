# SPDX-License-Identifier: Apache-2.0
"""The block with PyTorch Geometric: edges are updated by its edge_updater, and summed by its propagate, which scatters
with PyTorch's own operators unless torch_scatter is installed."""


def build(torch, options, senders, receivers, build_network, make_mlp):
    from torch_geometric.nn import MessagePassing
    edge_index = torch.stack([senders, receivers])  # from sources to targets

    class Block(MessagePassing):
        def __init__(self):
            super().__init__(aggr="add", flow="source_to_target")
            self.edges = make_mlp(torch, options, 3 * options.width, options.width)
            self.nodes = make_mlp(torch, options, 2 * options.width, options.width)

        def forward(self, h, e):
            message = self.edge_updater(edge_index, h=h, e=e)
            aggregate = self.propagate(edge_index, message=message, size=(h.shape[0], h.shape[0]))
            return h + self.nodes(torch.cat([h, aggregate], dim=1)), e + message

        def edge_update(self, h_j, h_i, e):
            return self.edges(torch.cat([h_j, h_i, e], dim=1))

        def message(self, message):
            return message

    return build_network(torch, options, Block)
