#!/usr/bin/env python3
"""Writes variational graph autoencoders of PyTorch Geometric, computed in FP64: vgae_small.safetensors of GCNConv,
vgae_attention.safetensors of GATConv, and vgae_pyg.safetensors, a torch_geometric.nn.VGAE of GCNConv under its own names.

usage: make_vgae.py FOLDER        (needs torch, torch_geometric and safetensors)

Two graphs of one batch, whose nodes have keys. in.* are inputs, param.* parameters under the names of nn/vgae.h, matrices as
[out, in]; out.latent and out.loss; and the gradients of the loss, grad.*. The loss is that of
train/learn/task/link_reconstruction.h: over all pairs of each graph, with a divergence of weight 1 and features of weight 0.5.
Weights of edges, of pairs and of rows are those of PyTorch Geometric and of the formula, rounded to FP32, as here. The noise is
drawn by a Philox of its own.
"""
import math
import pathlib
import sys

import torch
from safetensors.torch import save_file
from torch_geometric.nn import VGAE, GATConv, GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm

MASK = (1 << 64) - 1
LATENT, WIDTH, INPUTS = 3, 6, 5


def mixed(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def philox(seed, counter):
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [(p1 >> 32) ^ counter[1] ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ counter[3] ^ k1, p0 & 0xFFFFFFFF]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return counter


def noise_of(keys):
    seed = mixed(mixed(0) ^ 0x6C6174656E74)
    rows = []
    for key in keys:
        row = []
        for column in range(LATENT):
            pair = column // 2
            four = philox(seed, [key & 0xFFFFFFFF, key >> 32, pair // 2, 0])
            first, second = four[2 * (pair % 2)], four[2 * (pair % 2) + 1]
            radius, angle = math.sqrt(-2 * math.log((first + 1) / 2**32)), 2 * math.pi * second / 2**32
            row.append(radius * (math.sin(angle) if column % 2 else math.cos(angle)))
        rows.append(row)
    return torch.tensor(rows)


def rounded(x):
    return torch.as_tensor(x).float().double()


def encoder_layers(attention):
    if not attention:
        return {name: GCNConv(inputs, outputs, normalize=False)
                for name, inputs, outputs in [("encoder.0", INPUTS, WIDTH), ("mean", WIDTH, LATENT), ("log", WIDTH, LATENT)]}
    return {"encoder.0": GATConv(INPUTS, WIDTH // 2, heads=2), "mean": GATConv(WIDTH, LATENT), "log": GATConv(WIDTH, LATENT)}


def values_of(file, attention):
    """Of a whole model: inputs, parameters, latent values, the loss and its gradients."""
    torch.manual_seed(3)
    sizes = [7, 4]
    pairs = [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (2, 3), (7, 8), (8, 9)]  # nodes 6 and 10 have no link
    edges = torch.tensor([[a, b] for a, b in pairs] + [[b, a] for a, b in pairs]).T.contiguous()
    keys = [mixed(i) >> 1 for i in range(sum(sizes))]
    x = torch.randn(sum(sizes), INPUTS, requires_grad=True)
    layers = encoder_layers(attention)
    for layer in layers.values():
        torch.nn.init.normal_(layer.bias, std=0.5)
    hidden, out = torch.nn.Linear(LATENT, WIDTH), torch.nn.Linear(WIDTH, INPUTS)

    read = edges,  # GATConv adds the edges from each node to itself
    if not attention:
        both_ways, weights = gcn_norm(edges, None, sum(sizes), dtype=torch.float64)
        read = both_ways, rounded(weights)
    h = torch.relu(layers["encoder.0"](x, *read))
    mean, log = layers["mean"](h, *read), layers["log"](h, *read)
    z = mean + torch.exp(log) * noise_of(keys)
    back = out(torch.relu(hidden(z)))
    loss, first = torch.zeros(()), 0
    for size in sizes:
        own = slice(first, first + size)
        logits = z[own] @ z[own].T
        linked = torch.eye(size)
        for a, b in pairs:
            if first <= a < first + size:
                linked[a - first, b - first] = linked[b - first, a - first] = 1
        other = 1 - linked
        entropy = torch.nn.functional.binary_cross_entropy_with_logits(logits, linked, reduction="none")
        loss = loss + (entropy * (linked * rounded(0.5 / linked.sum()) + other * rounded(0.5 / other.sum()))).sum()
        divergence = -0.5 * (1 + 2 * log[own] - mean[own] ** 2 - torch.exp(2 * log[own])).sum()
        loss = loss + divergence * rounded(1 / size**2) + 0.5 * ((back[own] - x[own].detach()) ** 2).mean()
        first += size
    loss.backward()

    ours = {"weight": "lin.weight", "bias": "bias"}
    if attention:
        ours = {"values.weight": "lin.weight", "sender_score": "att_src", "receiver_score": "att_dst", "bias": "bias"}
    named = {"features.linear_0.weight": hidden.weight, "features.linear_0.bias": hidden.bias,
             "features.linear_1.weight": out.weight, "features.linear_1.bias": out.bias}
    file |= {"in.nodes": x, "in.senders": edges[0], "in.receivers": edges[1], "in.keys": torch.tensor(keys),
             "in.starts": torch.tensor([0, sizes[0], sum(sizes)]), "out.latent": z, "out.loss": loss.reshape(1),
             "grad.in.nodes": x.grad}
    for name, theirs in ours.items():
        named[f"encoder.0.{name}"] = dict(layers["encoder.0"].named_parameters())[theirs]
    for name, parameter in named.items():
        flat = (lambda p: p.flatten()) if parameter.dim() == 3 else (lambda p: p)
        file |= {f"param.{name}": flat(parameter), f"grad.{name}": flat(parameter.grad)}
    for name, theirs in ours.items():
        both = [dict(layers[layer].named_parameters())[theirs] for layer in ("mean", "log")]
        flat = (lambda p: p.flatten()) if both[0].dim() == 3 else (lambda p: p)
        file |= {f"param.latent.{name}": torch.cat([flat(p) for p in both]),
                 f"grad.latent.{name}": torch.cat([flat(p.grad) for p in both])}


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = GCNConv(INPUTS, WIDTH), GCNConv(WIDTH, WIDTH)
        self.conv_mu, self.conv_logstd = GCNConv(WIDTH, LATENT), GCNConv(WIDTH, LATENT)

    def forward(self, x, edges):
        x = self.conv2(self.conv1(x, edges).relu(), edges).relu()
        return self.conv_mu(x, edges), self.conv_logstd(x, edges)


def state_dict_of(file):
    """Of torch_geometric.nn.VGAE: its own names, what it was called with, and the means that it returned."""
    torch.manual_seed(5)
    model = VGAE(Encoder()).eval()
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.5)
    pairs = [(0, 1), (0, 2), (0, 3), (2, 3), (3, 4), (5, 6)]  # node 7 has no link
    edges = torch.tensor(pairs + [(b, a) for a, b in pairs]).T.contiguous()[:, torch.randperm(2 * len(pairs))]
    x = torch.randn(8, INPUTS)
    file |= model.state_dict() | {"in.node_features": x, "in.senders": edges[0], "in.receivers": edges[1],
                                  "out.prediction": model.encode(x, edges)}


def main():
    torch.set_default_dtype(torch.float64)
    files = {name: {} for name in ["vgae_small", "vgae_attention", "vgae_pyg"]}
    values_of(files["vgae_small"], attention=False)
    values_of(files["vgae_attention"], attention=True)
    state_dict_of(files["vgae_pyg"])
    for name, file in files.items():
        save_file({key: tensor.detach().contiguous() for key, tensor in file.items()},
                  pathlib.Path(sys.argv[1]) / f"{name}.safetensors",
                  {"made_by": f"make_vgae.py with PyTorch Geometric and PyTorch {torch.__version__.split('+')[0]}"})


if __name__ == "__main__":
    main()
