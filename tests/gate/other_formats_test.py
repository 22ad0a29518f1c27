#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts what other programs wrote, through scripts/to-vtu, and compares it with what was written.

usage: other_formats_test.py PROGRAM VENV     VENV is the environment of vtu_readers_test.py; exits 77 where it cannot
                                              be made
"""
import pathlib
import subprocess
import sys

import foreign_files
import vtk_sources_test
import vtu_readers_test


def to_vtu(source, target):
    script = pathlib.Path(__file__).resolve().parents[2] / "scripts/to-vtu"
    return subprocess.run([sys.executable, script, source, "-o", target], capture_output=True, text=True)


def convert_to_vtu(source, target):
    done = to_vtu(source, target)
    assert done.returncode == 0, done.stderr


def other_formats(program, folder):
    """Through scripts/to-vtu: Gmsh with physical groups, a mesh and a series of Exodus, a case of OpenFOAM."""
    import meshio
    import numpy
    folder.mkdir()
    points, cells = vtk_sources_test.square()
    inflow = [[r * 5, (r + 1) * 5] for r in range(4)]
    tags = [numpy.full(len(cells), 1, numpy.int32), numpy.full(4, 4, numpy.int32)]
    mesh = meshio.Mesh(points, [("triangle", cells), ("line", inflow)], point_data={"u": points[:, 0]},
                       cell_data={"gmsh:physical": tags, "gmsh:geometrical": tags})
    meshio.gmsh.write(folder / "plate.msh", mesh, fmt_version="2.2", binary=True)
    convert_to_vtu(folder / "plate.msh", folder / "gmsh")
    report, _ = vtk_sources_test.convert(program, folder / "gmsh", folder / "gmsh.mgd", "--node-types", "gmsh:physical")
    assert report["node_types"] == [20, 0, 0, 0, 5] and report["edges"]["min"] == vtk_sources_test.sides(cells), report
    meshio.write(folder / "plate.e", meshio.Mesh(points, [("triangle", cells)]))
    convert_to_vtu(folder / "plate.e", folder / "plate")
    report, _ = vtk_sources_test.convert(program, folder / "plate", folder / "plate.mgd")
    assert report["nodes"]["min"] == len(points) and report["edges"]["min"] == vtk_sources_test.sides(cells), report
    foreign_files.write_exodus(folder / "series.e")
    convert_to_vtu(folder / "series.e", folder / "exodus")
    report, _ = vtk_sources_test.convert(program, folder / "exodus", folder / "exodus.mgd")
    assert report["frames"] == 4 and report["dt"] == 0.5 and report["edges"]["min"] == 34, report
    found = vtk_sources_test.statistics(program, folder / "exodus.mgd")
    vtk_sources_test.check_range(found["u"], numpy.array([0, 16.5]))
    vtk_sources_test.check_range(found["p"], numpy.array([0, 20]))
    foreign_files.write_openfoam(folder / "case")
    convert_to_vtu(folder / "case", folder / "foam")
    report, _ = vtk_sources_test.convert(program, folder / "foam", folder / "foam.mgd", "--node-types", "patch")
    assert report["frames"] == 3 and report["dt"] == 0.5 and report["edges"]["min"] == 14, report
    # All cells are beside wall; two of them also beside left and two beside right, and the last patch counts.
    assert report["node_types"] == [0, 6, 6, 6], report["node_types"]
    vtk_sources_test.check_range(vtk_sources_test.statistics(program, folder / "foam.mgd")["p"], numpy.array([0, 15]))
    (folder / "broken.msh").write_text("$MeshFormat\n4.1 0 8\n$EndMeshFormat\n$Nodes\n1 zwei\n")
    done = to_vtu(folder / "broken.msh", folder)
    assert done.returncode == 1 and "fix:" in done.stderr and "Traceback" not in done.stderr, done.stderr
    done = to_vtu(folder / "no.msh", folder)
    assert done.returncode == 1 and "no.msh" in done.stderr and "fix:" in done.stderr, done.stderr


def exodus_blocks(program, folder):
    """Displacements stay a field, points at one place stay apart, and what one block lacks is refused."""
    import numpy
    folder.mkdir()
    row = [[0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6]]
    points = numpy.array([[x, y] for y in (0, 1) for x in range(4)], float)

    def read(name, *of_mesh):
        path = folder / f"{name}.e"
        foreign_files.write_exodus_blocks(path, *of_mesh)
        convert_to_vtu(path, folder / name)
        report, _ = vtk_sources_test.convert(program, folder / name, folder / f"{name}.mgd")
        mesh = vtu_readers_test.read_points(folder / name)
        return report, mesh[numpy.lexsort(mesh.T)]
    moved = {"disp_x": [points[:, 0] * 0.5], "disp_y": [points[:, 1] * 0.25]}
    for name, times in (("static", (0.0,)), ("moving", (0.0, 0.5))):
        report, mesh = read(name, points, [row], {key: value * len(times) for key, value in moved.items()}, {}, times)
        assert report["frames"] == len(times) and numpy.array_equal(mesh, points[numpy.lexsort(points.T)]), mesh
    # Two bodies with nodes of their own at x = 2, and a plate with a slit there.
    apart = numpy.vstack([points, points[[2, 6]]])
    parts = [row[:2], [[8, 3, 7, 9]]]
    for name, blocks in (("contact", parts), ("slit", [parts[0] + parts[1]])):
        report, mesh = read(name, apart, blocks, {"T": [numpy.arange(10.0)]}, {})
        assert report["nodes"]["min"] == 10 and report["edges"]["min"] == 2 * 11, report
        vtk_sources_test.check_range(vtk_sources_test.statistics(program, folder / f"{name}.mgd")["T"], numpy.array([0.0, 9]))
    report, _ = read("shared", points, [row[:2], row[2:]], {"T": [numpy.arange(8.0)]}, {"q": [[[0.0, 1]], [[2.0]]]})
    assert report["nodes"]["min"] == 8 and report["edges"]["min"] == 2 * 10, report
    for name, values in (("first", [[[0.0]], None, None]), ("two", [[[0.0]], [[1.0]], None])):
        foreign_files.write_exodus_blocks(folder / f"{name}.e", points, [[cell] for cell in row], {"T": [numpy.arange(8.0)]}, {"q": values})
        done = to_vtu(folder / f"{name}.e", folder / name)
        assert done.returncode == 1 and "e: q] needed an array of all 3 blocks" in done.stderr, done.stderr


def gmsh_and_cgns(program, folder):
    """What Gmsh itself wrote, and CGNS of Gmsh (by the library of CGNS, read by VTK) and of meshio (read by meshio)."""
    import meshio
    import numpy
    folder.mkdir()
    try:
        points, triangles = foreign_files.write_by_gmsh(folder)
    except OSError as error:  # the package is there, but not what it is linked with
        print(f"not tried: Gmsh ({error})")
        return
    left = numpy.sum(points[:, 0] < 1e-9)
    border = set(numpy.flatnonzero((points[:, 0] > 2 - 1e-9) | (points[:, 1] < 1e-9) | (points[:, 1] > 1 - 1e-9)))
    border |= set(numpy.flatnonzero(abs(numpy.hypot(points[:, 0] - 0.5, points[:, 1] - 0.5) - 0.2) < 1e-9))
    for path in [*sorted(folder.glob("plate_*.msh")), folder / "plate.cgns"]:
        target = folder / path.name.replace(".", "_")
        convert_to_vtu(path, target)
        options = ["--node-types", "gmsh:physical"] if path.suffix == ".msh" else []
        report, _ = vtk_sources_test.convert(program, target, target.with_suffix(".mgd"), *options)
        assert report["dim"] == 2 and report["nodes"]["min"] == len(points), (path, report)
        assert report["edges"]["min"] == vtk_sources_test.sides(triangles.tolist()), (path, report["edges"])
        if options:
            # The largest number counts, so that the corners of the left side have that of the others.
            wanted = [len(points) - len(border) - left + 2, 0, 0, 0, left - 2, 0, len(border)]
            assert report["node_types"] == wanted, (path, report["node_types"], wanted)
    for path in [folder / "flow_0.msh", folder / "flow_1.msh"]:
        target = folder / path.stem
        convert_to_vtu(path, target)
        report, _ = vtk_sources_test.convert(program, target, target.with_suffix(".mgd"))
        assert report["frames"] == 3 and report["dt"] == 0.25 and report["nodes"]["min"] == len(points), (path, report)
        found = vtk_sources_test.statistics(program, target.with_suffix(".mgd"))
        vtk_sources_test.check_range(found["flow"], numpy.array([0.0, 4.0]))
        vtk_sources_test.check_range(found["rest"], numpy.array([0.0, 2.0]))
    text = (folder / "flow_0.msh").read_text()
    last = text[text.index("$NodeData"):]
    other = folder / "uneven.msh"
    other.write_text(text + last[:last.index("$EndNodeData")].replace('"flow"', '"p"') + "$EndNodeData\n" + last.replace('"flow"', '"p"')
                     .replace("\n0.25\n", "\n0.125\n"))
    done = to_vtu(other, folder / "uneven")
    assert done.returncode == 1 and "views with the same steps and times" in done.stderr, done.stderr
    solid = numpy.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 1]], float)
    meshio.write(folder / "solid.cgns", meshio.Mesh(solid, [("tetra", [[0, 1, 2, 3], [1, 2, 3, 4]])]))
    convert_to_vtu(folder / "solid.cgns", folder / "solid")
    report, _ = vtk_sources_test.convert(program, folder / "solid", folder / "solid.mgd")
    assert report["nodes"]["min"] == 5 and report["edges"]["min"] == 2 * 9, report
    (folder / "junk.cgns").write_text("junk")
    done = to_vtu(folder / "junk.cgns", folder)
    assert done.returncode == 1 and "junk.cgns" in done.stderr and "Traceback" not in done.stderr, done.stderr


def main():
    program, venv = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    vtu_readers_test.enter_environment(venv)
    vtu_readers_test.run_each((other_formats, exodus_blocks, gmsh_and_cgns), program)


if __name__ == "__main__":
    main()
