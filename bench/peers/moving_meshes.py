#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A mesh that moves, as a plain PyTorch loop: the data of examples/moving-meshes, and the recipe of a meshgrad
configuration (examples/flag.toml, examples/plate.toml): fields, noise, model, loss, optimizer, schedule, batches.

    examples/moving-meshes plate -o runs/plate
    bench/peers/moving_meshes.py runs/plate examples/plate.toml --threads 1

Prints the errors on the test split as a line of JSON: RMSE over predicted nodes of each field, one step ahead and over whole
rollouts. Needs torch and numpy (bench/peers/requirements.txt).
"""
import argparse
import json
import pathlib
import struct
import sys
import time
import tomllib

import meshgraphnet


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=pathlib.Path, help="folder that examples/moving-meshes wrote")
    parser.add_argument("config", type=pathlib.Path, help="configuration of meshgrad train")
    parser.add_argument("--steps", type=int, help="instead of train.steps")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for PyTorch's own choice")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


class Recipe:
    """What the loop needs of a configuration, with meshgrad's defaults."""

    def __init__(self, path, steps):
        config = tomllib.loads(path.read_text())
        data, train = config["data"], config["train"]
        self.targets, self.inputs = data["targets"], data["inputs"]
        self.values = data.get("value_targets", [])
        self.second = data.get("predict", "change") == "second_change"
        self.node_types, self.predicted = data.get("node_types", 9), data["predicted_types"]
        self.noisy, self.kinematic = data.get("noise_types", [0]), data.get("kinematic_types", [])
        self.radius, self.other_type = data.get("world_radius", 0.0), data.get("world_pairs", "all") == "other_type"
        self.steps, self.batch = steps or train["steps"], train.get("batch", 2)
        self.noise, self.gamma, self.clip = train["noise"], train.get("gamma", 1.0), train.get("clip_norm", 1.0)
        self.width, self.blocks = config["model"]["width"], config["model"]["blocks"]
        self.rates = config["optimizer"]["lr"], config["schedule"]["final_lr"]
        known = self.targets[0] == data["world_position"] == "world_pos" and self.inputs in ([], ["world_pos"])
        if not known or self.values not in ([], self.targets[1:]) or (self.inputs and not self.second):
            sys.exit(f"moving_meshes.py: error: [{path}] needed a recipe like examples/flag.toml or examples/plate.toml, got "
                     "other fields; fix: begin with one of these")


def varint(data, at):
    number = shift = 0
    while True:
        number |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return number, at


def messages(data):
    """The fields of a protobuf message that has only byte strings."""
    at = 0
    while at < len(data):
        _, at = varint(data, at)
        length, at = varint(data, at)
        yield data[at:at + length]
        at += length


