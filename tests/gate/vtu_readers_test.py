#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens the files of a rollout with vtk and meshio, and compares them with the data.

usage: vtu_readers_test.py PROGRAM VENV     makes the virtual environment VENV once; exits 77 where PyPI cannot be
                                            reached, or MESHGRAD_NO_NETWORK is set
"""
import os
import pathlib
import subprocess
import sys
import tempfile

SKIPPED = 77
PACKAGES = ["meshio==5.3.5", "vtk", "h5py", "netCDF4", "gmsh"]


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def enter_environment(venv):
    """Makes the environment of these packages, unless it is there, and runs this script again by its Python."""
    make_environment(venv)
    if pathlib.Path(sys.prefix).resolve() != venv.resolve():
        sys.exit(subprocess.run([venv / "bin/python", *sys.argv]).returncode)


def run_each(tests, program):
    """Each in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for test in tests:
            test(program, pathlib.Path(folder) / test.__name__)
            print(f"{test.__name__}: as written")


def make_environment(venv, packages=PACKAGES):
    done = venv / "installed.txt"
    if done.exists() and done.read_text().split() == packages:
        return
    if os.environ.get("MESHGRAD_NO_NETWORK"):
        skip("MESHGRAD_NO_NETWORK is set, and the environment is not installed")
    pip = [venv / "bin/python", "-m", "pip", "install", "--quiet", "--retries", "0", "--timeout", "5"]
    made = subprocess.run([sys.executable, "-m", "venv", venv], capture_output=True, text=True)
    if made.returncode != 0:
        skip(f"no virtual environment: {made.stdout}{made.stderr}")
    if subprocess.run([*pip, *packages]).returncode != 0:
        skip("pip could not install " + " ".join(packages))
    done.write_text("\n".join(packages))


def read_points(folder):
    """Of the first VTU file, [points, 2]."""
    import vtk
    from vtk.util.numpy_support import vtk_to_numpy
    reader = vtk.vtkXMLUnstructuredGridReader()
    reader.SetFileName(str(sorted(folder.glob("*.vtu"))[0]))
    reader.Update()
    return vtk_to_numpy(reader.GetOutput().GetPoints().GetData())[:, :2]


def trajectory(numpy, nodes, frames):
    """A strip of triangles with one scalar field."""
    node = numpy.arange(nodes)
    cells = numpy.stack([node[:-2], node[1:-1], node[2:]], axis=1).astype(numpy.int32)
    t = numpy.arange(frames)[:, None]
    return {"mesh_pos": numpy.stack([node // 2, node % 2], axis=1).astype(numpy.float32), "cells": cells,
            "node_type": (node % 2 * 5).astype(numpy.int32),
            "u": numpy.sin(0.3 * t + node)[:, :, None].astype(numpy.float32)}


def read_with_vtk(path):
    from vtkmodules.util.numpy_support import vtk_to_numpy
    from vtkmodules.vtkIOXML import vtkXMLUnstructuredGridReader
    reader = vtkXMLUnstructuredGridReader()
    reader.SetFileName(str(path))
    reader.Update()
    grid = reader.GetOutput()
    data = grid.GetPointData()
    fields = {data.GetArrayName(i): vtk_to_numpy(data.GetArray(i)) for i in range(data.GetNumberOfArrays())}
    cells = vtk_to_numpy(grid.GetCells().GetConnectivityArray()).reshape(-1, 3)
    return vtk_to_numpy(grid.GetPoints().GetData()), cells, fields


def read_with_meshio(path):
    import meshio
    mesh = meshio.read(path)
    return mesh.points, mesh.cells_dict["triangle"], mesh.point_data


def check(program, nodes, frames=3):
    import numpy
    data = trajectory(numpy, nodes, frames)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "npz").mkdir()
        for split in ("train", "valid", "test"):
            numpy.savez(folder / "npz" / f"{split}.npz", **data)

        def meshgrad(*arguments):
            subprocess.run([program, "--quiet", *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)

        meshgrad("convert", "npz", "-o", "data.mgd")
        settings = ["data.path=data.mgd", 'data.inputs=["u"]', 'data.targets=["u"]', "run.dir=run", "train.steps=1",
                    "train.validate_every=0", "model.width=8", "model.blocks=1"]
        (folder / "config.toml").write_text("")
        meshgrad("train", "config.toml", *[word for setting in settings for word in ("--set", setting)])
        meshgrad("rollout", "run", "--checkpoint", "last", "-o", "out")
        files = sorted((folder / "out").glob("*.vtu"))
        assert len(files) == frames, files
        for frame, path in enumerate(files):
            for read in (read_with_vtk, read_with_meshio):
                points, cells, fields = read(path)
                where = f"{nodes} nodes, frame {frame}, {read.__name__}"
                assert numpy.array_equal(points[:, :2], data["mesh_pos"]) and not points[:, 2].any(), where
                assert numpy.array_equal(cells, data["cells"]), where
                assert numpy.array_equal(fields["node_type"].ravel(), data["node_type"]), where
                assert fields["node_type"].dtype.kind == "i", where
                u, truth, error = (fields[name].ravel() for name in ("u", "u_truth", "u_error"))
                assert numpy.array_equal(truth, data["u"][frame].ravel()), where
                assert numpy.array_equal(error, u - truth), where


def main():
    program, venv = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    enter_environment(venv)
    for nodes in (9, 10, 11, 12, 16):  # meshio 5.3.5 confused equally long arrays where nodes mod 3 is 1
        check(program, nodes)
    print("vtk and meshio read what was written")


if __name__ == "__main__":
    main()
