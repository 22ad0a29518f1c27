#!/usr/bin/env python3
"""Writes gat_small.safetensors: graph attention networks of PyTorch Geometric, computed in FP64.

usage: make_gat.py FOLDER        (needs torch, torch_geometric and safetensors)

Of each case NAME: NAME.in.nodes|senders|receivers and, where there are, NAME.in.edges|starts; NAME.param.* under the names of
nn/gat.h, matrices as [out, in]; NAME.out.prediction; and with loss = sum(NAME.in.factors * prediction) the gradients NAME.grad.*
of parameters and NAME.grad.in.nodes. Edges are in random order; the last node has none.
"""
import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch_geometric.nn import GATConv, GATv2Conv, global_max_pool, global_mean_pool

NODES, EDGES = 14, 34


def graph():
    pairs = torch.tensor([(s, r) for s in range(NODES - 1) for r in range(NODES - 1) if s != r])
    return pairs[torch.randperm(len(pairs))[:EDGES]].t().contiguous()


def names_of(conv, name):
    """The parameters of a layer that lie as here, and where else they are."""
    if isinstance(conv, GATv2Conv):
        yield f"{name}.values.weight", conv.lin_l.weight
        yield f"{name}.values.bias", conv.lin_l.bias
        yield f"{name}.queries.weight", conv.lin_r.weight
        yield f"{name}.queries.bias", conv.lin_r.bias
        yield f"{name}.score", conv.att
    else:
        yield f"{name}.values.weight", conv.lin.weight
        yield f"{name}.sender_score", conv.att_src
        yield f"{name}.receiver_score", conv.att_dst
    yield f"{name}.bias", conv.bias


def case(name, convs, tail, starts=None, edge_inputs=0, inputs=5):
    """tail(list of the layers' values) -> prediction, [(name, parameter)]"""
    file = {}
    nodes = torch.randn(NODES, inputs, requires_grad=True)
    edge_index = graph()
    edges = torch.randn(EDGES, edge_inputs) if edge_inputs else None
    parameters = []
    for k, conv in enumerate(convs):
        with torch.no_grad():
            for p in conv.parameters():
                p.copy_(torch.randn_like(p) * 0.6)
            if edge_inputs:  # one score a head and feature: the other rows have a factor of 0
                conv.att_edge.zero_()
                conv.att_edge[:, :, 0] = torch.randn(conv.heads)
        parameters += names_of(conv, "decoder" if tail is None and k + 1 == len(convs) else f"layer.{k}")
    values, x = [], nodes
    for k, conv in enumerate(convs):
        x = conv(x, edge_index, edges) if edge_inputs else conv(x, edge_index)
        if tail is not None or k + 1 < len(convs):
            x = torch.nn.functional.elu(x)
        values.append(x)
    if tail is not None:
        x, more = tail(values)
        parameters += more
    factors = torch.randn_like(x)
    (factors * x).sum().backward()
    put = lambda key, tensor: file.__setitem__(f"{name}.{key}", tensor.detach().clone().contiguous())
    put("in.nodes", nodes)
    put("in.senders", edge_index[0].int())
    put("in.receivers", edge_index[1].int())
    if edges is not None:
        put("in.edges", edges)
    if starts is not None:
        put("in.starts", torch.tensor(starts, dtype=torch.int32))
    put("in.factors", factors)
    put("out.prediction", x)
    put("grad.in.nodes", nodes.grad)
    for key, p in parameters:
        vector = p.dim() != 2
        put(f"param.{key}", p.flatten() if vector else p)
        put(f"grad.{key}", p.grad.flatten() if vector else p.grad)
    for k, conv in enumerate(convs if edge_inputs else []):
        width = conv.out_channels
        factor = conv.att_edge[0, :, :1]
        put(f"param.layer.{k}.edge_scores.weight", conv.lin_edge.weight[::width] * factor)
        put(f"grad.layer.{k}.edge_scores.weight", conv.lin_edge.weight.grad[::width] / factor)
    return file


def mlp(widths):
    layers = [torch.nn.Linear(a, b) for a, b in zip(widths, widths[1:])]
    named = [(f"decoder.linear_{i}.{kind}", p) for i, layer in enumerate(layers) for kind, p in layer.named_parameters()]

    def run(x):
        for i, layer in enumerate(layers):
            x = layer(x if i == 0 else torch.nn.functional.elu(x))
        return x
    return run, named


def main():
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(3)
    starts = [0, 6, 6, 14]
    of_node = torch.tensor([0] * 6 + [2] * 8)

    # As on Cora: hidden heads side by side, then one more layer with the mean of its heads.
    file = case("nodes", [GATConv(5, 4, heads=3), GATConv(12, 3, heads=2, concat=False)], None)

    run, named = mlp([8, 4, 2])
    file |= case("edges", [GATConv(5, 4, heads=2, concat=False, edge_dim=3, add_self_loops=False),
                           GATConv(4, 4, heads=2, concat=False, edge_dim=3, add_self_loops=False)],
                 lambda v: (run(torch.cat([global_mean_pool(x, of_node, size=3) for x in v], 1)), named),
                 starts=starts, edge_inputs=3)

    run2, named2 = mlp([6, 2])
    file |= case("gatv2", [GATv2Conv(5, 3, heads=2), GATv2Conv(6, 3, heads=2), GATv2Conv(6, 3, heads=2)],
                 lambda v: (run2(global_max_pool(torch.stack(v).max(0).values, of_node, size=3)), named2),
                 starts=starts)
    save_file(file, pathlib.Path(sys.argv[1]) / "gat_small.safetensors",
              {"made_by": f"make_gat.py with PyTorch Geometric and PyTorch {torch.__version__.split('+')[0]}"})


if __name__ == "__main__":
    main()
