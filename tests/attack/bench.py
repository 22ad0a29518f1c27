# SPDX-License-Identifier: Apache-2.0
# What attacks share: a small data set, a run, the program as a child process, and what must hold afterwards.
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import zipfile

CLOCK_KEYS = ("steps_per_second", "data_wait_seconds", "epoch_seconds", "run_seconds", "memory_")  # how they begin
STEPS = 40
ENVIRONMENT = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": "/nonexistent", "MESHGRAD_CPU_ISA": ""}
LIMIT = 6 << 30  # bytes of address space


class Finding(Exception):
    """The program did what it must not do."""


def npy(kind, shape, values):
    code = {"<f4": "f", "<i4": "i", "<f8": "d"}[kind]
    shape_text = "(" + "".join(f"{extent}, " for extent in shape) + ")"
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape_text}}}"
    header += " " * (63 - (10 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + struct.pack(
        f"<{len(values)}{code}", *values)


def write_npz(path, seed, side=6, frames=8):
    """A wave on a square of triangles: positions, cells, node types and one velocity."""
    draw = random.Random(seed)
    positions, types, cells = [], [], []
    for y in range(side):
        for x in range(side):
            positions += [0.1 * x + 0.01 * draw.random(), 0.1 * y]
            types.append(6 if y in (0, side - 1) else 4 if x == 0 else 0)
            if x + 1 < side and y + 1 < side:
                at = y * side + x
                cells += [at, at + 1, at + side, at + 1, at + side + 1, at + side]
    nodes = side * side
    velocity = [draw.gauss(0, 1) + 0.1 * t for t in range(frames) for _ in range(2 * nodes)]
    arrays = {"mesh_pos": npy("<f4", (nodes, 2), positions), "node_type": npy("<i4", (nodes,), types),
              "cells": npy("<i4", (len(cells) // 3, 3), cells),
              "velocity": npy("<f4", (frames, nodes, 2), velocity), "dt": npy("<f8", (1,), [0.01])}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in arrays.items():
            archive.writestr(name + ".npy", data)


class Bench:
    """The program, a packed file and an uninterrupted run, made once; each attack works in a folder of its own."""

    def __init__(self, program, source, folder):
        self.program, self.source, self.folder = str(program), pathlib.Path(source), pathlib.Path(folder)
        data = self.folder / "data"
        data.mkdir()
        for seed, split in enumerate(("train", "valid", "test")):
            write_npz(data / f"{split}.npz", seed)
        self.npz = data
        self.packed = self.folder / "waves.mgd"
        self.must(["convert", data, "-o", self.packed])
        self.config = self.folder / "config.toml"
        self.config.write_text(
            "[run]\nthreads = 1\n[model]\nwidth = 16\nblocks = 2\n[data]\n"
            f'path = "{self.packed}"\ninputs = ["velocity"]\ntargets = ["velocity"]\n'
            f"[train]\nsteps = {STEPS}\nbatch = 2\naccumulate = 2\nvalidate_every = 8\nvalidate_samples = 3\n"
            "validate_share = 1\ncheckpoint_every = 5\nlog_every = 3\nnoise = 0.01\n[optimizer]\nlr = 1e-3\n"
            f"[schedule]\ndecay_steps = {STEPS}\n")
        self.straight = self.folder / "straight"
        self.must(["train", self.config, "--run", self.straight])
        self.expected = self.result_of(self.straight)
        self.evaluated = self.run(["evaluate", self.straight, "--json"]).stdout

    def command(self, words):
        return [self.program] + [str(word) for word in words]

    def run(self, words, seconds=60, environment=None, limit=LIMIT, **how):
        """Runs to the end; a hang is a finding."""
        def limits():
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        how.setdefault("stdout", subprocess.PIPE)
        how.setdefault("stderr", subprocess.PIPE)
        how.setdefault("stdin", subprocess.DEVNULL)
        try:
            return subprocess.run(self.command(words), env={**ENVIRONMENT, **(environment or {})},
                                  timeout=seconds, preexec_fn=limits, check=False, **how)
        except subprocess.TimeoutExpired:
            raise Finding(f"ran for more than {seconds} s") from None

    def start(self, words, environment=None):
        return subprocess.Popen(self.command(words), env={**ENVIRONMENT, **(environment or {})},
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                start_new_session=True)

    def must(self, words):
        done = self.run(words)
        if done.returncode != 0:
            raise Finding(f"{words[0]} exits with {done.returncode}: {done.stderr.decode(errors='replace')}")
        return done

    def start_stopped(self, run, draw):
        """A run that was stopped before its end."""
        process = self.start(self.train_words(run, False))
        self.wait_until_caught(process)
        pause(draw, 0.2)
        send(process, signal.SIGTERM)
        wait_for(process, 60)

    @staticmethod
    def wait_until_caught(process):
        """Until the process catches SIGTERM; before that, a signal ends it as it ends any other program."""
        while process.poll() is None:
            try:
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                return
            caught = re.search(r"^SigCgt:\s*(\w+)", status, re.M)
            if caught and int(caught[1], 16) >> (signal.SIGTERM - 1) & 1:
                return
            time.sleep(0.002)

    def result_of(self, run):
        """What must not depend on how a run came to its end."""
        lines = []
        for line in (run / "metrics.jsonl").read_text().splitlines():
            row = json.loads(line)
            lines.append({key: value for key, value in row.items() if not key.startswith(CLOCK_KEYS)})
        return [self.without_folder((run / "checkpoints" / name).read_bytes())
                for name in ("last.safetensors", "best.safetensors")] + [lines]

    @staticmethod
    def without_folder(checkpoint):
        """The tensors: the configuration in the header names the run's folder, and the checksum covers it."""
        header = struct.unpack("<Q", checkpoint[:8])[0]
        return checkpoint[8 + header:]

    def train_words(self, run, resume):
        return ["train", self.config, "--run", run] + (["--resume"] if resume else [])

    def has_checkpoint(self, run):
        return (run / "checkpoints" / "last.safetensors").exists()

    def finish(self, run):
        """Resumes (or starts) without any attack, to the end; the result is the uninterrupted run's."""
        done = self.run(self.train_words(run, self.has_checkpoint(run)))
        if done.returncode != 0:
            raise Finding(f"does not go on: {done.stderr.decode(errors='replace')}")
        got = self.result_of(run)
        for name, ours, expected in zip(("last", "best", "metrics"), got, self.expected):
            if ours != expected:
                raise Finding(f"{name} differs from the uninterrupted run")
        left = [str(path) for path in run.rglob(".*.tmp.*")]
        if left:
            raise Finding(f"left behind: {left}")

    def check_outcome(self, done, codes=(0, 1, 2)):
        """An exit code of those, and one readable error if it is not 0."""
        text = (done.stderr or b"").decode(errors="replace")
        if done.returncode not in codes:
            raise Finding(f"exits with {done.returncode}: {text[-600:]}")
        errors = len(re.findall(r"^meshgrad: error: ", text, re.M))
        if errors != (0 if done.returncode in (0, 75) else 1):
            raise Finding(f"exits with {done.returncode} and {errors} errors: {text[-600:]}")
        for bad in ("this is a bug in meshgrad", "HDF5-DIAG", "AddressSanitizer", "terminate called"):
            if bad in text:
                raise Finding(f"says {bad!r}: {text[-600:]}")


def wait_for(process, seconds):
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise Finding(f"ran for more than {seconds} s") from None
    return subprocess.CompletedProcess([], process.returncode, b"", err)


def pause(draw, most):
    time.sleep(draw.random() * most)


def mutated(draw, data):
    """A few bytes changed, removed or inserted, or the end cut off."""
    data = bytearray(data)
    kind = draw.choice(("flip", "flip", "bytes", "cut", "insert", "remove", "zero", "repeat"))
    at = draw.randrange(max(1, len(data)))
    if draw.random() < 0.5:  # headers are short, and most is decided there
        at = min(at, draw.randrange(max(1, min(len(data), 4096))))
    if not data or kind == "insert":
        data[at:at] = draw.randbytes(draw.randrange(1, 64))
    elif kind == "flip":
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "bytes":
        for _ in range(draw.randrange(1, 9)):
            data[draw.randrange(len(data))] = draw.randrange(256)
    elif kind == "cut":
        del data[at:]
    elif kind == "remove":
        del data[at:at + draw.randrange(1, 64)]
    elif kind == "zero":
        end = min(len(data), at + draw.randrange(1, 512))
        data[at:end] = bytes(end - at)
    else:
        data[at:at] = data[at:at + draw.randrange(1, 256)]
    return bytes(data)


def fresh_folder(parent):
    return pathlib.Path(tempfile.mkdtemp(dir=parent))


def send(process, number):
    if process.poll() is None:
        os.kill(process.pid, number)


__all__ = ["Bench", "Finding", "STEPS", "fresh_folder", "mutated", "pause", "send", "shutil", "signal", "wait_for"]
