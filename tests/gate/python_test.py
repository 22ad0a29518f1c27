#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the wheel of packaging/python, installs it into an environment that has numpy, matplotlib and mypy, and runs there
python_cases.py, the example and the lines of docs/python.md.

usage: python_test.py LIBRARY PROGRAM VENV     makes the virtual environment VENV once; exits 77 where PyPI cannot be reached, or
                                               MESHGRAD_NO_NETWORK is set
"""
import base64
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import vtu_readers_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODULE = ROOT / "packaging/python/meshgrad"
PACKAGES = ["numpy", "matplotlib", "mypy"]
OURS = ("MESHGRAD_LIBRARY", "LD_LIBRARY_PATH", "PYTHONPATH")


def run(*words, folder=None, **variables):
    """Without what would lead to another module or library than the environment's."""
    environment = {name: value for name, value in os.environ.items() if name not in OURS}
    done = subprocess.run([str(word) for word in words], cwd=folder, env={**environment, **variables}, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory()
        cls.path = pathlib.Path(cls.temporary.name)
        cls.said = run(ROOT / "packaging/python/build", "--library", LIBRARY, cls.path)
        (cls.wheel,) = cls.path.glob("*.whl")
        run(PYTHON, "-m", "pip", "install", "--quiet", "--no-index", "--force-reinstall", "--no-deps", cls.wheel)

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    def test_record_and_names(self):
        again = self.path / "again"
        run(ROOT / "packaging/python/build", "--library", LIBRARY, again)
        self.assertEqual((again / self.wheel.name).read_bytes(), self.wheel.read_bytes())
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            (record,) = (name for name in names if name.endswith("/RECORD"))
            rows = [line.split(",") for line in archive.read(record).decode().splitlines()]
            self.assertEqual(sorted(names), sorted(name for name, _, _ in rows))
            for name, kind_and_hash, size in rows:
                content = archive.read(name)
                if name != record:
                    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
                    self.assertEqual((kind_and_hash, size), (f"sha256={digest}", str(len(content))))
            tag = re.search(r"Tag: (.*)", archive.read(record.replace("RECORD", "WHEEL")).decode()).group(1)
        self.assertTrue(self.wheel.name.endswith(f"-{tag}.whl"), tag)
        self.assertRegex(tag, "py3-none-linux_" if "for machines that have" in self.said else r"py3-none-manylinux_2_\d+_")
        libraries = [name for name in names if "/lib/lib" in name]
        self.assertEqual(len([name for name in names if "/licenses/" in name]), len(libraries))  # with LICENSE of libmeshgrad
        run(PYTHON, "-m", "pip", "check")

    def test_the_library_of_the_wheel_and_no_other_is_loaded(self):
        maps = run(PYTHON, "-c", "import meshgrad; meshgrad.Runtime(); print(open('/proc/self/maps').read())", folder="/")
        loaded = set(re.findall(r"/\S+/(lib(?:meshgrad|fmt|xxhash|hwy|metis)\.so\S*)", maps))
        self.assertIn("libmeshgrad.so", loaded)
        for path in set(re.findall(rf"(/\S+/(?:{'|'.join(map(re.escape, loaded))}))\n", maps)):
            self.assertTrue(path.startswith(str(VENV)), path)

    def test_a_library_that_is_not_found(self):
        code = "import meshgrad\ntry: meshgrad.Runtime()\nexcept meshgrad.ConfigError as error: print(error.place, error.fix)"
        said = run(PYTHON, "-c", code, folder="/", MESHGRAD_LIBRARY="/none.so")
        self.assertEqual(said, "/none.so install a wheel, or name it by MESHGRAD_LIBRARY\n")

    def test_types_and_size(self):
        run(PYTHON, "-m", "mypy", "--strict", "--cache-dir", self.path / "mypy", MODULE, folder="/")
        self.assertLessEqual(sum(len(path.read_text().splitlines()) for path in MODULE.glob("*.py")), 500)

    def test_cases(self):
        print(run(PYTHON, ROOT / "tests/gate/python_cases.py", PROGRAM, folder=self.path))

    def test_example_and_page(self):
        said = run(PYTHON, ROOT / "examples/python/heat.py", folder=self.path, MPLBACKEND="Agg")
        self.assertLess(float(re.search(r"steps: (\S+)", said).group(1)), 0.1)
        self.assertEqual((self.path / "heat.png").read_bytes()[:4], b"\x89PNG")
        blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/python.md").read_text(), re.S)
        self.assertEqual(len(blocks[0].splitlines()), 6)
        (self.path / "page.py").write_text("\n".join([ARRAYS, *blocks]))
        run(PYTHON, "page.py", folder=self.path, MPLBACKEND="Agg")


# What the page speaks of, beside heat.safetensors.
ARRAYS = """import numpy as np
side = 9
at = np.arange(side * side).reshape(side, side)
cells = np.stack([at[:-1, :-1], at[:-1, 1:], at[1:, 1:], at[1:, :-1]], axis=-1).reshape(-1, 4)
positions = np.stack([at.ravel() % side, at.ravel() // side], axis=1) / (side - 1)
node_type = np.any((positions == 0) | (positions == 1), axis=1).astype(np.int32)
u = np.sin(np.pi * positions).prod(axis=1)
"""

if __name__ == "__main__":
    LIBRARY, PROGRAM, VENV = (pathlib.Path(word).absolute() for word in (sys.argv.pop(1), sys.argv.pop(1), sys.argv.pop(1)))
    PYTHON = VENV / "bin/python"
    if shutil.which("dpkg") is None:
        vtu_readers_test.skip("no dpkg, by which the wheel finds the licences of libraries")
    vtu_readers_test.make_environment(VENV, PACKAGES)
    unittest.main(verbosity=2)
