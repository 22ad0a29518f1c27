# SPDX-License-Identifier: Apache-2.0
"""PhysicsNeMo's own MeshGraphNet, with the option that splits the first edge layer by linearity (do_concat_trick).

It sums a receiver's edges including their residuals, where others sum the outputs of the edge MLP: the same amount of work,
but a different function. It imports torch_scatter, which must be compiled for each version of PyTorch, and calls only its
`scatter`, which for a sum is one scatter_add_ of PyTorch. If the package is missing, that call replaces it.
"""
import sys
import types


def _stand_in(torch):
    def scatter(src, index, dim=-1, out=None, dim_size=None, reduce="sum"):
        if reduce != "sum" or dim != 0 or src.dim() != 2 or out is not None:
            raise NotImplementedError("needed a sum over rows of a matrix")
        zeros = torch.zeros(dim_size, src.shape[1], dtype=src.dtype, device=src.device)
        return zeros.scatter_add_(0, index[:, None].expand_as(src), src)

    module = types.ModuleType("torch_scatter")
    module.scatter = scatter
    return module


def _import_mesh_graph_net(torch):
    try:
        import torch_scatter  # noqa: F401
    except ImportError:
        from physicsnemo.core import version_check
        sys.modules["torch_scatter"] = _stand_in(torch)
        installed = version_check.get_installed_version
        version_check.get_installed_version = lambda name: "0.0.0" if name == "torch_scatter" else installed(name)
    from physicsnemo.models.meshgraphnet import MeshGraphNet
    return MeshGraphNet


def build(torch, options, senders, receivers, sizes):
    from torch_geometric.data import Data
    network = _import_mesh_graph_net(torch)
    nodes, edges, outputs = sizes
    graph = Data(edge_index=torch.stack([senders, receivers]))

    class OnGraph(torch.nn.Module):
        """With one fixed mesh."""
        def __init__(self):
            super().__init__()
            width = options.width
            self.net = network(nodes, edges, outputs, processor_size=options.blocks, hidden_dim_processor=width,
                               hidden_dim_node_encoder=width, hidden_dim_edge_encoder=width,
                               hidden_dim_node_decoder=width, do_concat_trick=True)

        def forward(self, x, e):
            return self.net(x, e, graph)

    return OnGraph()


def plain_weights(torch, model, blocks):
    """The weights under the plain model's names, whose first layers read [sender, receiver, edge] and [node, sum]."""
    net = model.net

    def layers(name, sequence, positions):
        modules = [m for m in sequence if list(m.parameters())]
        return {f"{name}.{position}.{part}": value for position, module in zip(positions, modules)
                for part, value in module.state_dict().items()}

    weights = {**layers("encode_nodes", net.node_encoder.model, (0, 2, 4, 5)),
               **layers("encode_edges", net.edge_encoder.model, (0, 2, 4, 5)),
               **layers("decode", net.node_decoder.model, (0, 2, 4))}
    for block in range(blocks):
        edge, node = net.processor.processor_layers[2 * block].edge_mlp, net.processor.processor_layers[2 * block + 1]
        name = f"blocks.{block}.edges"
        weights[f"{name}.0.weight"] = torch.cat([edge.lin_src, edge.lin_dst, edge.lin_efeat], dim=1).detach()
        weights[f"{name}.0.bias"] = edge.bias.detach()
        weights.update(layers(name, edge.model, (2, 4, 5)))
        name = f"blocks.{block}.nodes"
        weights.update(layers(name, node.node_mlp.model, (0, 2, 4, 5)))
        summed, own = weights[f"{name}.0.weight"].chunk(2, dim=1)
        weights[f"{name}.0.weight"] = torch.cat([own, summed], dim=1)
    return weights
