#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rank of PyTorch's DistributedDataParallel over gloo, which trains on one mesh a rank and step; rank 0 prints the median
seconds of a step. bench/studies/mesh-over-ranks --ddp starts the ranks, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""
import argparse
import statistics
import time

import meshgraphnet
import torch
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--square", type=int, required=True, help="the mesh: a square of so many nodes a side")
    parser.add_argument("--steps", type=int, default=5, help="steps to time, after one more")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    step, _, _ = meshgraphnet.prepare(torch, meshgraphnet.parse(["--square", str(options.square), "--device", "cpu"]),
                                      DistributedDataParallel)
    times = []
    for _ in range(options.steps + 1):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    if torch.distributed.get_rank() == 0:
        print(statistics.median(times[1:]))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
