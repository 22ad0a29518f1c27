# SPDX-License-Identifier: Apache-2.0
"""Small series in the formats that scripts/to-vtu reads by the package vtk."""


def write_openfoam(folder, nx=3, ny=2):
    """nx x ny cubes, patches wall, left and right, p = 10 t + number of the cell at t = 0, 0.5 and 1."""
    def point(i, j, k):
        return i + (nx + 1) * (j + (ny + 1) * k)

    def listed(items):
        return "\n".join([str(len(items)), "(", *map(str, items), ")", ""])

    patches = {"wall": [], "left": [], "right": []}
    inner = []
    for j in range(ny):
        for i in range(nx):
            cell = i + nx * j
            quads = {(1, 0): [(1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 0, 1)], (-1, 0): [(0, 0, 0), (0, 0, 1), (0, 1, 1), (0, 1, 0)],
                     (0, 1): [(0, 1, 0), (0, 1, 1), (1, 1, 1), (1, 1, 0)], (0, -1): [(0, 0, 0), (1, 0, 0), (1, 0, 1), (0, 0, 1)],
                     "below": [(0, 0, 0), (0, 1, 0), (1, 1, 0), (1, 0, 0)], "above": [(0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1)]}
            for side, corners in quads.items():
                face = f"4({' '.join(str(point(i + a, j + b, c)) for a, b, c in corners)})"
                x, y = (i + side[0], j + side[1]) if isinstance(side, tuple) else (i, -1)
                if 0 <= x < nx and 0 <= y < ny:
                    if x + nx * y > cell:
                        inner.append((cell, x + nx * y, face))
                else:
                    patches["left" if x < 0 else "right" if x >= nx else "wall"].append((cell, face))
    inner.sort()
    owner, faces, boundary = [cell for cell, _, _ in inner], [face for _, _, face in inner], []
    for name, sides_of in patches.items():
        boundary.append(f"{name} {{ type patch; nFaces {len(sides_of)}; startFace {len(faces)}; }}")
        owner += [cell for cell, _ in sides_of]
        faces += [face for _, face in sides_of]
    points = [f"({i} {j} {k})" for k in range(2) for j in range(ny + 1) for i in range(nx + 1)]
    mesh = "constant/polyMesh"
    files = {f"{mesh}/points": ("vectorField", listed(points)), f"{mesh}/faces": ("faceList", listed(faces)),
             f"{mesh}/owner": ("labelList", listed(owner)), f"{mesh}/neighbour": ("labelList", listed([n for _, n, _ in inner])),
             f"{mesh}/boundary": ("polyBoundaryMesh", listed(boundary)),
             "system/controlDict": ("dictionary", "startFrom startTime; startTime 0; stopAt endTime; endTime 1; deltaT 0.5;\n"
                                    "writeControl timeStep; writeInterval 1; writeFormat ascii;\n")}
    for time in ("0", "0.5", "1"):
        values = listed([10 * float(time) + cell for cell in range(nx * ny)])
        ends = " ".join(f"{name} {{ type zeroGradient; }}" for name in patches)
        files[f"{time}/p"] = ("volScalarField", f"dimensions [0 2 -2 0 0 0 0];\ninternalField nonuniform List<scalar>\n{values};\n"
                              f"boundaryField {{ {ends} }}\n")
    for name, (kind, text) in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"FoamFile {{ version 2.0; format ascii; class {kind}; object {name.split('/')[-1]}; }}\n{text}")


