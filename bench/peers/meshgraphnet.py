#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The step of `meshgrad-bench run step/` in PyTorch: the same model, mesh, loss and optimizer, and rows with the same
fields. A row applies only to the machine and the run that made it.

The model is MeshGraphNets (Pfaff et al. 2021): concatenated inputs [sender, receiver, edge] and [node, aggregate],
MLPs of two hidden layers with ReLU and a LayerNorm (none in the decoder), residuals, sums of the edge MLP's outputs over
a receiver's edges. With --amp, GEMMs run under autocast; master weights, LayerNorm, loss and Adam are f32, and f16 scales
the loss.

--framework uses the model of PyTorch Geometric (pyg_model.py) or PhysicsNeMo (physicsnemo_model.py); its prediction is
compared with that of the plain model, with the same weights, before it is timed. Everything else is shared.
"""
import argparse
import glob
import json
import math
import sys
import time

NODE_INPUTS, EDGE_INPUTS, OUTPUTS = 11, 3, 2
LEARNING_RATE, CLIP_NORM = 1e-4, 1.0


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=["pytorch", "pyg", "physicsnemo"], default="pytorch")
    parser.add_argument("--square", type=int, default=43, metavar="S", help="mesh: a triangulated square of S x S "
                        "nodes (default %(default)s)")
    parser.add_argument("--edges", type=int, help="mesh: a triangulated torus with this many edges, six per node")
    parser.add_argument("--batch", type=int, default=1, help="meshes per step (default %(default)s)")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--forward", action="store_true", help="prediction only, without gradients")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager")
    parser.add_argument("--amp", choices=["f16", "bf16"], help="autocast to this type")
    parser.add_argument("--checkpoint", action="store_true", help="recompute every block in backward")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads, 0 for PyTorch's own choice")
    parser.add_argument("--memory", action="store_true",
                        help="instead of timing: the peak bytes of all tensors over two steps, by PyTorch's profiler; CPU")
    parser.add_argument("--seconds", type=float, default=3.0, help="time to measure (default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the row to this file")
    options = parser.parse_args(arguments)
    if (options.edges or 6) < 6 or min(options.square - 1, options.batch, options.width, options.blocks) < 1:
        parser.error("needed at least 6 edges, a square of 2 x 2, and 1 of batch, width and blocks")
    if options.framework == "physicsnemo" and options.compile:
        parser.error("needed --framework pytorch or pyg with --compile: PhysicsNeMo compiles its parts itself")
    if options.framework != "pytorch" and options.checkpoint:
        parser.error("needed --framework pytorch with --checkpoint")
    if options.memory and options.device != "cpu":
        parser.error("needed --device cpu with --memory: on a GPU every row has the peak of its allocator")
    return options


def row_name(options):
    """peer/pytorch/train/eager/10752/f32"""
    how = "concat_trick" if options.framework == "physicsnemo" else "compiled" if options.compile else "eager"
    how += "_checkpoint" if options.checkpoint else ""
    work = ("memory/" if options.memory else "") + ("forward" if options.forward else "train")
    return f"peer/{options.framework}/{work}/{how}/{mesh_sizes(options)[1]}/{options.amp or 'f32'}"


def parameter_count(width, blocks):
    """The number of parameters, equal to that of meshgrad's model."""
    def mlp(inputs, outputs, norm):
        layers = [inputs, width, width, outputs]
        return sum((a + 1) * b for a, b in zip(layers, layers[1:])) + (2 * outputs if norm else 0)
    block = mlp(3 * width, width, True) + mlp(2 * width, width, True)
    return (mlp(NODE_INPUTS, width, True) + mlp(EDGE_INPUTS, width, True) + blocks * block
            + mlp(width, OUTPUTS, False))


def split_flops(width, blocks, nodes, edges):
    """FLOPs of a forward pass as meshgrad counts them: first layers split by linearity."""
    deep = 2 * width * width
    block = edges * (width * width + deep) + nodes * (4 * width * width + deep)
    ends = (edges * (EDGE_INPUTS * width + deep) + nodes * (NODE_INPUTS * width + deep)
            + nodes * (deep + width * OUTPUTS))
    return 2.0 * (blocks * block + ends)


