#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/to-vtu does itself, without vtk and meshio: the order of Gmsh's data, and cases of OpenFOAM that it
refuses."""
import importlib.machinery
import importlib.util
import os
import pathlib
import signal
import struct
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/to-vtu"
LOADER = importlib.machinery.SourceFileLoader("to_vtu", str(SCRIPT))
to_vtu = importlib.util.module_from_spec(importlib.util.spec_from_loader("to_vtu", LOADER))
LOADER.exec_module(to_vtu)


def data(kind, rows):
    return f'${kind}Data\n1\n"T"\n1\n0\n3\n0\n1\n{len(rows)}\n' + "".join(f"{row}\n" for row in rows) + f"$End{kind}Data\n"


VERSION_2 = "$MeshFormat\n2.2 0 8\n$EndMeshFormat\n$Nodes\n3\n7 0 0 0\n2 1 0 0\n5 0 1 0\n$EndNodes\n" \
            "$Elements\n2\n9 15 2 0 1 7\n4 2 2 0 1 7 2 5\n$EndElements\n"
VERSION_4 = "$MeshFormat\n4.1 0 8\n$EndMeshFormat\n$Nodes\n2 3 2 7\n0 1 0 1\n7\n0 0 0\n2 1 0 2\n2\n5\n1 0 0\n0 1 0\n" \
            "$EndNodes\n$Elements\n1 1 4 4\n2 1 2 1\n4 7 2 5\n$EndElements\n"


class ToVtu(unittest.TestCase):
    def rows(self, text, kind):
        ordered = to_vtu.with_data_in_order("a.msh", text.encode()).decode()
        section = ordered[ordered.index(f"${kind}Data"):ordered.index(f"$End{kind}Data")].splitlines()
        self.assertEqual(int(section[8]), len(section) - 9)
        return section[9:]

    def error(self, act):
        with self.assertRaises(SystemExit) as caught:
            act()
        return str(caught.exception)

    def test_data_of_gmsh_goes_to_its_nodes(self):
        for mesh in (VERSION_2, VERSION_4, VERSION_2.replace("\n", "\r\n")):
            self.assertEqual(self.rows(mesh + data("Node", ["2 20", "5 50", "7 70"]), "Node"), ["7 70", "2 20", "5 50"])
        self.assertEqual(self.rows(VERSION_2 + data("Element", ["4 40", "9 90"]), "Element"), ["9 90", "4 40"])
        self.assertEqual(to_vtu.with_data_in_order("a.msh", VERSION_2.encode()).decode(), VERSION_2)

    def test_data_of_gmsh_on_some_nodes_is_refused(self):
        text = self.error(lambda: self.rows(VERSION_2 + data("Node", ["2 20"]), "Node"))
        self.assertIn("[a.msh: T] needed data of all 3 nodes, got none of node 7 and 1 more", text)

    def test_binary_data_of_gmsh_goes_to_its_nodes(self):
        old = b"$MeshFormat\n2.2 1 8\n\1\0\0\0\n$EndMeshFormat\n$Nodes\n2\n" + \
            struct.pack("<i3di3d", 7, 0, 0, 0, 2, 1, 0, 0) + b"\n$EndNodes\n$Elements\n2\n" + \
            struct.pack("<3i4i3i5i", 15, 1, 2, 9, 0, 1, 7, 1, 1, 2, 4, 0, 1, 7, 2) + b"\n$EndElements\n"
        new = b"$MeshFormat\n4.1 1 8\n\1\0\0\0\n$EndMeshFormat\n$Nodes\n" + struct.pack("<4Q", 2, 2, 2, 7) + \
            struct.pack("<3iQQ3d", 0, 1, 0, 1, 7, 0, 0, 0) + struct.pack("<3iQQ3d", 1, 1, 0, 1, 2, 1, 0, 0) + \
            b"\n$EndNodes\n$Elements\n" + struct.pack("<4Q", 2, 2, 4, 9) + struct.pack("<3iQ2Q", 0, 1, 15, 1, 9, 7) + \
            struct.pack("<3iQ3Q", 1, 1, 1, 1, 4, 7, 2) + b"\n$EndElements\n"
        for mesh in (old, new):
            for kind, order in (("Node", (2, 7)), ("Element", (4, 9))):
                rows = [struct.pack("<id", number, 10.0 * number) for number in order]
                head, tail = (data(kind, ["", ""]).encode().split(b"\n\n\n")[i] for i in (0, 1))
                text = mesh + head + b"\n" + rows[0] + rows[1] + b"\n" + tail
                ordered = to_vtu.with_data_in_order("a.msh", text)
                self.assertEqual(ordered, mesh + head + b"\n" + rows[1] + rows[0] + b"\n" + tail)

    def test_files_of_others_are_named(self):
        for text, got, fix in (("$NOD\n1\n", "'$NOD'", "-format msh41"), ("*NODE\n", "'*NODE'", ".inp"),
                               ("27\n7 17\n", "'27'", "Gmsh")):
            error = self.error(lambda text=text: to_vtu.check_msh("a.msh", text.encode()))
            self.assertIn(f"[a.msh] needed a file of Gmsh 2 or 4, which begins with $MeshFormat, got one that begins with {got}", error)
            self.assertIn(fix, error[error.index("; fix: "):])
        to_vtu.check_msh("a.msh", VERSION_2.encode())
        with tempfile.TemporaryDirectory() as folder:
            cow, part = pathlib.Path(folder) / "cow.g", pathlib.Path(folder) / "a.e.2.0"
            cow.write_bytes(b"  1 29")
            self.assertIn("got one that begins with b'  1 '", self.error(lambda: to_vtu.frames_of(cow)))
            part.write_bytes(b"CDF\1")
            self.assertIn("a.e.2.0] needed the whole mesh, got a part of it", self.error(lambda: to_vtu.frames_of(part)))

    def test_crashes_of_readers_are_said(self):
        text = self.error(lambda: to_vtu.in_child("a.e", lambda: os.kill(os.getpid(), signal.SIGSEGV)))
        self.assertIn("[a.e] needed a file that VTK and meshio read, got signal 11", text)

    def test_cases_of_openfoam_in_parts_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            case = pathlib.Path(folder)
            for name in ("0", "constant/polyMesh", "processor0/0", "processor0/0.5", "processor1/0", "processor1/0.5"):
                (case / name).mkdir(parents=True)
            text = self.error(lambda: to_vtu.check_case(case))
            self.assertIn("needed a case that is reconstructed, got times 0.5 in processor0 and 1 more only", text)
            (case / "processor0/1").mkdir()
            (case / "1.0").mkdir()
            self.assertEqual(to_vtu.check_case(case), ", left out times 0.5 in processor0 and 1 more only, which "
                             f"reconstructPar -case {case} adds")
            (case / "0.5").mkdir()
            self.assertEqual(to_vtu.check_case(case), "")
            (case / "constant/fluid/polyMesh").mkdir(parents=True)
            self.assertIn("needed a case of one region, got regions fluid", self.error(lambda: to_vtu.check_case(case)))


if __name__ == "__main__":
    unittest.main()