def write_exodus(path):
    """By VTK's writer: 3 x 2 quads in the plane, u = t times the number of the node, p = 10 t + number of the cell, t = 0 to 1.5."""
    import numpy
    from vtkmodules.util.numpy_support import numpy_to_vtk
    from vtkmodules.util.vtkAlgorithm import VTKPythonAlgorithmBase
    from vtkmodules.vtkCommonCore import VTK_ID_TYPE, vtkPoints
    from vtkmodules.vtkCommonDataModel import (VTK_QUAD, vtkDataObject, vtkPartitionedDataSetCollection,
                                               vtkUnstructuredGrid)
    from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline as Pipeline
    from vtkmodules.vtkIOIOSS import vtkIOSSWriter

    def array(name, values, kind=None):
        made = numpy_to_vtk(values, deep=1, array_type=kind)
        made.SetName(name)
        return made

    class Plate(VTKPythonAlgorithmBase):
        def __init__(self):
            super().__init__(nInputPorts=0, nOutputPorts=1, outputType="vtkPartitionedDataSetCollection")

        def RequestInformation(self, request, inputs, outputs):
            outputs.GetInformationObject(0).Set(Pipeline.TIME_STEPS(), [0, 0.5, 1, 1.5], 4)
            outputs.GetInformationObject(0).Set(Pipeline.TIME_RANGE(), [0, 1.5], 2)
            return 1

        def RequestData(self, request, inputs, outputs):
            information = outputs.GetInformationObject(0)
            t = information.Get(Pipeline.UPDATE_TIME_STEP()) if information.Has(Pipeline.UPDATE_TIME_STEP()) else 0
            grid, points = vtkUnstructuredGrid(), vtkPoints()
            for node in range(12):
                points.InsertNextPoint(node % 4, node // 4, 0)
            grid.SetPoints(points)
            grid.Allocate(6)
            for a in (0, 1, 2, 4, 5, 6):
                grid.InsertNextCell(VTK_QUAD, 4, [a, a + 1, a + 5, a + 4])
            for data, name, values in ((grid.GetPointData(), "u", numpy.arange(12) * t),
                                       (grid.GetCellData(), "p", numpy.arange(6) + 10 * t)):
                data.AddArray(array(name, values))
                data.SetGlobalIds(array("ids", numpy.arange(1, len(values) + 1), VTK_ID_TYPE))
            plate = vtkPartitionedDataSetCollection.GetData(outputs)
            plate.SetPartition(0, 0, grid)
            plate.GetMetaData(0).Set(plate.NAME(), "plate")
            plate.GetInformation().Set(vtkDataObject.DATA_TIME_STEP(), t)
            return 1

    source, writer = Plate(), vtkIOSSWriter()
    writer.SetInputConnection(source.GetOutputPort())
    writer.SetFileName(str(path))
    assert writer.Write()


def write_exodus_blocks(path, points, blocks, nodal, elemental, times=(0.0,)):
    """Blocks of quads [cells, 4] in the plane. `nodal` maps names to values [times, nodes], `elemental` to a list of values
    [times, cells] or None for each block."""
    import netCDF4
    import numpy

    def names_of(file, variable, count, names):
        file.createDimension(count, len(names))
        variable = file.createVariable(variable, "S1", (count, "len_name"))
        for row, name in enumerate(names):
            variable[row] = numpy.array(list(name.ljust(33, "\0")), "S1")
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_OFFSET") as file:
        file.setncatts({"api_version": numpy.float32(5), "version": numpy.float32(5), "floating_point_word_size": numpy.int32(8),
                        "file_size": numpy.int32(1), "title": "blocks"})
        for name, size in (("time_step", None), ("num_dim", 2), ("num_nodes", len(points)), ("num_el_blk", len(blocks)),
                           ("num_elem", sum(map(len, blocks))), ("len_name", 33)):
            file.createDimension(name, size)
        file.createVariable("time_whole", "f8", ("time_step",))[:] = times
        for axis, name in enumerate(("coordx", "coordy")):
            file.createVariable(name, "f8", ("num_nodes",))[:] = [point[axis] for point in points]
        identity = file.createVariable("eb_prop1", "i4", ("num_el_blk",))
        identity.setncattr("name", "ID")
        identity[:] = range(1, len(blocks) + 1)
        file.createVariable("eb_status", "i4", ("num_el_blk",))[:] = 1
        for number, cells in enumerate(blocks, 1):
            file.createDimension(f"num_el_in_blk{number}", len(cells))
            file.createDimension(f"num_nod_per_el{number}", 4)
            connect = file.createVariable(f"connect{number}", "i4", (f"num_el_in_blk{number}", f"num_nod_per_el{number}"))
            connect.setncattr("elem_type", "QUAD4")
            connect[:] = numpy.array(cells) + 1
        names_of(file, "name_nod_var", "num_nod_var", list(nodal))
        for number, values in enumerate(nodal.values(), 1):
            file.createVariable(f"vals_nod_var{number}", "f8", ("time_step", "num_nodes"))[:] = values
        if not elemental:
            return
        names_of(file, "name_elem_var", "num_elem_var", list(elemental))
        table = [[int(values is not None) for values in column] for column in zip(*elemental.values())]
        file.createVariable("elem_var_tab", "i4", ("num_el_blk", "num_elem_var"))[:] = table
        for number, of_blocks in enumerate(elemental.values(), 1):
            for block, values in enumerate(of_blocks, 1):
                if values is not None:
                    file.createVariable(f"vals_elem_var{number}eb{block}", "f8", ("time_step", f"num_el_in_blk{block}"))[:] = values


def write_by_gmsh(folder):
    """plate_*.msh of both versions, text and binary, and plate.cgns: a plate with a hole, whose left side is in the
    physical group 4, and all other curves in 6. flow_*.msh: a view "flow" of three steps, and one
    "rest". Returns the points, and the triangles by numbers of points from 0."""
    import gmsh
    import numpy
    gmsh.initialize()
    gmsh.option.setNumber("General.Terminal", 0)
    shapes = gmsh.model.occ
    shapes.cut([(2, shapes.addRectangle(0, 0, 0, 2, 1))], [(2, shapes.addDisk(0.5, 0.5, 0, 0.2, 0.2))])
    shapes.synchronize()
    curves = [tag for _, tag in gmsh.model.getEntities(1)]
    left = [tag for tag in curves if gmsh.model.getBoundingBox(1, tag)[3] < 1e-3]
    gmsh.model.addPhysicalGroup(2, [tag for _, tag in gmsh.model.getEntities(2)], 1)
    gmsh.model.addPhysicalGroup(1, left, 4)
    gmsh.model.addPhysicalGroup(1, [tag for tag in curves if tag not in left], 6)
    gmsh.option.setNumber("Mesh.MeshSizeMax", 0.2)
    gmsh.model.mesh.generate(2)
    for version in (2.2, 4.1):
        for binary in (0, 1):
            gmsh.option.setNumber("Mesh.MshFileVersion", version)
            gmsh.option.setNumber("Mesh.Binary", binary)
            gmsh.write(str(folder / f"plate_{version}_{binary}.msh"))
    gmsh.write(str(folder / "plate.cgns"))
    tags, places, _ = gmsh.model.mesh.getNodes()
    at_rest, flow = gmsh.view.add("rest"), gmsh.view.add("flow")
    model = gmsh.model.getCurrent()
    gmsh.view.addModelData(at_rest, 0, model, "NodeData", tags, [[x] for x in places[::3]])
    for step in range(3):
        gmsh.view.addModelData(flow, step, model, "NodeData", tags, [[x + step, y, 0] for x, y, _ in places.reshape(-1, 3)],
                               time=0.25 * step)
    for binary in (0, 1):
        gmsh.option.setNumber("Mesh.Binary", binary)
        gmsh.option.setNumber("PostProcessing.SaveMesh", 1)
        gmsh.view.write(flow, str(folder / f"flow_{binary}.msh"))
        gmsh.option.setNumber("PostProcessing.SaveMesh", 0)
        gmsh.view.write(at_rest, str(folder / f"flow_{binary}.msh"), append=True)
    triangles = gmsh.model.mesh.getElementsByType(2)[1]
    number = {tag: i for i, tag in enumerate(tags)}
    gmsh.finalize()
    return places.reshape(-1, 3), numpy.array([number[tag] for tag in triangles]).reshape(-1, 3)