def mesh(options):
    """One mesh of meshgrad-bench: node i receives from i +- 1, i +- s and i +- (s + 1), modulo the nodes of a torus or
    within a square, sorted by receiver. The number of nodes, and the edges' senders and receivers."""
    nodes = options.square ** 2 if options.edges is None else options.edges // 6
    side = round(nodes ** 0.5)
    senders, receivers = [], []
    for node in range(nodes):
        for down, right in ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1)):
            row, column = node // side + down, node % side + right
            if options.edges is None and not (0 <= row < side and 0 <= column < side):
                continue
            senders.append((node + down * side + right) % nodes)
            receivers.append(node)
    return nodes, senders, receivers


def mesh_sizes(options):
    """Nodes and edges of a step."""
    one, s = options.edges, options.square
    nodes, edges = (s * s, 2 * (3 * s - 1) * (s - 1)) if one is None else (one // 6, one // 6 * 6)
    return nodes * options.batch, edges * options.batch


def median_interval(values):
    """Median and the order statistics that contain it in 95 % of samples; the extremes below 6 values."""
    values = sorted(values)
    n, below, low, choose = len(values), 0.0, 0, 1.0
    for k in range((n - 1) // 2):
        below += choose / 2.0 ** n if n < 1000 else 0.0
        choose = choose * (n - k) / (k + 1)
        if k > 0 and 1.0 - 2.0 * below < 0.95:
            break
        low = k
    if n >= 1000:  # the binomial's normal limit
        low = max(0, int(n / 2 - 0.98 * n ** 0.5))
    middle = 0.5 * (values[(n - 1) // 2] + values[n // 2])
    return middle, values[low], values[n - 1 - low]


def make_mlp(torch, options, inputs, outputs, norm=True):
    nn, width = torch.nn, options.width
    layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)]
    return nn.Sequential(*layers, *([nn.LayerNorm(outputs)] if norm else []))


def build_network(torch, options, make_block):
    """Encoders, blocks of (nodes, edges) -> (nodes, edges), decoder."""
    nn = torch.nn

    class MeshGraphNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode_nodes = make_mlp(torch, options, NODE_INPUTS, options.width)
            self.encode_edges = make_mlp(torch, options, EDGE_INPUTS, options.width)
            self.blocks = nn.ModuleList(make_block() for _ in range(options.blocks))
            self.decode = make_mlp(torch, options, options.width, OUTPUTS, norm=False)

        def forward(self, nodes, edges):
            from torch.utils.checkpoint import checkpoint
            h, e = self.encode_nodes(nodes), self.encode_edges(edges)
            for block in self.blocks:
                if options.checkpoint and self.training:
                    h, e = checkpoint(block, h, e, use_reentrant=False)
                else:
                    h, e = block(h, e)
            return self.decode(h)

    return MeshGraphNet()


def build_plain(torch, options, senders, receivers, sum_updated=False):
    """The network over one fixed mesh. `sum_updated`: nodes get the sums of edges with their residuals.

    Rows are gathered by index_select: h[senders] takes longer on a CPU, forward and backward.
    """
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.edges = make_mlp(torch, options, 3 * options.width, options.width)
            self.nodes = make_mlp(torch, options, 2 * options.width, options.width)

        def forward(self, h, e):
            message = self.edges(torch.cat([h.index_select(0, senders), h.index_select(0, receivers), e], dim=1))
            updated = e + message
            summed = updated if sum_updated else message
            aggregate = torch.zeros_like(h, dtype=summed.dtype).index_add(0, receivers, summed)
            return h + self.nodes(torch.cat([h, aggregate], dim=1)), updated

    return build_network(torch, options, Block)


def build_model(torch, options, senders, receivers):
    """The framework's model, and the same model in plain PyTorch with the same weights (None if it is that one)."""
    if options.framework == "pytorch":
        return build_plain(torch, options, senders, receivers), None
    if options.framework == "pyg":
        import pyg_model
        model = pyg_model.build(torch, options, senders, receivers, build_network, make_mlp)
        plain = build_plain(torch, options, senders, receivers)
        plain.load_state_dict(model.state_dict())
        return model, plain
    import physicsnemo_model
    model = physicsnemo_model.build(torch, options, senders, receivers, (NODE_INPUTS, EDGE_INPUTS, OUTPUTS))
    plain = build_plain(torch, options, senders, receivers, sum_updated=True)
    plain.load_state_dict(physicsnemo_model.plain_weights(torch, model, options.blocks))
    return model, plain


def difference(torch, model, plain, inputs):
    """Relative difference between the model's prediction and the plain model's."""
    with torch.no_grad():
        expected = plain(*inputs)
        return float((model(*inputs) - expected).abs().max() / expected.abs().max())


def prepare(torch, options, wrap=lambda model: model):
    """A function that runs one step, the parameter count, and the name of the model it was compared with. `wrap` gives
    what is called instead of the model."""
    torch.manual_seed(0)
    device = options.device
    one, senders, receivers = mesh(options)
    shift = [one * copy for copy in range(options.batch) for _ in senders]
    index = [torch.tensor([a + s for a, s in zip(side * options.batch, shift)], device=device)
             for side in (senders, receivers)]
    nodes, edges = mesh_sizes(options)
    model, plain = build_model(torch, options, *index)
    model = model.to(device)
    count = sum(parameter.numel() for parameter in model.parameters())
    x, e = torch.randn(nodes, NODE_INPUTS, device=device), torch.randn(edges, EDGE_INPUTS, device=device)
    target = torch.randn(nodes, OUTPUTS, device=device)
    check = ""
    if plain is not None and not options.memory:
        off = difference(torch, model, plain.to(device), (x, e))
        if not off <= 1e-3:  # nor a NaN
            raise RuntimeError(f"the prediction is {off:.2g} from plain PyTorch's")
        check = "plain PyTorch"
    del plain
    kind = torch.device(device).type
    amp = {"f16": torch.float16, "bf16": torch.bfloat16, None: torch.float32}[options.amp]
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=True)
    scales = kind == "cuda" and options.amp == "f16"
    scaler = (torch.amp.GradScaler(kind, enabled=scales) if hasattr(torch.amp, "GradScaler")
              else torch.cuda.amp.GradScaler(enabled=scales))
    called = wrap(torch.compile(model) if options.compile else model)

    def forward():
        with torch.autocast(kind, dtype=amp if options.amp else torch.bfloat16, enabled=options.amp is not None):
            return called(x, e)

    def predict():
        with torch.no_grad():
            return forward()

    def train():
        loss = (forward().float() - target).square().sum() / nodes
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss

    model.train(not options.forward)
    return (predict if options.forward else train), count, check


def scheduled():
    """Seconds that the threads of this process ran, and waited for a busy core; None if not counted."""
    ran = waited = 0
    for path in glob.glob("/proc/self/task/*/schedstat"):
        try:
            with open(path) as file:
                values = file.read().split()
        except OSError:  # the thread has just ended
            continue
        ran, waited = ran + int(values[0]), waited + int(values[1])
    return (ran / 1e9, waited / 1e9) if ran > 0 else None


def cpu_fields(before, after, cpu_seconds, runs):
    """CPU seconds per run, and the received share of the requested CPU time; 0: not counted."""
    share = 0.0
    if before and after:
        ran, waited = after[0] - before[0], after[1] - before[1]
        share = ran / (ran + waited) if ran > 0 else 0.0
    return {"cpu_s": cpu_seconds / runs, "cpu_share": share}


def tensor_bytes_peak(torch, make_step):
    """Peak of the bytes of all tensors, weights and optimizer state too: everything is made while PyTorch's profiler
    records each allocation. The first step makes Adam's moments, the second has them."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step, count, _ = make_step()
        for _ in range(2):
            step()
    events = [(event.start_ns(), event.nbytes()) for event in recorded.profiler.kineto_results.events()
              if event.name() == "[memory]"]
    now = peak = 0
    for _, change in sorted(events, key=lambda event: event[0]):  # stable: those of one moment stay in order
        now += change
        peak = max(peak, now)
    return peak, count


def time_steps(torch, options, step):
    """Milliseconds of steps queued back to back, peak memory in MiB, and CPU time fields."""
    on_gpu = torch.device(options.device).type == "cuda"
    for _ in range(3):  # compiles, and fills the allocator
        step()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    ms, begin, before, cpu = [], time.perf_counter(), scheduled(), time.process_time()
    while len(ms) < 4 or (time.perf_counter() - begin < options.seconds and len(ms) < 10000):
        if on_gpu:
            marks = [torch.cuda.Event(enable_timing=True) for _ in range(6)]
            marks[0].record()
            for mark in marks[1:]:
                step()
                mark.record()
            torch.cuda.synchronize()
            ms += [a.elapsed_time(b) for a, b in zip(marks, marks[1:])]
        else:
            start = time.perf_counter()
            step()
            ms.append(1e3 * (time.perf_counter() - start))
    cpu = cpu_fields(before, scheduled(), time.process_time() - cpu, len(ms))
    return ms, torch.cuda.max_memory_allocated() / 2 ** 20 if on_gpu else 0.0, {} if on_gpu else cpu


def describe(options):
    nodes, edges = mesh_sizes(options)
    return f"{nodes} nodes, {edges} edges, {options.blocks} blocks, width {options.width}"


def framework_versions(torch, options):
    """Versions of PyTorch and of the model's framework."""
    versions = f"PyTorch {torch.__version__}"
    if options.framework != "pytorch":
        import torch_geometric
        versions += f", PyTorch Geometric {torch_geometric.__version__}"
    if options.framework == "physicsnemo":
        import physicsnemo
        versions += f", PhysicsNeMo {physicsnemo.__version__}"
    return versions


def make_row(options, ms, memory_mib, device, threads, version):
    nodes, edges = mesh_sizes(options)
    median, low, high = median_interval(ms)
    flops = split_flops(options.width, options.blocks, nodes, edges) * (1 if options.forward else 3)
    return {"name": row_name(options),
            "description": describe(options),
            "device": device, "threads": threads, "framework": version, "check": "",
            "repeats": len(ms), "ms": median, "ms_min": min(ms), "ms_max": max(ms), "ms_low": low, "ms_high": high,
            "gflops": flops / median / 1e6, "memory_peak_mib": memory_mib}


def run(torch, options):
    """The row, and whether the loss was finite."""
    device = torch.cuda.get_device_name() if torch.device(options.device).type == "cuda" else "cpu"
    version, threads = framework_versions(torch, options), torch.get_num_threads()
    expected = parameter_count(options.width, options.blocks)
    if options.memory:
        peak, count = tensor_bytes_peak(torch, lambda: prepare(torch, options))
        row = {"name": row_name(options), "description": describe(options), "device": device, "threads": threads,
               "framework": version, "tensor_bytes_peak": peak, "memory_peak_mib": peak / 2 ** 20}
    else:
        step, count, check = prepare(torch, options)
        ms, memory, cpu = time_steps(torch, options, step)
        row = {**make_row(options, ms, memory, device, threads, version), "check": check, **cpu}
        if not math.isfinite(float(step().detach().float().sum())):
            raise RuntimeError("the last step gave a non-finite number")
    if count != expected:
        raise RuntimeError(f"{count} parameters, where meshgrad has {expected}")
    return {**row, "parameters": count}


def main(arguments=None):
    """Rows of several sets of options, divided by --next: PyTorch is imported once."""
    words, sets = list(sys.argv[1:] if arguments is None else arguments), [[]]
    for word in words:
        sets.append([]) if word == "--next" else sets[-1].append(word)
    codes, rows = [], []
    for options in [parse(part) for part in sets]:
        codes.append(run_one(options, rows))
    return max(codes)


def run_one(options, rows):
    """Appends the row to those before it and writes them; the exit code."""
    try:
        import torch
        if options.threads:
            torch.set_num_threads(options.threads)
        row = run(torch, options)
    except ImportError as error:
        print(f"meshgraphnet.py: error: [{options.framework}] needed its packages, got {error}; fix: run where they are "
              "installed (scripts/peers --venv DIR)", file=sys.stderr)
        return 1
    except RuntimeError as error:
        print(f"meshgraphnet.py: error: [{row_name(options)}] {error}", file=sys.stderr)
        return 1
    if options.memory:
        print(f"{row['name']}: {row['memory_peak_mib']:.0f} MiB of tensors at the peak, {row['parameters']} parameters")
    else:
        print(f"{row['name']}: {row['ms']:.3f} ms [{row['ms_low']:.3f}, {row['ms_high']:.3f}], "
              f"{row['gflops']:.0f} GFLOP/s, {row['memory_peak_mib']:.0f} MiB, {row['parameters']} parameters")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(rows + [row], file, indent=1)
    rows.append(row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
