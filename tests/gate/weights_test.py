#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Exports weights, predicts by the lines of docs/weights.md, edits the file, imports it, and compares with the predictor.

usage: weights_test.py LIBRARY PROGRAM VENV [--torch]     makes the virtual environment VENV once; exits 77 where PyPI cannot be
                                                          reached, or MESHGRAD_NO_NETWORK is set
Without --torch the page's lines run on numpy, by STAND_IN of the few functions that they call.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest

import vtu_readers_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
(LINES,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/weights.md").read_text(), re.S)
SIDE = 6
BASE = """data = {inputs = ["u"], targets = ["u"], node_types = 2, predicted_types = [0]}
optimizer.lr = 1e-2
train = {steps = 200, noise = 1e-3}
"""
MODELS = {
    "DeepMind's conventions": 'precision = "f64"\nmodel = {width = 8, blocks = 3}',
    "PhysicsNeMo's conventions": 'precision = "f64"\nmodel = {width = 8, blocks = 2, hidden_layers = 1, activation = "silu", '
                                 'concat_order = "edge_sender_receiver", aggregate = "after_residual"}',
    "f32": "model = {width = 16, blocks = 2}",
}


def stand_in():
    import numpy as np

    class Array(np.ndarray):
        def flip(self, axis):
            return np.flip(self, axis)

        def norm(self, dim, keepdim):
            return np.linalg.norm(self, axis=dim, keepdims=keepdim)

        def index_add(self, axis, index, rows):
            assert axis == 0
            result = self.copy()
            np.add.at(result, np.asarray(index), rows)
            return result

    def layer_norm(x, shape, gain, bias, eps):
        assert tuple(shape) == x.shape[-1:]
        mean = x.mean(-1, keepdims=True)
        return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * gain + bias

    torch = types.ModuleType("torch")
    torch.float64, torch.isin, torch.where, torch.zeros_like = np.float64, np.isin, np.where, np.zeros_like
    torch.tensor = lambda values, dtype=None: np.array(values, dtype).view(Array)
    torch.cat = lambda parts, axis=0: np.concatenate(parts, axis).view(Array)
    torch.nn = types.SimpleNamespace(functional=types.SimpleNamespace(
        relu=lambda x: np.maximum(x, 0), silu=lambda x: x / (1 + np.exp(-x)), layer_norm=layer_norm,
        linear=lambda x, weight, bias: x @ weight.T + bias, one_hot=lambda index, count: np.eye(count)[np.asarray(index)]))
    return torch


def run(*words):
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.PIPE)


class Weights(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        os.chdir(self.temporary.name)
        random = np.random.default_rng(3)
        at = np.arange(SIDE * SIDE, dtype=np.int32).reshape(SIDE, SIDE)
        self.edges = np.concatenate([np.stack([at[:, :-1].ravel(), at[:, 1:].ravel()], 1),
                                     np.stack([at[:-1].ravel(), at[1:].ravel()], 1)])
        self.positions = np.stack([at.ravel() % SIDE, at.ravel() // SIDE], 1) / (SIDE - 1) + 0.02 * random.normal(size=(SIDE * SIDE, 2))
        self.node_type = (random.random(SIDE * SIDE) < 0.3).astype(np.int32)
        self.u = random.normal(size=(SIDE * SIDE, 1))

    def tearDown(self):
        os.chdir("/")
        self.temporary.cleanup()

    def mesh(self):
        return meshgrad.Mesh(self.positions, edges=self.edges, node_type=self.node_type)

    def train(self, config):
        with meshgrad.Trainer(config, [meshgrad.Field("u")], runtime=meshgrad.Runtime(threads=1)) as trainer:
            trainer.set_mesh(self.mesh())
            u = self.u.copy()
            for _ in range(12):
                trainer.set_field("u", u)
                trainer.append()
                u = u * 0.9 + 0.1 * np.roll(u, 1)
            trainer.train(30)
            trainer.save("model.safetensors")

    def predicted(self, checkpoint):
        with meshgrad.Predictor(checkpoint, runtime=meshgrad.Runtime(threads=1)) as predictor:
            predictor.set_mesh(self.mesh())
            predictor.set_field("u", self.u)
            predictor.predict(1)
            return predictor.get_field("u")

    def by_the_page(self):
        names = {"u": torch.tensor(self.u), "positions": torch.tensor(self.positions),
                 "edges": torch.tensor(self.edges.astype(np.int64)), "node_type": torch.tensor(self.node_type.astype(np.int64))}
        exec(compile(LINES, "docs/weights.md", "exec"), names)
        return np.asarray(names["u"])

    def test_page_edit_and_back(self):
        for name, model in MODELS.items():
            with self.subTest(name):
                for file in pathlib.Path().iterdir():
                    file.unlink()
                self.train(BASE + model)
                run(PROGRAM, "export", "model.safetensors", "-o", "heat.safetensors")
                ours, theirs = self.predicted("model.safetensors"), self.by_the_page()
                scale = np.abs(ours).max()  # a predictor's fields are f32
                self.assertGreater(np.abs(ours - self.u).max() / scale, 0.01)
                self.assertLess(np.abs(ours - theirs).max() / scale, 1e-6)

                with safetensors.safe_open("heat.safetensors", "np") as file:
                    metadata = file.metadata()
                    tensors = {key: file.get_tensor(key) for key in file.keys()}
                tensors["processor.1.edge_mlp.linear_0.weight"][2, 5] += 1.0
                safetensors.numpy.save_file(tensors, "heat.safetensors", metadata=metadata)
                run(PROGRAM, "import", "heat.safetensors", "--from", "meshgrad", "-o", "edited.safetensors")
                edited, theirs = self.predicted("edited.safetensors"), self.by_the_page()
                self.assertGreater(np.abs(edited - ours).max() / scale, 1e-4)  # a hundred times what is tolerated
                self.assertLess(np.abs(edited - theirs).max() / scale, 1e-6)
                print(f"{name}: as the page's lines to {np.abs(edited - theirs).max() / scale:.1e}")


if __name__ == "__main__":
    LIBRARY, PROGRAM, VENV = (pathlib.Path(word).absolute() for word in sys.argv[1:4])
    WITH_TORCH = sys.argv[4:] == ["--torch"]
    vtu_readers_test.make_environment(VENV, ["numpy", "safetensors", *(["torch"] if WITH_TORCH else [])])
    if pathlib.Path(sys.prefix).resolve() != VENV.resolve():
        sys.exit(subprocess.run([VENV / "bin/python", *sys.argv]).returncode)
    os.environ["MESHGRAD_LIBRARY"] = str(LIBRARY)
    sys.path.insert(0, str(ROOT / "packaging/python"))
    if not WITH_TORCH:
        import numpy
        sys.modules["torch"] = stand_in()
    import meshgrad
    import numpy as np
    import safetensors
    import safetensors.numpy
    import torch
    unittest.main(argv=sys.argv[:1], verbosity=2)
