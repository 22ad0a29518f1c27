#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the folders of cases that cases.json lists, beside itself: python3 tests/data/cases/make.py (numpy, h5py).

All are a plate of 4 x 3 nodes with 12 triangles. T of a node is x + 10 y + 100 frame, frame in the order of time, so
that a value at a wrong node or time shows; q of a cell is its number.
"""
import json
import pathlib
import shutil

import h5py
import numpy

HERE = pathlib.Path(__file__).resolve().parent
POINTS = numpy.array([[x, y] for y in range(3) for x in range(4)], float)
CELLS = numpy.array([[[a, a + 1, a + 4], [a + 1, a + 5, a + 4]] for a in (0, 1, 2, 4, 5, 6)], numpy.int32).reshape(12, 3)
TYPES = {"f": "Float64", "i": "Int32", "u": "UInt8"}


def heat(frame=0, points=POINTS):
    return points[:, 0] + 10 * points[:, 1] + 100 * frame


def frames(count):
    return numpy.array([heat(i) for i in range(count)])


def array(name, values):
    values = numpy.asarray(values)
    width = values.shape[1] if values.ndim > 1 else 1
    text = " ".join(f"{value:g}" if values.dtype.kind == "f" else str(value) for value in values.ravel())
    return (f'<DataArray type="{TYPES[values.dtype.kind]}" Name="{name}" NumberOfComponents="{width}" '
            f'NumberOfTuples="{len(values)}" format="ascii">{text}</DataArray>')


def vtu(path, nodes=None, cells=None, time=None, points=POINTS, triangles=CELLS, **field_data):
    flat = numpy.pad(points, ((0, 0), (0, 1)))
    whole = dict(field_data, **({} if time is None else {"TimeValue": numpy.array([time], float)}))

    def arrays(of):
        return "".join(array(name, values) for name, values in (of or {}).items())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'<VTKFile type="UnstructuredGrid"><UnstructuredGrid><FieldData>{arrays(whole)}</FieldData>'
        f'<Piece NumberOfPoints="{len(points)}" NumberOfCells="{len(triangles)}"><Points>{array("", flat)}</Points><Cells>'
        + array("connectivity", triangles.ravel()) + array("offsets", numpy.arange(3, 3 * len(triangles) + 1, 3, dtype=numpy.int32))
        + array("types", numpy.full(len(triangles), 5, numpy.uint8)) + f"</Cells><PointData>{arrays(nodes)}</PointData>"
        f"<CellData>{arrays(cells)}</CellData></Piece></UnstructuredGrid></VTKFile>\n")


def pvd(path, entries):
    path.write_text('<VTKFile type="Collection"><Collection>' + "".join(f"<DataSet {entry}/>" for entry in entries)
                    + "</Collection></VTKFile>\n")


def named(folder, names):
    """Frames under these names, in the order of time."""
    for frame, name in enumerate(names):
        vtu(folder / name, {"T": heat(frame)})


def halves(folder, frame, ghosts=None, overlap=False, with_flags=True, stem="{piece}.vtu"):
    """The plate in two pieces, left and right of x = 2 (or 1 to 3 twice)."""
    for piece, wanted in enumerate(((0, 2), (1, 3)) if overlap else ((0, 2), (2, 3))):
        mine = [cell for cell in CELLS if all(wanted[0] <= POINTS[point, 0] <= wanted[1] for point in cell)]
        own = sorted({point for cell in mine for point in cell})
        flags = {}
        if overlap and with_flags:
            ghost = [piece == 1 and all(POINTS[point, 0] <= 2 for point in cell) for cell in mine]
            flags = {ghosts: numpy.array(ghost, numpy.uint8)}
        vtu(folder / stem.format(piece=piece), {"T": heat(frame)[own]}, flags, points=POINTS[own],
            triangles=numpy.array([[own.index(point) for point in cell] for cell in mine], numpy.int32))


def pvtu(path, pieces):
    path.write_text('<VTKFile type="PUnstructuredGrid"><PUnstructuredGrid GhostLevel="0">'
                    + "".join(f'<Piece Source="{piece}"/>' for piece in pieces) + "</PUnstructuredGrid></VTKFile>\n")


def npz(path, **arrays):
    path.parent.mkdir(parents=True, exist_ok=True)
    numpy.savez_compressed(path, **{"mesh_pos": POINTS, "cells": CELLS, **arrays})


def hdf5(path, arrays, attributes=None, mesh=True):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, values in {**({"mesh_pos": POINTS, "cells": CELLS} if mesh else {}), **arrays}.items():
            file.create_dataset(name, data=values, track_times=False)
        for (name, attribute), value in (attributes or {}).items():
            file[name].attrs[attribute] = value


CASES = []


def case(kind, name, error=None, trajectories=1, frames=1, nodes=12, **more):
    """A folder to fill; `error` is in the error, else the counts hold, and T as above. `more`: options, dt, further counts,
    and what a warning says."""
    CASES.append({"kind": kind, "name": name, **({"error": error} if error else
                                                 {"trajectories": trajectories, "frames": frames, "nodes": nodes}), **more})
    shutil.rmtree(HERE / name, ignore_errors=True)
    (HERE / name).mkdir()
    return HERE / name


def series():
    folder = case("order by times in files", "times-against-names", frames=3, dt=0.5)
    for frame, name in enumerate(("a_3.vtu", "a_2.vtu", "a_1.vtu")):
        vtu(folder / name, {"T": heat(frame)}, time=0.5 * frame)
    folder = case("order by times in files", "times-of-deal-ii", frames=3, dt=0.25)  # which names them so
    for frame, name in enumerate(("u-00002.vtu", "u-00000.vtu", "u-00001.vtu")):
        vtu(folder / name, {"T": heat(frame)}, TIME=numpy.array([0.25 * frame]), CYCLE=numpy.array([float(frame)]))
    named(case("order by names", "scientific-names", frames=4), [f"t_{time}.vtu" for time in ("1e-3", "5e-3", "1e-2", "2e-1")])
    named(case("order by names", "negative-names", frames=3), [f"t_{time}.vtu" for time in ("-0.5", "-0.25", "0.25")])
    named(case("order by names", "step-and-time", frames=3), [f"u_{name}.vtu" for name in ("008_t0.80", "009_t0.90", "010_t1.00")])
    named(case("two readings", "step-before-case", "in 2 ways"), [f"s_{step}_{run}.vtu" for step in (0, 1) for run in (0, 1, 2)])
    named(case("two readings", "case-or-decimal", "in 3 ways"), [f"r_{name}.vtu" for name in ("1.1", "1.2", "2.1", "2.2")])
    folder = case("parts in names", "rank-in-name", "the part of a mesh")
    halves(folder, 0, stem="flow_rank{piece}.vtu")
    folder = case("parts in names", "proc-and-step", "or the frames of one mesh in 2 parts")
    for frame in range(3):
        halves(folder, frame, stem=f"proc{{piece}}_step{frame}.vtu")
    folder = case("lists", "stale-beside-series", frames=3, dt=1, warning="left out 2 files, which no list")
    named(folder, [f"a_{i}.vtu" for i in range(5)])
    (folder / "a.vtu.series").write_text(json.dumps({"file-series-version": "1.0", "files": [
        {"name": f"a_{i}.vtu", "time": float(i)} for i in range(3)]}))
    folder = case("lists", "stale-in-folder", frames=2, dt=2)
    named(folder / "vtu", [f"a_{i}.vtu" for i in range(4)])
    pvd(folder / "a.pvd", [f'timestep="{2 * i}" file="vtu/a_{i}.vtu"' for i in range(2)])
    folder = case("lists", "time-of-restart", "leave one of them in the list, as after a restart")
    named(folder, [f"a_{i}.vtu" for i in range(4)])
    pvd(folder / "a.pvd", [f'timestep="{time}" file="a_{i}.vtu"' for i, time in enumerate((0, 1, 1, 2))])
    folder = case("lists", "parts-without-times", "frames, or parts of one mesh")
    halves(folder, 0)
    pvd(folder / "a.pvd", [f'part="{piece}" file="{piece}.vtu"' for piece in range(2)])


def parallel():
    folder = case("pieces", "pieces-in-folders", frames=3)
    for frame in range(3):
        halves(folder / f"f_{frame}", frame)
        pvtu(folder / f"f_{frame}.pvtu", [f"f_{frame}/{piece}.vtu" for piece in range(2)])
    folder = case("pieces", "pieces-in-list", frames=2, dt=0.5)
    for frame in range(2):
        halves(folder, frame, stem=f"f_{frame}_{{piece}}.vtu")
        pvtu(folder / f"f_{frame}.pvtu", [f"f_{frame}_{piece}.vtu" for piece in range(2)])
    pvd(folder / "f.pvd", [f'timestep="{0.5 * frame}" file="f_{frame}.pvtu"' for frame in range(2)])
    folder = case("pieces", "pieces-with-copies", "with the same points")
    halves(folder, 0, overlap=True, with_flags=False)
    pvtu(folder / "f.pvtu", ["0.vtu", "1.vtu"])
    folder = case("ghosts", "ghost-levels", cells=12)
    halves(folder, 0, ghosts="vtkGhostLevels", overlap=True)
    pvtu(folder / "f.pvtu", ["0.vtu", "1.vtu"])
    folder = case("ghosts", "hidden-cells", nodes=11, cells=11)  # the last cell's own corner goes with it
    vtu(folder / "a.vtu", {"T": heat()}, {"vtkGhostType": numpy.array([0] * 11 + [32], numpy.uint8)})
    folder = case("ghosts", "hidden-points", nodes=11, cells=11)
    bad = heat()
    bad[11] = -99
    vtu(folder / "a.vtu", {"T": bad, "vtkGhostType": numpy.array([0] * 11 + [2], numpy.uint8)})


def groups():
    folder = case("group for each step", "groups-with-time", frames=3, dt=0.5)
    hdf5(folder / "a.h5", {f"g{name}/T": heat(frame) for frame, name in enumerate((9, 10, 11))})
    with h5py.File(folder / "a.h5", "a") as file:
        for frame, name in enumerate((9, 10, 11)):
            file[f"g{name}"].attrs["time"] = 0.5 * frame
    folder = case("group for each step", "groups-named-by-time", "--series 't={frame}': 1 trajectory of 3 frames; --separate: 3")
    hdf5(folder / "a.h5", {f"t={name}/T": heat(frame) for frame, name in enumerate(("0.05", "0.1", "0.15"))})
    folder = case("one trajectory", "lone-trajectory", frames=3)
    hdf5(folder / "a.h5", {"traj_0/mesh_pos": POINTS, "traj_0/cells": CELLS, "traj_0/T": frames(3)[..., None]}, mesh=False)
    folder = case("one trajectory", "lone-number", frames=3)
    hdf5(folder / "a.h5", {"data/0/T": frames(3)[..., None], "data/0/mesh_pos": POINTS, "data/0/cells": CELLS}, mesh=False)
    folder = case("second groups", "group-that-lacks", "in each group")
    hdf5(folder / "a.h5", {"r/0/T": frames(3)[..., None], "r/0/p": frames(3)[..., None], "r/1/T": frames(3)[..., None]})
    folder = case("second groups", "group-with-more", "in each group")
    hdf5(folder / "a.h5", {f"r/{name}": frames(3)[..., None] for name in ("0/T", "1/T", "2/T", "2/p")})


def conventions():
    folder = case("CF", "fill-value", "needed finite numbers, got nan at frame 1, node 5")
    values = frames(3)
    values[1, 5] = 9.96921e36
    hdf5(folder / "a.h5", {"T": values[..., None]}, {("T", "_FillValue"): 9.96921e36})
    folder = case("CF", "missing-integers", "needed finite numbers, got nan at frame 2, node 3")
    stored = (frames(3) * 10).astype(numpy.int16)
    stored[2, 3] = -32768
    hdf5(folder / "a.h5", {"T": stored[..., None]}, {("T", "scale_factor"): 0.1, ("T", "missing_value"): numpy.int16(-32768)})
    folder = case("CF", "scaled-bytes", frames=2)
    hdf5(folder / "a.h5", {"T": numpy.array([heat(i) + 7 for i in range(2)]).astype(numpy.int16)[..., None]},
         {("T", "add_offset"): -7.0})
    folder = case("CF", "times-in-days", frames=3, dt=86400)
    hdf5(folder / "a.h5", {"T": frames(3)[..., None], "time": numpy.arange(3)}, {("time", "units"): "days since 2000-01-01"})
    folder = case("CF", "times-in-hours", frames=3, dt=1800)
    hdf5(folder / "a.h5", {"T": frames(3)[..., None], "time": numpy.arange(3) / 2}, {("time", "units"): "hours"})
    folder = case("CF", "times-in-months", frames=3, dt=0, warning="time in months since 2000-01-01")
    hdf5(folder / "a.h5", {"T": frames(3)[..., None], "time": numpy.arange(3)}, {("time", "units"): "months since 2000-01-01"})
    folder = case("CF", "connectivity-from-1", frames=2)
    hdf5(folder / "a.h5", {"T": numpy.pad(frames(2), ((0, 0), (0, 1)))[..., None], "cells": CELLS + 1,
                           "mesh_pos": numpy.vstack([POINTS, [[0, 0]]])},
         {("cells", "start_index"): numpy.int32(1)})
    CASES[-1]["nodes"] = 13
    folder = case("field data", "condition", frames=2, field="Re")
    for frame in range(2):
        vtu(folder / f"a_{frame}.vtu", {"T": heat(frame)}, Re=numpy.array([100.0]))
    folder = case("field data", "condition-once", frames=3, field="Re",
                  warning="a_1.vtu] array Re of the whole grid is missing: that of the first frame")
    for frame in range(3):
        vtu(folder / f"a_{frame}.vtu", {"T": heat(frame)}, **({"Re": numpy.array([100.0])} if frame == 0 else {}))
    folder = case("field data", "condition-later", frames=3, warning="array Re left out, since the first frame")
    for frame in range(3):
        vtu(folder / f"a_{frame}.vtu", {"T": heat(frame)}, **({"Re": numpy.array([100.0])} if frame > 0 else {}))
    folder = case("field data", "condition-that-returns", "the value of the first frame")
    for frame in range(3):
        vtu(folder / f"a_{frame}.vtu", {"T": heat(frame)}, **({"Re": numpy.array([100.0 + frame])} if frame != 1 else {}))
    folder = case("blocks", "two-blocks", "got 2")
    halves(folder, 0)
    (folder / "a.vtm").write_text('<VTKFile type="vtkMultiBlockDataSet"><vtkMultiBlockDataSet><DataSet index="0" file="0.vtu"/>'
                                  '<DataSet index="1" file="1.vtu"/></vtkMultiBlockDataSet></VTKFile>\n')


def shapes():
    velocity = numpy.array([POINTS[:, 0], POINTS[:, 1]])
    npz(case("components first", "components-before-nodes", "which is [frames,nodes] or [components,nodes]") / "a.npz", u=velocity)
    npz(case("components first", "components-last-axis", "which is [frames,nodes,components] or [components,nodes,frames]") / "a.npz",
        u=numpy.stack([velocity] * 5, axis=2))
    npz(case("nodes first", "nodes-before-frames", "which is [nodes,components] or [nodes,frames]") / "a.npz", T=frames(20).T)
    npz(case("nodes first", "nodes-frames-components", "which is") / "a.npz", T=frames(12).T[..., None])
    npz(case("frames equal to nodes", "square", "which is [frames,nodes] or [nodes,frames]") / "a.npz", T=frames(12))
    npz(case("frames equal to nodes", "square-said", frames=12, options={"axes": {"T": "nodes,frames"}}) / "a.npz", T=frames(12).T)
    npz(case("statics for every frame", "tiled-mesh", frames=3) / "a.npz", mesh_pos=numpy.stack([POINTS] * 3),
        cells=numpy.stack([CELLS] * 3), T=frames(3)[..., None])
    npz(case("statics for every frame", "tiled-types", frames=3) / "a.npz", T=frames(3)[..., None], mesh_pos=numpy.stack([POINTS] * 3),
        node_type=numpy.zeros((3, 12, 1), numpy.int32))
    spare = numpy.vstack([POINTS, [[1.5, 1]]])
    npz(case("numbers from 1", "from-1-with-spare", "needed nodes that count from 0 or from 1, got 1 to 12 of 13") / "a.npz",
        mesh_pos=spare, cells=CELLS + 1, T=heat(points=spare))
    npz(case("numbers from 1", "from-1-said", nodes=13, options={"first_node": 1}) / "a.npz", mesh_pos=spare, cells=CELLS + 1,
        T=heat(points=spare))
    folder = case("dt", "uneven-beside-even", "got times that are not evenly spaced")
    for run, times in (("a", (0, 1, 2)), ("b", (0, 1, 3))):
        for frame, time in enumerate(times):
            vtu(folder / run / f"{run}_{frame}.vtu", {"T": heat(frame)}, time=time)
    folder = case("dt", "last-time-late", "got dt = 5")  # of a mesh of its own
    for frame, time in enumerate((0, 1, 2, 7)):
        vtu(folder / f"a_{frame}.vtu", {"T": heat(frame)}, time=time, triangles=CELLS if frame < 3 else CELLS[:, [1, 2, 0]][::-1][:11])


def vectors():
    for name, thirds in (("swirl-first", (9.0, 0.0)), ("nan-beside-zero", (numpy.nan, 0.0))):
        folder = case("third component", name, trajectories=2, frames=2, components=3 if thirds[0] == 9 else 2)
        for run, third in enumerate(thirds):
            vtu(folder / f"{'ab'[run]}.vtu", {"T": heat(), "U": numpy.stack([heat(), heat(), numpy.full(12, third)], axis=1)})


def texts():
    legacy = ("# vtk DataFile Version 3.0\nplate\nASCII\nDATASET UNSTRUCTURED_GRID\nPOINTS 12 double\n"
              + "".join(f"{x:g} {y:g} 0\n" for x, y in POINTS) + "CELLS 12 48\n" + "".join("3 {} {} {}\n".format(*cell) for cell in CELLS)
              + "CELL_TYPES 12\n" + "5\n" * 12 + "POINT_DATA 12\n")
    numbers = "".join(f"{value:g}\n" for value in heat())
    (case("true causes", "netcdf-3", "got a file of NetCDF-3; fix: nccopy -k netCDF-4") / "a.h5").write_bytes(b"CDF\1" + bytes(60))
    hdf5(case("true causes", "vtkhdf", "got a file of VTKHDF; fix: open it in ParaView") / "a.h5",
         {"VTKHDF/Points": POINTS, "VTKHDF/Connectivity": CELLS.ravel(), "VTKHDF/PointData/T": heat()}, mesh=False)
    (case("names with a space", "space-in-scalars", "names of arrays without spaces") / "a.vtk").write_text(
        legacy + "SCALARS T of gas double 1\nLOOKUP_TABLE default\n" + numbers)
    (case("names with a space", "space-in-field", "without spaces") / "a.vtk").write_text(
        legacy + "FIELD FieldData 1\nT of gas 1 12 double\n" + numbers)
    grid = ('<Grid GridType="Uniform"><Topology TopologyType="Triangle" NumberOfElements="12"><DataItem Format="XML" Dimensions="12 3" '
            'NumberType="Int">{cells}</DataItem></Topology><Geometry GeometryType="XY"><DataItem Format="XML" Dimensions="12 2">{points}'
            '</DataItem></Geometry><Attribute Name="T" Center="Node"><DataItem Format="XML" Dimensions="12">{values}</DataItem></Attribute>'
            "</Grid>").format(cells=" ".join(map(str, CELLS.ravel())), points=" ".join(f"{x:g}" for x in POINTS.ravel()),
                              values=" ".join(f"{value:g}" for value in heat()))
    (case("entities", "entity-of-numbers") / "a.xdmf").write_text(
        f'<!DOCTYPE Xdmf [<!ENTITY count "12">]><Xdmf><Domain>{grid.replace(chr(34) + "12" + chr(34), chr(34) + "&count;" + chr(34))}'
        "</Domain></Xdmf>\n")
    (case("entities", "entity-of-entity", "needed entities of text") / "a.xdmf").write_text(
        f'<!DOCTYPE Xdmf [<!ENTITY n "No"><!ENTITY center "&n;de">]><Xdmf><Domain>{grid.replace("Node", "&center;")}</Domain></Xdmf>\n')
    folder = case("mesh that changes", "other-cells-at-3", trajectories=2, frames=4, dt=1)
    for frame in range(4):
        flipped = CELLS if frame < 3 else numpy.vstack([[[0, 1, 5], [0, 5, 4]], CELLS[2:]]).astype(numpy.int32)
        vtu(folder / f"a_{frame}.vtu", {"T": heat(frame)}, time=frame, triangles=flipped)
    folder = case("mesh that changes", "cells-in-another-order", frames=4, dt=1, cells=12)
    for frame in range(4):
        order = numpy.roll(numpy.arange(12), frame)
        vtu(folder / f"a_{frame}.vtu", {"T": heat(frame)}, {"q": order.astype(float)}, time=frame, triangles=CELLS[order])


if __name__ == "__main__":
    for write in (series, parallel, groups, conventions, shapes, vectors, texts):
        write()
    (HERE / "cases.json").write_text("[\n" + ",\n".join(json.dumps(one) for one in CASES) + "\n]\n")
