#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures the memory of conversions: of all processes together, beyond that of a conversion of next to nothing, never
more than a stated multiple of the data, which are the file or, where it is compressed, what it unpacks to.

usage: convert_memory_test.py PROGRAM VENV [MIB]     VENV is the environment of vtu_readers_test.py; exits 77 where it
                                                     cannot be made; MIB of data in each file (default: 16)
"""
import pathlib
import subprocess
import sys
import tempfile
import time

import vtu_readers_test

MULTIPLE = 6


def resident(process):
    """Bytes of a process and its children, each page counted once; at least the most that one of them had so far."""
    try:
        with open(f"/proc/{process}/smaps_rollup") as lines:
            own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        with open(f"/proc/{process}/task/{process}/children") as children:
            together = own + sum(resident(child) for child in children.read().split())
        with open(f"/proc/{process}/status") as lines:
            return max(together, *(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")))
    except (OSError, TypeError):  # it has ended
        return 0


def peak(program, source, target):
    words = [program, "--quiet", "convert", source, "-o", target, "--force"]
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    most = 0
    while True:
        most = max(most, resident(child.pid))
        if child.poll() is not None:
            break
        time.sleep(0.002)
    assert child.returncode == 0, f"{source}: {child.stderr.read()}"
    return most


def strip(nodes):
    """Positions and cells of a strip of triangles."""
    import numpy
    node = numpy.arange(nodes)
    points = numpy.stack([node // 2, node % 2], axis=1).astype(numpy.float32)
    return points, numpy.stack([node[:-2], node[1:-1], node[2:]], axis=1).astype(numpy.int32)


def write_arrays(folder, megabytes):
    """Paths and bytes of data: NPZ and HDF5 files with one trajectory, which is then split by time."""
    import h5py
    import numpy
    nodes = 20000
    points, cells = strip(nodes)
    for kind in ("float32", "float64"):
        frames = (megabytes << 20) // (2 * nodes * numpy.dtype(kind).itemsize)
        values = numpy.random.default_rng(1).random((frames, nodes, 2)).astype(kind)
        arrays = {"mesh_pos": points, "cells": cells, "velocity": values}
        data = sum(array.nbytes for array in arrays.values())
        numpy.savez(folder / f"{kind}.npz", **arrays)
        yield folder / f"{kind}.npz", data
        # Far from zero: also kept in double precision until an offset is subtracted.
        if kind == "float64":
            numpy.savez(folder / "offset.npz", **{**arrays, "velocity": values + 1e6})
            yield folder / "offset.npz", data
        numpy.savez_compressed(folder / f"{kind}_packed.npz", **arrays)
        yield folder / f"{kind}_packed.npz", data
        for name, options in (("plain", {}), ("packed", {"compression": "gzip", "shuffle": True})):
            with h5py.File(folder / f"{kind}_{name}.h5", "w") as file:
                for array, numbers in arrays.items():
                    file.create_dataset(array, data=numbers, **options)
            yield folder / f"{kind}_{name}.h5", data
        with h5py.File(folder / f"{kind}_nodal.h5", "w") as file:
            places = numpy.broadcast_to(points.T[:, None], (2, frames, nodes)).astype(kind)
            rows = numpy.concatenate([places, values.transpose(2, 0, 1)])
            file["data/0/nodal_data"], file["data/0/mesh_edge"] = rows, cells[:, :2].T
            file["data"].attrs["features"] = "x,y,velocity_x,velocity_y"
        yield folder / f"{kind}_nodal.h5", rows.nbytes + cells[:, :2].nbytes


def write_series(folder, megabytes):
    """Likewise of series of VTU and of legacy files."""
    import meshio
    import numpy
    nodes = 20000
    points, cells = strip(nodes)
    points = numpy.pad(points.astype(float), ((0, 0), (0, 1)))
    for form, options in {"ascii": {"binary": False}, "zlib": {"compression": "zlib"}, "plain": {"compression": None},
                          "legacy": None}.items():
        (folder / form).mkdir()
        data = 0
        # A number takes 8 bytes, or about 24 as text, in each of velocity and the repeated mesh.
        frames = (megabytes << 20) // (nodes * (24 * 9 if form == "ascii" else 8 * 9))
        for frame in range(frames):
            velocity = numpy.random.default_rng(frame).random((nodes, 3))
            mesh = meshio.Mesh(points, [("triangle", cells)], {"velocity": velocity})
            path = folder / form / f"flow_{frame}.{'vtk' if form == 'legacy' else 'vtu'}"
            if options is None:
                meshio.write(path, mesh, file_format="vtk42", binary=True)
            else:
                meshio.vtu.write(path, mesh, **options)
            data += points.nbytes + cells.nbytes + velocity.nbytes if form == "zlib" else path.stat().st_size
        yield folder / form, data


def main():
    program, venv = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    vtu_readers_test.enter_environment(venv)
    megabytes = int(sys.argv[3]) if len(sys.argv) > 3 else 16
    import numpy
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        points, cells = strip(6)
        numpy.savez(folder / "small.npz", mesh_pos=points, cells=cells, u=numpy.zeros((2, 6, 1)))
        base = peak(program, folder / "small.npz", folder / "a.mgd")
        failed = []
        for write in (write_arrays, write_series):
            for path, data in write(folder, megabytes):
                most = peak(program, path, folder / "a.mgd") - base
                print(f"{path.name:22} {data / 2**20:6.1f} MiB of data, {most / 2**20:6.1f} MiB of memory: {most / data:.2f} x")
                failed += [path.name] if most > MULTIPLE * data else []
        assert not failed, f"more than {MULTIPLE} times the data: {failed}"


if __name__ == "__main__":
    main()