def records(path):
    """The byte string of each name, of each tf.Example of a TFRecord file."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        length = struct.unpack_from("<Q", data, at)[0]
        example = data[at + 12:at + 12 + length]
        at += length + 16
        names = {}
        for entry in messages(next(messages(example))):
            name, feature = messages(entry)
            names[name.decode()] = next(messages(next(messages(feature))))
        yield names


class Trajectory:
    """Arrays of a record; edges as [2, e], receivers then senders, sorted."""

    def __init__(self, np, recipe, meta, record):
        array = {name: np.frombuffer(record[name], feature["dtype"]).reshape(feature["shape"])
                 for name, feature in meta["features"].items()}
        self.rest, self.types = array["mesh_pos"][0], array["node_type"][0][:, 0]
        self.state = np.concatenate([array[name] for name in recipe.targets], axis=2)  # [frames, n, outputs]
        cells, nodes = array["cells"][0], len(self.types)
        corners = range(cells.shape[1])
        pairs = np.concatenate([cells[:, [i, j]] for i in corners for j in corners if i != j])
        self.edges = np.unique(pairs, axis=0).T
        self.rest_columns = displacements(np, self.rest, self.edges)
        self.one_hot = np.eye(recipe.node_types, dtype=np.float32)[self.types]
        self.predicted, self.noisy, self.kinematic = (
            np.isin(self.types, types)[:, None] for types in (recipe.predicted, recipe.noisy, recipe.kinematic))
        self.far = np.ones((nodes, nodes), bool)  # pairs that world edges may join
        self.far[self.edges[0], self.edges[1]] = False
        np.fill_diagonal(self.far, False)
        if recipe.other_type:
            self.far &= self.types[:, None] != self.types[None, :]


def displacements(np, positions, edges):
    offset = positions[edges[1]].astype(np.float64) - positions[edges[0]]
    return np.concatenate([offset, np.linalg.norm(offset, axis=1, keepdims=True)], axis=1).astype(np.float32)


def features(np, recipe, trajectory, t, current, previous):
    """Node inputs, and for each edge set its edges and their features; t is the frame of `current`."""
    columns, world = [], current[:, :3]
    if recipe.inputs:
        columns.append(world - previous[:, :3])
    if recipe.kinematic:
        following = trajectory.state[min(t + 1, len(trajectory.state) - 1)][:, :3]
        columns.append(np.where(trajectory.kinematic, following - world, 0).astype(np.float32))
    moving = np.concatenate([displacements(np, world, trajectory.edges), trajectory.rest_columns], axis=1)
    sets = [(trajectory.edges, moving)]
    if recipe.radius > 0:
        distance = np.linalg.norm(world[:, None].astype(np.float64) - world[None], axis=2)
        near = np.stack(np.nonzero((distance < recipe.radius) & trajectory.far))
        sets.append((near, displacements(np, world, near)))
    return np.concatenate(columns + [trajectory.one_hot], axis=1), sets


def sample(np, recipe, trajectory, t, rng=None):
    """Features and target of the step from frame t; with noise if there is a generator."""
    current, previous = trajectory.state[t].copy(), trajectory.state[t - 1]
    noise = np.zeros_like(current)
    if rng is not None:
        drawn = recipe.noise * rng.standard_normal((len(current), 3))
        noise[:, :3] = np.where(trajectory.noisy, drawn, 0)
    current += noise
    goal = trajectory.state[t + 1] + (1 - recipe.gamma) * noise
    target = goal - 2 * current + previous if recipe.second else goal - current
    if recipe.values:
        target[:, 3:] = trajectory.state[t + 1][:, 3:]
    return *features(np, recipe, trajectory, t, current, previous), target


def first_frame(recipe):
    return 1 if recipe.second else 0


def statistics(np, recipe, trajectories):
    """Means and standard deviations: of inputs, of each edge set's features, of targets."""
    nodes, sets, targets = [], [[] for _ in range(2 if recipe.radius > 0 else 1)], []
    for trajectory in trajectories:
        for t in range(first_frame(recipe), len(trajectory.state) - 1):
            x, edges, target = sample(np, recipe, trajectory, t)
            nodes.append(x)
            for i, (_, columns) in enumerate(edges):
                sets[i].append(columns)
            targets.append(target[trajectory.predicted[:, 0]])
    nodes, targets = np.concatenate(nodes).astype(np.float64), np.concatenate(targets).astype(np.float64)
    mean, deviation = nodes.mean(0), nodes.std(0)
    free = nodes.shape[1] - recipe.node_types
    mean[free:], deviation[free:] = 0, 1
    if recipe.kinematic:  # the 0 of other nodes stays 0
        moved = nodes[np.any(nodes[:, free - 3:free] != 0, axis=1)]
        mean[free - 3:free], deviation[free - 3:free] = 0, np.sqrt((moved[:, free - 3:free] ** 2).mean(0))
    left = recipe.noise * ((1 + recipe.gamma) if recipe.second else recipe.gamma)  # of the noise, in targets
    of_targets = targets.std(0)
    of_targets[:3] = np.hypot(of_targets[:3], left)
    scales = [(mean, deviation)]
    for rows in sets:
        rows = np.concatenate(rows).astype(np.float64)
        scales.append((rows.mean(0), rows.std(0)) if len(rows) else (np.zeros(4), np.ones(4)))
    return [(m.astype(np.float32), np.where(s > 1e-8, s, 1).astype(np.float32))
            for m, s in scales + [(targets.mean(0), of_targets)]]


def union(np, torch, recipe, stats, samples):
    """Samples as one graph, normalised: nodes, a list of (receivers, senders, features), targets."""
    (node_mean, node_std), (target_mean, target_std) = stats[0], stats[-1]
    sets = []
    for i, (mean, deviation) in enumerate(stats[1:-1]):
        first, edges, columns = 0, [], []
        for nodes, given, _ in samples:
            edges.append(given[i][0] + first)
            columns.append(given[i][1])
            first += len(nodes)
        receivers, senders = torch.from_numpy(np.concatenate(edges, axis=1).astype(np.int64))
        sets.append((receivers, senders, torch.from_numpy((np.concatenate(columns) - mean) / deviation)))
    nodes = (np.concatenate([one[0] for one in samples]) - node_mean) / node_std
    targets = (np.concatenate([one[2] for one in samples]) - target_mean) / target_std
    return torch.from_numpy(nodes), sets, torch.from_numpy(targets)


