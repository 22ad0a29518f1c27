#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Converts files that vtk and meshio wrote, in every form of the format, and compares them with what was written.

usage: vtk_sources_test.py PROGRAM VENV     VENV is the environment of vtu_readers_test.py; exits 77 where it cannot be
                                            made
"""
import contextlib
import json
import pathlib
import subprocess
import sys

import vtu_readers_test


def convert(program, source, target, *options):
    done = subprocess.run([program, "convert", source, "-o", target, "--split", "1", "--json", "--force", *options],
                          capture_output=True, text=True)
    assert done.returncode == 0, f"{source}: {done.stderr}"
    return json.loads(done.stdout), done.stderr


def refused(program, source, *words):
    done = subprocess.run([program, "convert", source, "-o", source.parent / "no.mgd"], capture_output=True,
                          text=True)
    assert done.returncode == 1, f"{source}: {done.returncode} {done.stderr}"
    for word in words:
        assert word in done.stderr, f"{source}: no \"{word}\" in {done.stderr}"


def statistics(program, packed):
    """Of each field, what `info` prints."""
    done = subprocess.run([program, "info", packed, "--json"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {field["name"]: field for field in json.loads(done.stdout)["fields"]}


def main():
    program, venv = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    vtu_readers_test.enter_environment(venv)
    vtu_readers_test.run_each((flat_meshes, solids, quadratic, polyhedra, surfaces, series, boundary_types,
                               cell_graphs, xdmf, what_is_refused), program)


def square(n=5):
    """Points and triangles of a square in z = 0."""
    import numpy
    x, y = numpy.meshgrid(numpy.linspace(0, 1, n), numpy.linspace(0, 2, n))
    points = numpy.stack([x.ravel(), y.ravel(), 0 * x.ravel()], 1)
    cells = [[r * n + c, r * n + c + 1, (r + 1) * n + c] for r in range(n - 1) for c in range(n - 1)]
    cells += [[r * n + c + 1, (r + 1) * n + c + 1, (r + 1) * n + c] for r in range(n - 1) for c in range(n - 1)]
    return points, numpy.array(cells)


def check_range(field, wanted):
    assert abs(min(field["minimum"]) - wanted.min()) < 1e-6, (field, wanted.min())
    assert abs(max(field["maximum"]) - wanted.max()) < 1e-6, (field, wanted.max())


def sides(cells):
    """How many directed edges closed polygons have."""
    pairs = {frozenset((cell[i - 1], cell[i])) for cell in cells for i in range(len(cell))}
    return 2 * len({pair for pair in pairs if len(pair) == 2})


def fields_of(points):
    import numpy
    velocity = numpy.stack([points[:, 1], -points[:, 0] ** 2, 0 * points[:, 0]], 1)
    return {"velocity": velocity, "pressure": numpy.sin(7 * points[:, 0]) + 3,
            "marker": numpy.arange(len(points), dtype=numpy.int32)}


def check_square(program, path, points, cells):
    report, notes = convert(program, path, path.with_suffix(".mgd"))
    assert report["dim"] == 2, path
    assert report["nodes"]["min"] == len(points), path
    assert report["edges"]["min"] == sides(cells), (path, report["edges"])
    found = statistics(program, path.with_suffix(".mgd"))
    for name, values in fields_of(points).items():
        field = found[name]
        wanted = values[:, :2] if values.ndim == 2 else values
        assert field["components"] == (2 if values.ndim == 2 else 1), (path, field)
        check_range(field, wanted)


def flat_meshes(program, folder):
    """One mesh in each form of .vtu and .vtk."""
    import meshio
    import vtk
    folder.mkdir()
    points, cells = square()
    mesh = meshio.Mesh(points, [("triangle", cells)], point_data=fields_of(points))
    forms = {"ascii.vtu": {"binary": False}, "zlib.vtu": {"compression": "zlib"}, "plain.vtu": {"compression": None}}
    for name, options in forms.items():
        meshio.vtu.write(folder / name, mesh, **options)
    for version in ("42", "51"):
        for binary in (False, True):
            meshio.write(folder / f"legacy_{version}{'b' if binary else 'a'}.vtk", mesh, file_format=f"vtk{version}",
                         binary=binary)
    reader = vtk.vtkXMLUnstructuredGridReader()
    reader.SetFileName(str(folder / "plain.vtu"))
    reader.Update()
    for mode in ("Ascii", "Binary", "Appended"):
        for raw in (False, True):
            for compressed in (False, True):
                for big_endian in (False, True):
                    for wide in (False, True):
                        writer = vtk.vtkXMLUnstructuredGridWriter()
                        writer.SetInputConnection(reader.GetOutputPort())
                        getattr(writer, f"SetDataModeTo{mode}")()
                        writer.SetEncodeAppendedData(not raw)
                        if compressed:
                            writer.SetCompressorTypeToZLib()
                        else:
                            writer.SetCompressorTypeToNone()
                        writer.SetBlockSize(1024)
                        if big_endian:
                            writer.SetByteOrderToBigEndian()
                        if wide:
                            writer.SetHeaderTypeToUInt64()
                        else:
                            writer.SetHeaderTypeToUInt32()
                        name = f"vtk_{mode}_{raw:d}{compressed:d}{big_endian:d}{wide:d}.vtu"
                        writer.SetFileName(str(folder / name))
                        writer.Write()
    for version in (42, 51):
        for binary in (False, True):
            writer = vtk.vtkUnstructuredGridWriter()
            writer.SetInputConnection(reader.GetOutputPort())
            writer.SetFileVersion(version)
            if binary:
                writer.SetFileTypeToBinary()
            writer.SetFileName(str(folder / f"vtk_{version}{binary:d}.vtk"))
            writer.Write()
    files = [*folder.glob("*.vtu"), *folder.glob("*.vtk")]
    assert len(files) == 3 + 4 + 48 + 4, len(files)
    for path in files:
        check_square(program, path, points, cells)


def solids(program, folder):
    """A hexahedron with a wedge on it, a pyramid beside it, and a tetrahedron; and only tetrahedra."""
    import meshio
    import numpy
    folder.mkdir()
    points = numpy.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1], [0, 1, 1],
                          [0.5, 0, 2], [0.5, 1, 2], [2, 0.5, 0.5], [2, 2, 2]], float)
    cells = [("hexahedron", [[0, 1, 2, 3, 4, 5, 6, 7]]), ("wedge", [[4, 5, 8, 7, 6, 9]]),
             ("pyramid", [[1, 2, 6, 5, 10]]), ("tetra", [[5, 6, 10, 11]])]
    mesh = meshio.Mesh(points, cells, point_data={"t": points[:, 2]})
    meshio.write(folder / "mixed.vtu", mesh)
    report, _ = convert(program, folder / "mixed.vtu", folder / "mixed.mgd")
    # 12 edges, 5 more of the wedge, 4 more of the pyramid, 3 more of the tetrahedron
    assert report["edges"]["min"] == 2 * (12 + 5 + 4 + 3), report["edges"]
    assert not report["warnings"] or "node types" in report["warnings"][0], report["warnings"]
    tetrahedra = meshio.Mesh(points[:5], [("tetra", [[0, 1, 2, 4], [0, 2, 3, 4]])], point_data={"t": points[:5, 0]})
    meshio.write(folder / "tetrahedra.vtk", tetrahedra)
    report, _ = convert(program, folder / "tetrahedra.vtk", folder / "tetrahedra.mgd")
    assert report["edges"]["min"] == 2 * 9, report["edges"]
    report, _ = convert(program, folder / "mixed.vtu", folder / "cells.mgd", "--graph", "cells")
    assert report["nodes"]["min"] == 4 and report["edges"]["min"] == 2 * 3, report


def quadratic(program, folder):
    """Every quadratic cell of VTK: its nodes are those of the graph, none alone, and its size is that of its parts."""
    import vtk
    folder.mkdir()
    # Undirected edges of the linear cells that each becomes.
    names = {"QuadraticTriangle": 9, "BiQuadraticTriangle": 12, "QuadraticQuad": 12, "BiQuadraticQuad": 12,
             "QuadraticLinearQuad": 7, "QuadraticTetra": 25, "QuadraticHexahedron": 59, "QuadraticWedge": 42,
             "QuadraticPyramid": 36, "TriQuadraticHexahedron": 54, "BiQuadraticQuadraticHexahedron": 52,
             "QuadraticLinearWedge": 24, "BiQuadraticQuadraticWedge": 39}
    for name, edges in names.items():
        cell = getattr(vtk, "vtk" + name)()
        count = cell.GetNumberOfPoints()
        places = cell.GetParametricCoords()
        grid, points, height = vtk.vtkUnstructuredGrid(), vtk.vtkPoints(), vtk.vtkDoubleArray()
        height.SetName("height")
        for i in range(count):
            points.InsertNextPoint([places[3 * i + axis] for axis in range(3)])
            height.InsertNextValue(i)
        grid.SetPoints(points)
        grid.InsertNextCell(cell.GetCellType(), count, list(range(count)))
        grid.GetPointData().AddArray(height)
        for writer, suffix in ((vtk.vtkXMLUnstructuredGridWriter(), ".vtu"), (vtk.vtkUnstructuredGridWriter(), ".vtk")):
            writer.SetInputData(grid)
            writer.SetFileName(str(folder / (name + suffix)))
            writer.Write()
            report, _ = convert(program, folder / (name + suffix), folder / "q.mgd")
            assert report["nodes"]["min"] == count and report["edges"]["min"] == 2 * edges, (name, report["edges"])
            assert not any(" edge" in line for line in report["warnings"]), (name, report["warnings"])


def polyhedra(program, folder):
    """Prisms over hexagons beside hexahedra, as finite volumes have them; graphs on points and on cells."""
    import vtk
    folder.mkdir()
    grid, points = vtk.vtkUnstructuredGrid(), vtk.vtkPoints()
    ring = [(0, 0), (2, 0), (3, 1), (2, 2), (0, 2), (-1, 1)]
    for z in range(3):
        for x, y in [*ring, (0, -1), (2, -1)]:
            points.InsertNextPoint(x, y, z)
    grid.SetPoints(points)
    for z in (0, 8):
        faces = [[z + i for i in range(6)], [z + 8 + i for i in range(6)]]
        faces += [[z + i, z + (i + 1) % 6, z + 8 + (i + 1) % 6, z + 8 + i] for i in range(6)]
        stream = vtk.vtkIdList()
        for number in [len(faces), *(n for face in faces for n in (len(face), *face))]:
            stream.InsertNextId(number)
        grid.InsertNextCell(vtk.VTK_POLYHEDRON, stream)
        grid.InsertNextCell(vtk.VTK_HEXAHEDRON, 8, [z + 6, z + 7, z + 1, z, z + 14, z + 15, z + 9, z + 8])
    for data, count in ((grid.GetPointData(), 24), (grid.GetCellData(), 4)):
        values = vtk.vtkDoubleArray()
        values.SetName("u" if count == 24 else "p")
        for i in range(count):
            values.InsertNextValue(i)
        data.AddArray(values)
    names = ["ascii.vtu", "appended.vtu", "42.vtk", "51.vtk"]
    for name in names:
        writer = vtk.vtkXMLUnstructuredGridWriter() if name.endswith("vtu") else vtk.vtkUnstructuredGridWriter()
        writer.SetInputData(grid)
        writer.SetFileName(str(folder / name))
        if name == "ascii.vtu":
            writer.SetDataModeToAscii()
        if name.endswith("vtk"):
            writer.SetFileVersion(int(name[:2]))
        writer.Write()
        report, notes = convert(program, folder / name, folder / "p.mgd")
        # 3 layers of 6 + 3 sides, 2 of 8 uprights
        assert report["nodes"]["min"] == 24 and report["edges"]["min"] == 2 * (3 * 9 + 2 * 8), (name, report["edges"])
        assert "--graph cells" in notes, notes
        report, _ = convert(program, folder / name, folder / "c.mgd", "--graph", "cells")
        assert report["nodes"]["min"] == 4 and report["edges"]["min"] == 2 * 4, (name, report)
        check_range(statistics(program, folder / "c.mgd")["p"], numpy_range(4))


def numpy_range(count):
    import numpy
    return numpy.arange(count)


def surfaces(program, folder):
    """Polygons, quads, lines; a shell in space."""
    import numpy
    import vtk
    folder.mkdir()

    def write(name, points, cells, kind):
        data = vtk.vtkPolyData()
        places = vtk.vtkPoints()
        for point in points:
            places.InsertNextPoint(point)
        data.SetPoints(places)
        array = vtk.vtkCellArray()
        for cell in cells:
            array.InsertNextCell(len(cell))
            for point in cell:
                array.InsertCellPoint(point)
        getattr(data, f"Set{kind}")(array)
        values = vtk.vtkFloatArray()
        values.SetName("load")
        for cell in cells:
            values.InsertNextValue(float(cell[0]))
        data.GetCellData().AddArray(values)
        height = vtk.vtkDoubleArray()
        height.SetName("height")
        for point in points:
            height.InsertNextValue(point[1])
        data.GetPointData().AddArray(height)
        for writer, suffix in ((vtk.vtkXMLPolyDataWriter(), ".vtp"), (vtk.vtkPolyDataWriter(), ".vtk")):
            writer.SetInputData(data)
            writer.SetFileName(str(folder / (name + suffix)))
            writer.Write()

    angles = numpy.arange(6) * numpy.pi / 3
    ring = [(numpy.cos(a), numpy.sin(a), 0.0) for a in angles] + [(2.0, 0.0, 0.0), (2.0, 1.0, 0.0)]
    polygons = [[0, 1, 2, 3, 4, 5], [0, 6, 7, 1]]
    write("polygons", ring, polygons, "Polys")
    write("lines", ring, [[0, 1], [1, 2], [2, 3]], "Lines")
    write("shell", [(x, y, 0.1 * i) for i, (x, y, _) in enumerate(ring)], [[0, 1, 2, 3], [0, 3, 4, 5]], "Polys")
    for suffix in (".vtp", ".vtk"):
        report, _ = convert(program, folder / f"polygons{suffix}", folder / "p.mgd")
        assert report["edges"]["min"] == sides(polygons), report["edges"]
        report, _ = convert(program, folder / f"polygons{suffix}", folder / "c.mgd", "--graph", "cells")
        assert report["nodes"]["min"] == 2 and report["edges"]["min"] == 2, report
        report, _ = convert(program, folder / f"lines{suffix}", folder / "l.mgd")
        assert report["edges"]["min"] == 6, report["edges"]
        assert {f["name"]: f["on"] for f in report["fields"]}["load"] == "edge", report["fields"]
        report, _ = convert(program, folder / f"shell{suffix}", folder / "s.mgd")
        assert report["dim"] == 3 and report["edges"]["min"] == sides([[0, 1, 2, 3], [0, 3, 4, 5]]), report


def series(program, folder):
    """Frames by a PVD list, a list of ParaView, numbered names; and trajectories of their own."""
    import meshio
    folder.mkdir()
    points, cells = square()
    entries = []
    for frame in range(12):
        mesh = meshio.Mesh(points, [("triangle", cells)], point_data={"u": points[:, 0] * frame})
        meshio.write(folder / f"flow_{frame}.vtu", mesh)
        entries.append((0.25 * frame, f"flow_{frame}.vtu"))
    report, notes = convert(program, folder, folder / "numbered.mgd")
    assert report["trajectories"] == 1 and report["frames"] == 12 and report["dt"] == 0, report
    assert "--separate" in notes, notes
    report, _ = convert(program, folder, folder / "separate.mgd", "--separate")
    assert report["trajectories"] == 12 and report["frames"] == 12, report
    data_sets = "".join(f'<DataSet timestep="{time}" file="{name}"/>' for time, name in entries)
    (folder / "flow.pvd").write_text(
        f'<?xml version="1.0"?><VTKFile type="Collection"><Collection>{data_sets}</Collection></VTKFile>')
    report, _ = convert(program, folder, folder / "listed.mgd")
    assert report["trajectories"] == 1 and report["frames"] == 12 and report["dt"] == 0.25, report
    check_range(statistics(program, folder / "listed.mgd")["u"], points[:, :1] * 11)
    (folder / "flow.pvd").unlink()
    (folder / "flow.vtu.series").write_text(
        json.dumps({"files": [{"name": name, "time": time} for time, name in reversed(entries)]}))
    report, _ = convert(program, folder / "flow.vtu.series", folder / "series.mgd")
    assert report["trajectories"] == 1 and report["frames"] == 12 and report["dt"] == 0.25, report
    # Another mesh from frame 6 on: two parts.
    for frame in range(6, 12):
        mesh = meshio.Mesh(points, [("triangle", cells[:-1])], point_data={"u": points[:, 0] * frame})
        meshio.write(folder / f"flow_{frame}.vtu", mesh)
    report, _ = convert(program, folder / "flow.vtu.series", folder / "parts.mgd")
    assert report["trajectories"] == 2 and report["frames"] == 12 and report["meshes"] == 2, report


def boundary_types(program, folder):
    """Node types of points, of cells, and of lines around a surface."""
    import meshio
    import numpy
    folder.mkdir()
    points, cells = square()
    inflow = [[r * 5, (r + 1) * 5] for r in range(4)]
    mesh = meshio.Mesh(points, [("triangle", cells), ("line", inflow)], point_data={"u": points[:, 0]},
                       cell_data={"tag": [numpy.ones(len(cells), int) * 9, numpy.ones(4, int) * 4]})
    meshio.write(folder / "lines.vtu", mesh)
    report, _ = convert(program, folder / "lines.vtu", folder / "lines.mgd", "--node-types", "tag")
    assert report["node_types"] == [20, 0, 0, 0, 5], report["node_types"]
    assert report["edges"]["min"] == sides(cells), report["edges"]
    types = numpy.where(points[:, 0] > 0.9, 5, 0)
    meshio.write(folder / "points.vtu", meshio.Mesh(points, [("triangle", cells)],
                                                    point_data={"u": points[:, 0], "node_type": types}))
    report, _ = convert(program, folder / "points.vtu", folder / "points.mgd")
    assert report["node_types"] == [20, 0, 0, 0, 0, 5], report["node_types"]


def cell_graphs(program, folder):
    """Fields only on cells make a graph of the cells."""
    import meshio
    import numpy
    folder.mkdir()
    points, cells = square()
    centres = points[cells].mean(1)
    mesh = meshio.Mesh(points, [("triangle", cells)],
                       cell_data={"p": [centres[:, 0]], "tag": [numpy.arange(len(cells)) % 3]})
    meshio.write(folder / "cells.vtu", mesh)
    report, notes = convert(program, folder / "cells.vtu", folder / "cells.mgd", "--node-types", "tag")
    assert "--graph nodes" in notes, notes
    shared = sides(cells) // 2 - 16  # sides that are not at the border
    assert report["nodes"]["min"] == len(cells) and report["edges"]["min"] == 2 * shared, report
    assert report["node_types"] == [11, 11, 10], report["node_types"]
    found = statistics(program, folder / "cells.mgd")["p"]
    check_range(found, centres[:, 0])


def xdmf(program, folder):
    """Series of mixed cells, with their numbers in each of the places."""
    import meshio
    import numpy
    folder.mkdir()
    points, cells = square()
    half = [("triangle", cells), ("quad", [[0, 1, 6, 5]])]
    for form in ("XML", "HDF", "Binary"):
        path = folder / form / "flow.xdmf"
        path.parent.mkdir()
        with contextlib.chdir(path.parent), meshio.xdmf.TimeSeriesWriter(path.name, data_format=form) as writer:
            writer.write_points_cells(points, half)
            for frame in range(4):
                writer.write_data(0.5 * frame, point_data={"u": points[:, 0] * frame, "v": points * frame},
                                  cell_data={"p": [cells[:, 0] * 1.0, numpy.array([100.0 * frame])]})
        report, _ = convert(program, path, folder / f"{form}.mgd")
        assert report["trajectories"] == 1 and report["frames"] == 4 and report["dt"] == 0.5, report
        fields = statistics(program, folder / f"{form}.mgd")
        check_range(fields["u"], points[:, :1] * 3)
        check_range(fields["p"], numpy.array([[0.0], [300.0]]))


def what_is_refused(program, folder):
    import meshio
    import numpy
    import vtk
    folder.mkdir()
    image = vtk.vtkImageData()
    image.SetDimensions(3, 3, 3)
    writer = vtk.vtkXMLImageDataWriter()
    writer.SetInputData(image)
    writer.SetFileName(str(folder / "image.vtu"))
    writer.Write()
    refused(program, folder / "image.vtu", "ImageData", "fix:")
    points = numpy.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0.5, 0, 0], [0.5, 0.5, 0], [0, 0.5, 0]], float)
    meshio.write(folder / "curved.vtu", meshio.Mesh(points, [("triangle6", [[0, 1, 2, 3, 4, 5]])],
                                                    point_data={"u": points[:, 0]}), binary=False)
    text = (folder / "curved.vtu").read_text().replace(">22<", ">36<").replace("\n22\n", "\n36\n")
    (folder / "curved.vtu").write_text(text)
    refused(program, folder / "curved.vtu", "quadratic cells", "Tessellate")
    square_points, cells = square()
    mesh = meshio.Mesh(square_points, [("triangle", cells)], point_data={"u": square_points[:, 0]})
    meshio.vtu.write(folder / "lzma.vtu", mesh, compression="lzma")
    refused(program, folder / "lzma.vtu", "vtkLZMADataCompressor", "ZLib")
    meshio.vtu.write(folder / "whole.vtu", mesh)
    whole = (folder / "whole.vtu").read_bytes()
    (folder / "cut.vtu").write_bytes(whole[: len(whole) // 2])
    refused(program, folder / "cut.vtu", "cut.vtu")
    (folder / "lost.pvd").write_text('<VTKFile><Collection><DataSet file="nowhere.vtu"/></Collection></VTKFile>')
    refused(program, folder / "lost.pvd", "nowhere.vtu")


if __name__ == "__main__":
    main()
