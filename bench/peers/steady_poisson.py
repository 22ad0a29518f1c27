#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The example of docs/steady.md as a plain PyTorch loop: the data of bench/studies/steady-poisson, and the model, loss,
optimizer, schedule, batches and number of steps of examples/steady_poisson.toml.

    bench/studies/steady-poisson -o runs/poisson && bench/peers/steady_poisson.py runs/poisson --threads 2

Prints the relative L2 and the RMSE over interior nodes of the unseen plates, and the time of training in s. With
--seconds, training stops then, with the schedule of the whole run. Needs torch and numpy (bench/peers/requirements.txt).
"""
import argparse
import pathlib
import sys
import time

import meshgraphnet

INTERIOR, NODE_TYPES = 0, 9
WIDTH, BLOCKS, BATCH, STEPS = 64, 8, 4, 6000
FIRST_RATE, LAST_RATE, CLIP_NORM = 1e-3, 1e-5, 1.0
NODE_INPUTS, EDGE_INPUTS, OUTPUTS = 2 + NODE_TYPES, 3, 1


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder that bench/studies/steady-poisson wrote")
    parser.add_argument("--steps", type=int, default=STEPS, help="of the schedule, and to train (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="training stops after this time")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for PyTorch's own choice")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def read_plates(np, torch, folder):
    """Each plate as tensors: inputs [n, 11], edges [2, e] sorted by receiver, features [e, 3], target [n], interior [n]."""
    plates = []
    for path in sorted(folder.glob("*.npz")):
        with np.load(path) as file:
            position, cells = file["mesh_pos"].astype(np.float32), file["cells"]
            kind, source = file["node_type"][:, 0], file["graph:source"].astype(np.float32)
            boundary, target = file["boundary_temperature"][:, 0], file["temperature"][:, 0]
        pairs = np.concatenate([cells[:, [0, 1]], cells[:, [1, 2]], cells[:, [2, 0]]])
        pairs = np.unique(np.concatenate([pairs, pairs[:, ::-1]]), axis=0)  # (receiver, sender)
        offset = position[pairs[:, 1]] - position[pairs[:, 0]]
        edges = np.concatenate([offset, np.linalg.norm(offset, axis=1, keepdims=True)], axis=1)
        nodes = np.concatenate([boundary[:, None], np.full((len(kind), 1), source[0], np.float32),
                                np.eye(NODE_TYPES, dtype=np.float32)[kind]], axis=1)
        plates.append([torch.from_numpy(np.ascontiguousarray(array)) for array in
                       (nodes.astype(np.float32), pairs.T.astype(np.int64), edges, target.astype(np.float32),
                        kind == INTERIOR)])
    if not plates:
        sys.exit(f"steady_poisson.py: error: [{folder}] needed NPZ files, got none; fix: run bench/studies/steady-poisson")
    return plates


def statistics(torch, plates):
    """Means and standard deviations of inputs, edge features and interior targets; one-hot columns stay as they are."""
    nodes, edges = torch.cat([plate[0] for plate in plates]), torch.cat([plate[2] for plate in plates])
    target = torch.cat([plate[3][plate[4]] for plate in plates])
    mean, deviation = torch.zeros(NODE_INPUTS), torch.ones(NODE_INPUTS)
    mean[:2], deviation[:2] = nodes[:, :2].mean(0), nodes[:, :2].std(0)
    return mean, deviation, edges.mean(0), edges.std(0), target.mean(), target.std()


def union(torch, plates, stats):
    """Plates as one graph, normalised."""
    node_mean, node_std, edge_mean, edge_std, target_mean, target_std = stats
    first, pairs = 0, []
    for plate in plates:
        pairs.append(plate[1] + first)
        first += len(plate[0])
    receivers, senders = torch.cat(pairs, dim=1)
    return ((torch.cat([plate[0] for plate in plates]) - node_mean) / node_std,
            (torch.cat([plate[2] for plate in plates]) - edge_mean) / edge_std, senders, receivers,
            (torch.cat([plate[3] for plate in plates]) - target_mean) / target_std,
            torch.cat([plate[4] for plate in plates]))


def build(torch):
    options = argparse.Namespace(width=WIDTH)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.edges = meshgraphnet.make_mlp(torch, options, 3 * WIDTH, WIDTH)
            self.nodes = meshgraphnet.make_mlp(torch, options, 2 * WIDTH, WIDTH)

        def forward(self, h, e, senders, receivers):
            message = self.edges(torch.cat([h.index_select(0, senders), h.index_select(0, receivers), e], dim=1))
            aggregate = torch.zeros_like(h).index_add(0, receivers, message)
            return h + self.nodes(torch.cat([h, aggregate], dim=1)), e + message

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encode_nodes = meshgraphnet.make_mlp(torch, options, NODE_INPUTS, WIDTH)
            self.encode_edges = meshgraphnet.make_mlp(torch, options, EDGE_INPUTS, WIDTH)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(BLOCKS))
            self.decode = meshgraphnet.make_mlp(torch, options, WIDTH, OUTPUTS, norm=False)

        def forward(self, nodes, edges, senders, receivers):
            h, e = self.encode_nodes(nodes), self.encode_edges(edges)
            for block in self.blocks:
                h, e = block(h, e, senders, receivers)
            return self.decode(h)[:, 0]

    return Network()


def train(torch, options, model, plates, stats):
    """Steps done and seconds."""
    optimizer = torch.optim.Adam(model.parameters(), lr=FIRST_RATE, fused=True)
    order, begin = [], time.perf_counter()
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = FIRST_RATE * (LAST_RATE / FIRST_RATE) ** (step / options.steps)
        if len(order) < BATCH:
            order = torch.randperm(len(plates)).tolist()
        batch = [plates[order.pop()] for _ in range(BATCH)]
        nodes, edges, senders, receivers, target, interior = union(torch, batch, stats)
        loss = ((model(nodes, edges, senders, receivers) - target)[interior] ** 2).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        seconds = time.perf_counter() - begin
        if (step + 1) % 500 == 0:
            print(f"step {step + 1}: loss {float(loss):.3e}, {seconds:.0f} s", file=sys.stderr)
        if seconds > options.seconds:
            break
    return step + 1, time.perf_counter() - begin


def evaluate(torch, model, plates, stats):
    """Relative L2, and RMSE in K, over interior nodes."""
    error = norm = count = 0.0
    with torch.no_grad():
        for plate in plates:
            nodes, edges, senders, receivers, _, interior = union(torch, [plate], stats)
            predicted = model(nodes, edges, senders, receivers) * stats[5] + stats[4]
            difference = (predicted - plate[3])[interior].double()
            error += float((difference ** 2).sum())
            norm += float((plate[3][interior].double() ** 2).sum())
            count += float(interior.sum())
    return (error / norm) ** 0.5, (error / count) ** 0.5


def main(arguments=None):
    options = parse(arguments)
    import numpy as np
    import torch
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    plates = {split: read_plates(np, torch, options.data / split) for split in ("train", "test")}
    stats = statistics(torch, plates["train"])
    model = build(torch)
    steps, seconds = train(torch, options, model, plates["train"], stats)
    relative, rmse = evaluate(torch, model, plates["test"], stats)
    print(f"{steps} steps in {seconds:.0f} s on {torch.get_num_threads()} threads, PyTorch {torch.__version__}: "
          f"relative L2 {100 * relative:.2f} %, RMSE {rmse:.3f} K")


if __name__ == "__main__":
    main()
