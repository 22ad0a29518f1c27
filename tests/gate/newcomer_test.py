#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A newcomer with files of a solver: from a folder to a prediction on a mesh without a solution, in at most six
commands and without an editor. Twice: heat that flows past a hot block (fields over time), and loaded beams (steady
fields). `newcomer_test.py MESHGRAD FOLDER [STEPS]`; without STEPS training is as long as init says.
"""
import json
import math
import os
import pathlib
import random
import re
import resource
import shutil
import subprocess
import sys


def vtu(points, cells, cell_type, fields):
    """Text of a VTU file; fields are name -> rows."""
    def array(kind, name, rows, components):
        flat = " ".join(" ".join(f"{x:.7g}" for x in row) for row in rows)
        return f'<DataArray type="{kind}" Name="{name}" NumberOfComponents="{components}">{flat}</DataArray>'
    data = "".join(array("Int32" if name == "bc" else "Float32", name, rows, len(rows[0])) for name, rows in fields.items())
    corners = " ".join(str(node) for cell in cells for node in cell)
    ends = " ".join(str((i + 1) * len(cells[0])) for i in range(len(cells)))
    return (f'<VTKFile type="UnstructuredGrid"><UnstructuredGrid><Piece NumberOfPoints="{len(points)}" '
            f'NumberOfCells="{len(cells)}"><PointData>{data}</PointData><Points>{array("Float32", "Points", points, 3)}'
            f'</Points><Cells><DataArray type="Int32" Name="connectivity">{corners}</DataArray><DataArray type="Int32" '
            f'Name="offsets">{ends}</DataArray><DataArray type="UInt8" Name="types">'
            f'{" ".join([str(cell_type)] * len(cells))}</DataArray></Cells></Piece></UnstructuredGrid></VTKFile>')


def heat_case(rng, frames):
    """A channel with a hot block, T by explicit steps on the nodes of a grid: inlet 1, outlet 2, walls 3, block 4."""
    nx, ny = rng.randint(14, 18), rng.randint(8, 10)
    width, speed = 2.0, rng.uniform(0.4, 1.0)
    hx, hy = width / (nx - 1), 1.0 / (ny - 1)
    cold, hot = rng.uniform(290, 300), rng.uniform(330, 390)
    bi, bj = rng.randint(3, nx - 7), rng.randint(2, ny - 4)
    kind = {}
    for j in range(ny):
        for i in range(nx):
            block = bi <= i <= bi + 1 and bj <= j <= bj + 1
            kind[i, j] = 4 if block else 1 if i == 0 else 2 if i == nx - 1 else 3 if j in (0, ny - 1) else 0
    value = {at: hot if type == 4 else cold for at, type in kind.items()}
    flow = {(i, j): speed * 4 * (j * hy) * (1 - j * hy) for i, j in kind}
    order = [(i, j) for j in range(ny) for i in range(nx)]
    cells = []
    for j in range(ny - 1):
        for i in range(nx - 1):
            a = j * nx + i
            cells += [(a, a + 1, a + nx), (a + 1, a + nx + 1, a + nx)]
    points = [(i * hx, j * hy, 0) for i, j in order]
    result, inner, step = [], 8, 0.005
    for _ in range(frames):
        result.append(vtu(points, cells, 5, {
            "T": [(value[at],) for at in order], "U": [(flow[at], 0, 0) for at in order],
            "bc": [(kind[at],) for at in order]}))
        for _ in range(inner):
            after = dict(value)
            for (i, j), type in kind.items():
                if type in (1, 4):
                    continue
                left, right = value[i - 1, j], value.get((i + 1, j), value[i, j])
                down, up = value.get((i, j - 1), value[i, j]), value.get((i, j + 1), value[i, j])
                here = value[i, j]
                diffusion = 0.01 * ((left - 2 * here + right) / hx**2 + (down - 2 * here + up) / hy**2)
                after[i, j] = here + step * (diffusion - flow[i, j] * (here - left) / hx)
            value = after
    return result


def write_heat(folder, cases, frames):
    rng = random.Random(1)
    for case in range(cases + 1):
        run = folder / ("new" if case == cases else f"heat/run_{case:02}")
        run.mkdir(parents=True)
        files = heat_case(rng, 1 if case == cases else frames)
        for frame, text in enumerate(files):
            (run / f"heat_{frame:04}.vtu").write_text(text)
        if case < cases:
            entries = "".join(f'<DataSet timestep="{0.04 * f:.6g}" file="heat_{f:04}.vtu"/>' for f in range(frames))
            (run / "heat.pvd").write_text(f'<VTKFile type="Collection"><Collection>{entries}</Collection></VTKFile>')


def beam(rng, solved):
    """A block of tetrahedra, clamped at the left (1) and loaded at the right (2), bent as Euler and Bernoulli say."""
    nx, ny, nz = rng.randint(16, 20), 3, 3
    size = (rng.uniform(0.15, 0.25), rng.uniform(0.04, 0.06), rng.uniform(0.03, 0.05))
    young, load = rng.choice([70e9, 110e9, 210e9]), rng.gauss(0, 1.2e6)
    node = lambda i, j, k: (k * ny + j) * nx + i
    points = [(size[0] * i / (nx - 1), size[1] * j / (ny - 1), size[2] * k / (nz - 1))
              for k in range(nz) for j in range(ny) for i in range(nx)]
    cells = []
    for k in range(nz - 1):
        for j in range(ny - 1):
            for i in range(nx - 1):
                c = [node(i + a, j + b, k + d) for d in (0, 1) for b in (0, 1) for a in (0, 1)]
                c = [c[0], c[1], c[3], c[2], c[4], c[5], c[7], c[6]]  # around the bottom, then the top
                for pick in ((0, 6, 1, 2), (0, 6, 2, 3), (0, 6, 3, 7), (0, 6, 7, 4), (0, 6, 4, 5), (0, 6, 5, 1)):
                    cells.append(tuple(c[p] for p in pick))
    inertia = size[1] * size[2]**3 / 12
    force = load * size[1] * size[2]
    ends = [1 if p[0] == 0 else 2 if abs(p[0] - size[0]) < 1e-9 else 0 for p in points]
    fields = {"traction": [(0, 0, load if end == 2 else 0) for end in ends], "young": [(young,) for _ in points],
              "bc": [(end,) for end in ends]}
    if solved:
        def moved(p):
            bend = force * p[0]**2 * (3 * size[0] - p[0]) / (6 * young * inertia)
            slope = force * p[0] * (2 * size[0] - p[0]) / (2 * young * inertia)
            return (-slope * (p[2] - size[2] / 2), 0.3 * slope * (p[1] - size[1] / 2), bend)
        fields["u"] = [moved(p) for p in points]
        fields["von_mises"] = [(abs(force * (size[0] - p[0]) * (p[2] - size[2] / 2) / inertia),) for p in points]
    return vtu(points, cells, 10, fields)


def write_beams(folder, cases):
    rng = random.Random(2)
    (folder / "beams").mkdir(parents=True)
    for case in range(cases):
        (folder / f"beams/case_{case:03}.vtu").write_text(beam(rng, True))
    (folder / "new_beam.vtu").write_text(beam(rng, False))


class Newcomer:
    """Types commands in a folder, and counts them."""

    def __init__(self, program, folder):
        self.program, self.folder, self.commands = program, folder, 0

    def types(self, *words, codes=(0,)):
        self.commands += 1
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([self.program, *words], cwd=self.folder, capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"$ meshgrad {' '.join(words)}  ({seconds:.1f} s of CPU time)\n{done.stderr}{done.stdout}")
        assert done.returncode in codes, f"{words} ended with {done.returncode}"
        return done.stdout + done.stderr


def check(condition, what):
    assert condition, what


def try_heat(program, folder, steps):
    write_heat(folder, 12, 21)
    newcomer = Newcomer(program, folder)
    newcomer.types("convert", "heat", "-o", "heat.mgd", "--node-types", "bc")
    newcomer.types("init", "--data", "heat.mgd", "-o", "heat.toml")
    newcomer.types("check", "heat.toml")
    newcomer.types("train", "heat.toml", *steps)
    errors = json.loads(newcomer.types("evaluate", "runs/heat", "--json", "--quiet"))
    said = newcomer.types("rollout", "runs/heat", "new", "--steps", "20", "-o", "out", "--format", "vtu,npz",
                          "--probe", "1.5,0.5", "--integrals")
    check(newcomer.commands <= 6, "six commands")
    check(errors["fields"]["T"]["rmse"] < errors["fields"]["T"]["baseline_rmse"], "better than that nothing changes")
    config = (folder / "heat.toml").read_text()
    check(re.search(r'targets = \["T"\]', config), "init predicts T")
    check("predicted_types = [0, 2, 3]" in config, "init predicts where T changes")
    check("from the training is not known" not in said, "the checkpoint knows its ranges")
    check((folder / "out/new/rollout.pvd").exists() or list(folder.glob("out/*/rollout.pvd")), "a series for ParaView")
    table = next(folder.glob("out/*/rollout_probes.csv")).read_text().splitlines()
    rows = [line.split(",") for line in table if not line.startswith("#")]
    check(len(rows) == 22 and rows[1][4] == "cell", "a probe in a cell at each of 21 times")
    check(all(250 < float(row[-1]) < 450 for row in rows[1:]), "temperatures of this problem")
    return errors


def try_beams(program, folder, steps):
    write_beams(folder, 20)
    newcomer = Newcomer(program, folder)
    newcomer.types("convert", "beams", "-o", "beams.mgd", "--node-types", "bc")
    said = newcomer.types("init", "--data", "beams.mgd", "-o", "beams.toml")
    checked = newcomer.types("check", "beams.toml")
    trained = newcomer.types("train", "beams.toml", *steps)
    errors = json.loads(newcomer.types("evaluate", "runs/beams", "--json", "--quiet"))
    newcomer.types("predict", "runs/beams", "new_beam.vtu", "-o", "out", "--probe", "0.1,0.02,0.02", "--integrals")
    check(newcomer.commands <= 6, "six commands")
    config = (folder / "beams.toml").read_text()
    check(re.search(r'targets = \["u", "von_mises"\]', config), "init predicts the solution, not the material")
    for text in (said, checked):
        check("a message travels" in re.sub(r"\s+", " ", text), "the load is out of reach, said before training")
    check("verdict" in trained, "what the run is worth, said after training")
    examined = newcomer.types("doctor", "runs/beams", codes=(0, 1))  # 1: what it finds is bad
    check("a message travels" in re.sub(r"\s+", " ", examined), "the load is out of reach, said after training")
    check((folder / "out/new_beam.vtu").exists(), "a file named after the new part")
    check((folder / "out/new_beam_probes.csv").exists(), "its probe")
    return errors


def main():
    program, folder = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
    steps = ["--set", f"train.steps={sys.argv[3]}"] if len(sys.argv) > 3 else []
    shutil.rmtree(folder, ignore_errors=True)
    for name, trial in (("heat", try_heat), ("beams", try_beams)):
        print(f"{name}: {json.dumps(trial(program, folder / name, steps))}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = used.ru_utime + used.ru_stime
    print(f"{seconds:.0f} s of CPU time")
    check(seconds < 900, "both in 15 minutes of CPU time")


if __name__ == "__main__":
    main()
