#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/kernel-mutants without its build: what is chosen, what is tried again, and what is said of a sample."""
import contextlib
import importlib.machinery
import importlib.util
import io
import pathlib
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOADER = importlib.machinery.SourceFileLoader("kernel_mutants", str(ROOT / "scripts" / "kernel-mutants"))
mutants = importlib.util.module_from_spec(importlib.util.spec_from_loader("kernel_mutants", LOADER))
LOADER.exec_module(mutants)
SOURCE = "".join(f"for (int i{n} = 0; i{n} < {n}; ++i{n}) {{\n" for n in range(10))


class FakeBuild:
    """Tests that notice all mutants but the third."""
    tried, limit = [], 100

    def __init__(self, *_):
        pass

    def fails(self, number, test):
        if number == 0:
            return False
        if len(self.tried) >= self.limit:
            raise KeyboardInterrupt
        if test == "elementwise":
            self.tried.append(number)
        return number != 3


class MutantsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = pathlib.Path(self.folder.name)
        self.source = self.root / "kernels/cuda/norm.cu"
        self.source.parent.mkdir(parents=True)
        self.source.write_text(SOURCE)
        (self.source.parent / "simt.h").write_text(SOURCE)  # of the simulated device
        for name, value in (("ROOT", self.root), ("KNOWN", self.root / "known.txt"), ("Build", FakeBuild)):
            patch = mock.patch.object(mutants, name, value)
            patch.start()
            self.addCleanup(patch.stop)
        self.addCleanup(self.folder.cleanup)

    def run_script(self, *words, limit=100):
        """The exit code, the numbers of the mutants that were tried, and the lines that were printed."""
        FakeBuild.tried, FakeBuild.limit = [], limit
        printed = io.TextIOWrapper(io.BytesIO(), line_buffering=True)
        argv = ["kernel-mutants", "--build", str(self.root / "build"), "--jobs", "1", *words]
        code = None
        with mock.patch("sys.argv", argv), mock.patch("sys.stdout", printed), contextlib.suppress(KeyboardInterrupt):
            code = mutants.main()
        printed.seek(0)
        return code, FakeBuild.tried, printed.read().splitlines()

    def test_a_run_goes_on_where_it_was_stopped(self):
        self.assertEqual(self.run_script(limit=4)[:2], (None, [1, 2, 3, 4]))
        code, tried, lines = self.run_script()
        self.assertEqual((code, tried), (1, [5, 6, 7, 8, 9, 10]))
        self.assertEqual(lines[0], "10 mutants, 10 chosen, 4 of them tried before")
        self.assertEqual(lines[-1], "9 of 10 mutants killed, 90.0 %; 0 survivors with a reason, 1 without")
        self.assertEqual(self.run_script()[:2], (1, []))
        self.assertEqual(self.run_script("--again")[1], [3])
        self.assertEqual(len(self.run_script("--fresh")[1]), 10)

    def test_a_known_survivor_is_no_failure(self):
        (self.root / "known.txt").write_text("kernels/cuda/norm.cu | for (int i2 = 0; i2 <= 2; ++i2) { | no effect\n")
        self.assertEqual(self.run_script()[0], 0)

    def test_a_changed_file_is_tried_again(self):
        self.run_script()
        self.source.write_text(SOURCE + "// a remark\n")
        self.assertEqual(len(self.run_script()[1]), 10)

    def test_a_sample_contains_smaller_ones_and_comes_with_an_interval(self):
        small = self.run_script("--sample", "4")
        self.assertEqual(len(small[1]), 4)
        self.assertRegex(small[2][-1], r"^a sample of 10: of all, \d+\.\d to 100\.0 % would be killed \(95 %\)$"
                         if 3 not in small[1] else r"^a sample of 10: ")
        self.assertEqual(len(self.run_script("--sample", "7")[1]), 3)
        self.assertNotEqual(sorted(self.run_script("--sample", "4", "--seed", "2", "--fresh")[1]), sorted(small[1]))

    def test_intervals(self):
        low, high = mutants.interval(90, 100, 10**9)  # Wilson's of 90 in 100
        self.assertAlmostEqual(low, 82.56, places=2)
        self.assertAlmostEqual(high, 94.48, places=2)
        self.assertEqual(mutants.interval(9, 10, 10), (90.0, 90.0))  # all of them

    def test_files(self):
        (self.source.parent / "tile.h").write_text(SOURCE)
        self.assertEqual(len(self.run_script("--files", "norm.cu")[1]), 10)
        self.assertEqual(self.run_script("--files", "norm.cu", "tile.h")[2][0],
                         "20 mutants, 20 chosen, 10 of them tried before")


if __name__ == "__main__":
    unittest.main()