def build(torch, recipe, stats):
    options = argparse.Namespace(width=recipe.width)
    mlp = lambda inputs, outputs=recipe.width, norm=True: meshgraphnet.make_mlp(torch, options, inputs, outputs, norm)
    edge_sets, lists = stats[1:-1], torch.nn.ModuleList

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.edges = lists(mlp(3 * recipe.width) for _ in edge_sets)
            self.nodes = mlp((1 + len(edge_sets)) * recipe.width)

        def forward(self, h, latents, sets):
            inputs, after = [h], []
            for edge_mlp, e, (receivers, senders, _) in zip(self.edges, latents, sets):
                message = edge_mlp(torch.cat([h.index_select(0, senders), h.index_select(0, receivers), e], dim=1))
                inputs.append(torch.zeros_like(h).index_add(0, receivers, message))
                after.append(e + message)
            return h + self.nodes(torch.cat(inputs, dim=1)), after

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.encode_nodes = mlp(len(stats[0][0]))
            self.encode_edges = lists(mlp(len(mean)) for mean, _ in edge_sets)
            self.blocks = lists(Block() for _ in range(recipe.blocks))
            self.decode = mlp(recipe.width, len(stats[-1][0]), norm=False)

        def forward(self, nodes, sets):
            h, latents = self.encode_nodes(nodes), [encode(one[2]) for encode, one in zip(self.encode_edges, sets)]
            for block in self.blocks:
                h, latents = block(h, latents, sets)
            return self.decode(h)

    return Network()


def train(np, torch, recipe, model, trajectories, stats, seed):
    rng, order = np.random.default_rng(seed), []
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.rates[0], fused=True)
    places = [(i, t) for i, one in enumerate(trajectories) for t in range(first_frame(recipe), len(one.state) - 1)]
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.rates[0] * (recipe.rates[1] / recipe.rates[0]) ** (step / recipe.steps)
        drawn = []
        while len(drawn) < recipe.batch:
            order = order or rng.permutation(len(places)).tolist()
            drawn.append(places[order.pop()])
        batch = [sample(np, recipe, trajectories[i], t, rng) for i, t in drawn]
        mask = torch.from_numpy(np.concatenate([trajectories[i].predicted for i, _ in drawn]))
        nodes, sets, target = union(np, torch, recipe, stats, batch)
        loss = ((model(nodes, sets) - target).square() * mask).sum() / mask.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
        optimizer.step()
        if (step + 1) % 500 == 0:
            print(f"step {step + 1}: loss {float(loss.detach()):.3e}", file=sys.stderr)


def advance(np, torch, recipe, model, stats, trajectory, t, current, previous):
    """The state of frame t + 1: predicted at predicted nodes, the data's elsewhere."""
    inputs = (*features(np, recipe, trajectory, t, current, previous), current)
    nodes, sets, _ = union(np, torch, recipe, stats, [inputs])
    with torch.no_grad():
        change = model(nodes, sets).numpy() * stats[-1][1] + stats[-1][0]
    following = (2 * current - previous if recipe.second else current) + change
    if recipe.values:
        following[:, 3:] = change[:, 3:]
    return np.where(trajectory.predicted, following, trajectory.state[t + 1])


def errors(np, torch, recipe, model, trajectories, stats):
    """RMSE of each field: one step ahead, over whole rollouts, and of predicting that nothing changes."""
    sums = {name: np.zeros(2) for name in ("one_step", "rollout", "no_change")}
    count, first = 0, first_frame(recipe)
    for trajectory in trajectories:
        mask = trajectory.predicted[:, 0]
        add = lambda name, ours, t: np.add(sums[name], [
            np.square((ours - trajectory.state[t])[mask][:, columns].astype(np.float64)).sum()
            for columns in (slice(0, 3), slice(3, None))], out=sums[name])
        rolled, before = trajectory.state[first], trajectory.state[first - 1]
        for t in range(first, len(trajectory.state) - 1):
            step = lambda *state: advance(np, torch, recipe, model, stats, trajectory, t, *state)
            add("one_step", step(trajectory.state[t], trajectory.state[t - 1]), t + 1)
            add("no_change", trajectory.state[t], t + 1)
            rolled, before = step(rolled, before), rolled
            add("rollout", rolled, t + 1)
            count += int(mask.sum())
    return {name: {field: float((total / (count * size)) ** 0.5)
                   for field, total, size in zip(recipe.targets, values, (3, 1))} for name, values in sums.items()}


def main(arguments=None):
    options = parse(arguments)
    import numpy as np
    import torch
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    recipe = Recipe(options.config, options.steps)
    meta = json.loads((options.data / "meta.json").read_text())
    trajectories = {split: [Trajectory(np, recipe, meta, record) for record in records(options.data / f"{split}.tfrecord")]
                    for split in ("train", "test")}
    stats = statistics(np, recipe, trajectories["train"])
    model = build(torch, recipe, stats)
    begin = time.perf_counter()
    train(np, torch, recipe, model, trajectories["train"], stats, options.seed)
    print(json.dumps({**errors(np, torch, recipe, model, trajectories["test"], stats),
                      "parameters": sum(parameter.numel() for parameter in model.parameters()),
                      "seconds": time.perf_counter() - begin, "pytorch": torch.__version__}))


if __name__ == "__main__":
    main()
