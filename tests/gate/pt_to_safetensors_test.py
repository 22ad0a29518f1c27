#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/pt-to-safetensors: nested checkpoints, both archives of PhysicsNeMo, statistics, and its errors. Uses
PyTorch where it is installed, else a stand-in of a few lines that pickles numpy arrays."""
import io
import json
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import tarfile
import tempfile
import unittest
import zipfile

try:
    import numpy
except ImportError:
    print("skipped: no numpy")
    sys.exit(77)

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts/pt-to-safetensors"
STAND_IN = """
import pickle
class Tensor:
    def __init__(self, array): self.array, self.dtype = array, array.dtype
    def detach(self): return self
    def contiguous(self): return self
    def numpy(self): return self.array
def load(file, map_location, weights_only):
    return pickle.load(open(file, "rb") if isinstance(file, str) else file)
"""


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        modules = self.path / "modules"
        modules.mkdir()
        try:
            import torch
            self.torch = torch
        except ImportError:
            (modules / "torch.py").write_text(STAND_IN)
            sys.path.insert(0, str(modules))
            import torch
            sys.path.pop(0)
            self.torch = None
            self.stand_in = torch
        self.modules = modules

    def tearDown(self):
        sys.modules.pop("torch", None) if self.torch is None else None
        self.folder.cleanup()

    def tensor(self, values):
        array = numpy.array(values, dtype="float32")
        return self.torch.tensor(array) if self.torch else self.stand_in.Tensor(array)

    def bytes_of(self, content):
        file = io.BytesIO()
        self.torch.save(content, file) if self.torch else pickle.dump(content, file)
        return file.getvalue()

    def run_script(self, *arguments):
        environment = dict(os.environ, PYTHONPATH=str(self.modules))
        return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True,
                              env=environment)

    def convert(self, name, content, *arguments):
        (self.path / name).write_bytes(content)
        done = self.run_script(self.path / name, "-o", self.path / "out.safetensors", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        data = (self.path / "out.safetensors").read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        self.assertEqual(length % 8, 0)
        header = json.loads(data[8:8 + length])
        types = {"F64": "float64", "F32": "float32"}
        read = {}
        for key, entry in header.items():
            begin, end = entry["data_offsets"]
            values = numpy.frombuffer(data[8 + length + begin:8 + length + end], dtype=types[entry["dtype"]])
            read[key] = values.reshape(entry["shape"]).tolist()
        return read

    def test_state_dicts_plain_and_nested(self):
        weights = {"a.weight": self.tensor([[1, 2, 3], [4, 5, 6]]), "a.bias": self.tensor([7, 8])}
        expected = {"a.weight": [[1, 2, 3], [4, 5, 6]], "a.bias": [7, 8]}
        self.assertEqual(self.convert("plain.pt", self.bytes_of(weights)), expected)
        nested = {"model_state_dict": weights, "epoch": 3}
        self.assertEqual(self.convert("nested.pth", self.bytes_of(nested)), expected)

    def test_both_archives_of_physicsnemo(self):
        content = self.bytes_of({"a": self.tensor([1.5])})
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            archive.writestr("args.json", "{}")
            archive.writestr("model.pt", content)
        self.assertEqual(self.convert("zip.mdlus", packed.getvalue()), {"a": [1.5]})
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            member = tarfile.TarInfo("./model.pt")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        self.assertEqual(self.convert("tar.mdlus", packed.getvalue()), {"a": [1.5]})

    def test_statistics_become_normalisers(self):
        nodes, edges = self.path / "node_stats.json", self.path / "edge_stats.json"
        nodes.write_text(json.dumps({"velocity_mean": [1, 2], "velocity_std": [3, 4], "velocity_diff_mean": [5, 6],
                                     "velocity_diff_std": [7, 8]}))
        edges.write_text(json.dumps({"edge_mean": [[0, 0, 1]], "edge_std": [[2, 2, 3]]}))
        content = self.bytes_of({"a": self.tensor([1])})
        read = self.convert("a.pt", content, "--stats", nodes, edges, "--node-types", "2")
        self.assertEqual(read["normalizer.nodes.mean"], [1, 2, 0, 0])
        self.assertEqual(read["normalizer.nodes.std"], [3, 4, 1, 1])
        self.assertEqual(read["normalizer.edges.std"], [2, 2, 3])
        self.assertEqual(read["normalizer.targets.mean"], [5, 6])
        done = self.run_script(self.path / "a.pt", "-o", self.path / "b", "--stats", nodes)
        self.assertEqual(done.returncode, 1)
        self.assertIn("needed edge_mean, got velocity_diff_mean", done.stderr)

    def test_errors_are_one_line(self):
        (self.path / "text.mdlus").write_text("no archive")
        (self.path / "empty.pt").write_bytes(self.bytes_of({"epoch": 3}))
        for name, expected in {"none.pt": "needed a file, got none",
                               "text.mdlus": "needed a .mdlus archive with model.pt, got a file without one",
                               "empty.pt": "needed tensors, got a dict of epoch"}.items():
            done = self.run_script(self.path / name, "-o", self.path / "out")
            self.assertEqual(done.returncode, 1)
            self.assertIn(expected, done.stderr)
            self.assertEqual(len(done.stderr.strip().splitlines()), 1)
        (self.modules / "torch.py").write_text("raise ImportError('none')\n")
        done = self.run_script(self.path / "empty.pt", "-o", self.path / "out")
        self.assertIn("needs PyTorch, got no module torch", done.stderr)


if __name__ == "__main__":
    unittest.main()
