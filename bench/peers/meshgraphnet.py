#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The step that `meshgrad-bench run step/` times, in plain PyTorch: the same model, mesh, loss and optimizer, and
rows of the same fields. A row says what PyTorch did on the machine and in the run that made it, and nothing else.

The model is MeshGraphNets (Pfaff et al. 2021): concatenated inputs [sender, receiver, edge] and [node, aggregate],
MLPs of two hidden layers with ReLU and a LayerNorm (none in the decoder), residuals, sums over a receiver's edges
of what the edge MLP put out. With --amp, matrix products run under autocast; masters, LayerNorm, loss and Adam are
f32, and f16 scales the loss.
"""
import argparse
import json
import sys
import time

NODE_INPUTS, EDGE_INPUTS, OUTPUTS = 11, 3, 2
LEARNING_RATE, CLIP_NORM = 1e-4, 1.0


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=10668, help="of one mesh; six a node (default %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="meshes in a step (default %(default)s)")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--blocks", type=int, default=15)
    parser.add_argument("--forward", action="store_true", help="prediction alone, without gradients")
    parser.add_argument("--compile", action="store_true", help="torch.compile instead of eager")
    parser.add_argument("--amp", choices=["f16", "bf16"], help="autocast to this type")
    parser.add_argument("--checkpoint", action="store_true", help="every block is computed again in backward")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=3.0, help="of timing (default %(default)s)")
    parser.add_argument("--json", metavar="FILE", help="also write the row to this file")
    options = parser.parse_args(arguments)
    if options.edges < 6 or min(options.batch, options.width, options.blocks) < 1:
        parser.error("needed at least 6 edges, and 1 of batch, width and blocks")
    return options


def row_name(options):
    """peer/pytorch/train/eager/10668/f32"""
    how = ("compiled" if options.compile else "eager") + ("_checkpoint" if options.checkpoint else "")
    work = "forward" if options.forward else "train"
    return f"peer/pytorch/{work}/{how}/{options.edges * options.batch}/{options.amp or 'f32'}"


def parameter_count(width, blocks):
    """What meshgrad's model of this size has, too."""
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


def torus(nodes):
    """The mesh of meshgrad-bench: node i hears from i +- 1, i +- s and i +- (s + 1), sorted by receiver."""
    side = round(nodes ** 0.5)
    offsets = [1, -1, side, -side, side + 1, -side - 1]
    return [(i + o) % nodes for i in range(nodes) for o in offsets], [i for i in range(nodes) for _ in offsets]


def median_interval(values):
    """Median and the order statistics that hold it in 95 % of samples; the extremes below 6 values."""
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


def build_model(torch, options, senders, receivers):
    """The network over one fixed mesh."""
    nn = torch.nn

    class Mlp(nn.Module):
        def __init__(self, inputs, outputs, norm=True):
            super().__init__()
            width = options.width
            layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
                      nn.Linear(width, outputs)]
            self.layers = nn.Sequential(*layers, *([nn.LayerNorm(outputs)] if norm else []))

        def forward(self, x):
            return self.layers(x)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.edges, self.nodes = Mlp(3 * options.width, options.width), Mlp(2 * options.width, options.width)

        def forward(self, h, e):
            message = self.edges(torch.cat([h[senders], h[receivers], e], dim=1))
            aggregate = torch.zeros_like(h, dtype=message.dtype).index_add(0, receivers, message)
            return h + self.nodes(torch.cat([h, aggregate], dim=1)), e + message

    class MeshGraphNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode_nodes, self.encode_edges = Mlp(NODE_INPUTS, options.width), Mlp(EDGE_INPUTS, options.width)
            self.blocks = nn.ModuleList(Block() for _ in range(options.blocks))
            self.decode = Mlp(options.width, OUTPUTS, norm=False)

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


def prepare(torch, options):
    """A function that does one step, and the model's parameter count."""
    torch.manual_seed(0)
    device = options.device
    one = options.edges // 6
    senders, receivers = torus(one)
    shift = [one * copy for copy in range(options.batch) for _ in senders]
    index = [torch.tensor([a + s for a, s in zip(side * options.batch, shift)], device=device)
             for side in (senders, receivers)]
    nodes, edges = one * options.batch, 6 * one * options.batch
    model = build_model(torch, options, *index).to(device)
    count = sum(parameter.numel() for parameter in model.parameters())
    x, e = torch.randn(nodes, NODE_INPUTS, device=device), torch.randn(edges, EDGE_INPUTS, device=device)
    target = torch.randn(nodes, OUTPUTS, device=device)
    kind = torch.device(device).type
    amp = {"f16": torch.float16, "bf16": torch.bfloat16, None: torch.float32}[options.amp]
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, **({"fused": True} if kind == "cuda" else {}))
    scales = kind == "cuda" and options.amp == "f16"
    scaler = (torch.amp.GradScaler(kind, enabled=scales) if hasattr(torch.amp, "GradScaler")
              else torch.cuda.amp.GradScaler(enabled=scales))
    called = torch.compile(model) if options.compile else model

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
    return (predict if options.forward else train), count


def time_steps(torch, options, step):
    """Milliseconds of steps queued one behind the other, and the peak of memory in MiB."""
    on_gpu = torch.device(options.device).type == "cuda"
    for _ in range(3):  # compiles, and fills the allocator
        step()
    if on_gpu:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    ms, begin = [], time.perf_counter()
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
    return ms, torch.cuda.max_memory_allocated() / 2 ** 20 if on_gpu else 0.0


def make_row(options, ms, memory_mib, device, threads, version):
    one = options.edges // 6
    nodes, edges = one * options.batch, 6 * one * options.batch
    median, low, high = median_interval(ms)
    flops = split_flops(options.width, options.blocks, nodes, edges) * (1 if options.forward else 3)
    return {"name": row_name(options),
            "description": f"{nodes} nodes, {edges} edges, {options.blocks} blocks, width {options.width}",
            "device": device, "threads": threads, "framework": f"PyTorch {version}", "check": "",
            "repeats": len(ms), "ms": median, "ms_min": min(ms), "ms_max": max(ms), "ms_low": low, "ms_high": high,
            "gflops": flops / median / 1e6, "memory_peak_mib": memory_mib}


def main(arguments=None):
    options = parse(arguments)
    try:
        import torch
    except ImportError as error:
        print(f"meshgraphnet.py: error: [torch] needed PyTorch, got {error}; fix: run where it is installed",
              file=sys.stderr)
        return 1
    step, count = prepare(torch, options)
    expected = parameter_count(options.width, options.blocks)
    if count != expected:
        print(f"meshgraphnet.py: error: {count} parameters, where meshgrad has {expected}", file=sys.stderr)
        return 1
    ms, memory = time_steps(torch, options, step)
    on_gpu = torch.device(options.device).type == "cuda"
    row = make_row(options, ms, memory, torch.cuda.get_device_name() if on_gpu else "cpu", torch.get_num_threads(),
                   torch.__version__)
    print(f"{row['name']}: {row['ms']:.3f} ms [{row['ms_low']:.3f}, {row['ms_high']:.3f}], "
          f"{row['gflops']:.0f} GFLOP/s, {row['memory_peak_mib']:.0f} MiB")
    if options.json:
        with open(options.json, "w") as file:
            json.dump([row], file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
