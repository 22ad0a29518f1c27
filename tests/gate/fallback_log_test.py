#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What runs op by op on a GPU instead of in a fused kernel reaches the user: meshgrad train and rollout on the simulated
device say so once, with the reason; and train in f32, which no fused kernel takes, what 16 bits would save.

usage: fallback_log_test.py MESHGRAD FOLDER
"""
import json
import pathlib
import shutil
import subprocess
import sys

MEANT = "runs op by op, not as a fused kernel: hidden width 8, not 64, 128 or 256"


def write_frames(folder, nodes=8):
    """Four frames of a field on a strip of triangles, as VTK legacy files."""
    folder.mkdir(parents=True)
    cells = nodes - 2
    for frame in range(4):
        (folder / f"{frame}.vtk").write_text("\n".join([
            "# vtk DataFile Version 3.0", "strip", "ASCII", "DATASET UNSTRUCTURED_GRID", f"POINTS {nodes} float",
            *(f"{i // 2} {i % 2} 0" for i in range(nodes)), f"CELLS {cells} {4 * cells}",
            *(f"3 {i} {i + 1} {i + 2}" for i in range(cells)), f"CELL_TYPES {cells}", *["5"] * cells,
            f"POINT_DATA {nodes}", "SCALARS u float 1", "LOOKUP_TABLE default",
            *(str(0.1 * (i % 8) * (1 + frame)) for i in range(nodes))]) + "\n")


def lines_of(text):
    return [line for line in text.splitlines() if MEANT in line]


def check(condition, what, text):
    if not condition:
        sys.exit(f"fallback_log_test: {what}\n{text}")


def main():
    meshgrad, folder = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)

    def run(*words):
        return subprocess.run([meshgrad, *words], cwd=folder, check=True, capture_output=True, text=True).stderr

    for name in ("train", "test"):
        write_frames(folder / "frames" / name)
    run("convert", "frames", "-o", "sample.mgd")
    (folder / "config.toml").write_text('precision = "f16"\n[data]\npath = "sample.mgd"\ninputs = ["u"]\ntargets = ["u"]\n'
                                        'valid_split = "test"\n[model]\nwidth = 8\nblocks = 1\n'
                                        '[train]\nsteps = 2\n[run]\ndir = "run"\ndevice = "cuda"\n')
    text = run("train", "config.toml")
    said = lines_of(text)
    check(len(said) >= 2 and len(set(said)) == len(said), "train: one line for each kernel that is not fused", text)
    logged = (folder / "run/log.txt").read_text()
    check(len(lines_of(logged)) == len(said), "the same lines in log.txt", logged)
    events = [json.loads(line) for line in (folder / "run/events.jsonl").read_text().splitlines()]
    check("".join(event["text"] + "\n" for event in events) == logged, "log.txt is what events.jsonl says", logged)
    check(sum(event["kind"] == "log" and MEANT in event["text"] for event in events) == len(said), "as events", str(events))
    rollout = ["rollout", "run", "--steps", "2", "--device", "cuda"]
    text = run(*rollout)
    check(lines_of(text), "rollout: the same", text)
    text = run("--quiet", *rollout)
    check(not lines_of(text), "--quiet", text)
    for name in ("train", "test"):
        write_frames(folder / "larger" / name, nodes=300)
    run("convert", "larger", "-o", "larger.mgd")
    wide = ["train", "config.toml", "--run", "f32", "--set", "data.path=larger.mgd", "--set", "model.width=64",
            "--set", "model.blocks=4", "--set", "train.steps=1", "--set", "train.batch=1", "--set", "train.validate_every=0"]
    gain = 'precision = "bf16" would save: a step takes '
    text = run(*wide, "--set", "precision=f32")
    check(text.count(gain) == 1, "train in f32: what 16 bits would save, once", text)
    check((folder / "f32/log.txt").read_text().count(gain) == 1, "the same in log.txt", text)
    check(gain not in run(*wide, "--set", "precision=f32", "--resume"), "not to a run that goes on", text)


if __name__ == "__main__":
    main()
