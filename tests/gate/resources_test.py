#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/cuda/cuda-resources: names, loops, blocks a multiprocessor, and what it says about an excess."""
import importlib.machinery
import importlib.util
import pathlib
import struct
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOADER = importlib.machinery.SourceFileLoader("cuda_resources", str(ROOT / "tests" / "cuda" / "cuda-resources"))
SPEC = importlib.util.spec_from_loader("cuda_resources", LOADER)
resources = importlib.util.module_from_spec(SPEC)
LOADER.exec_module(resources)

KERNEL = "edge_forward<half,128>"
ROW = {"registers": 255, "local": 0, "shared": 1024, "code": 80000, "loop": 70000, "dynamic": 134656, "blocks": 1}


def branch(instructions):
    """BRA to an instruction that many before the next one, as nvcc 13.0 encodes it."""
    offset = -4 * instructions & (1 << 56) - 1
    low = 0x947 | (offset & 0xff) << 16 | (offset >> 8 & 0x3fffffff) << 34
    return struct.pack("<QQ", low, offset >> 38 & 0x3ffff)


class ResourcesTest(unittest.TestCase):
    def test_names(self):
        space = "_ZN8meshgrad4cuda47_GLOBAL__N__58477491_14_fused_edges_cu_cd35d306"
        self.assertEqual(resources.short_name(space + "20edge_backward_kernelINS_4halfELi128EEEvNS1_16EdgeBackwardArgsIT_EE"),
                         "edge_backward<half,128>")
        self.assertEqual(resources.short_name(space + "19mlp_backward_kernelINS_8bfloat16ELi64ELb1EEEvNS1_15XIT_EE"),
                         "mlp_backward<bfloat16,64,1>")
        self.assertIsNone(resources.short_name("_Z11copy_kernelIfEEvT_"))

    def test_loop_of_nested_branches(self):
        other = bytes(16)
        code = other * 10 + branch(4) + other * 20 + branch(26) + other + branch(1)
        self.assertEqual(resources.largest_loop(code), 26 * 16)

    def test_blocks(self):
        self.assertEqual(resources.blocks({"registers": 128, "shared": 0, "dynamic": 65536}), 2)
        self.assertEqual(resources.blocks({"registers": 129, "shared": 0, "dynamic": 65536}), 1)
        self.assertEqual(resources.blocks({"registers": 128, "shared": 1024, "dynamic": 120000}), 1)

    def test_every_excess_has_a_line(self):
        measured = {column: ROW[column] for column in resources.COLUMNS[:5]}
        self.assertEqual(resources.excesses({KERNEL: ROW}, {KERNEL: measured}), [])
        self.assertEqual(len(resources.excesses({KERNEL: ROW}, {})), 1)
        self.assertEqual(len(resources.excesses({}, {KERNEL: measured})), 1)
        for column in resources.COLUMNS[:5]:
            worse = {**measured, column: measured[column] * 2 + 8}
            lines = resources.excesses({KERNEL: ROW}, {KERNEL: worse})
            self.assertTrue(any(f"{column} at most" in line for line in lines), (column, lines))

    def test_spills_of_architectures(self):
        measured = {"mlp_forward<half,64>": {"sm_80": 8, "sm_89": 24}, "mlp_forward<half,256>": {"sm_80": 400, "sm_89": 400}}
        self.assertEqual(resources.spilling(measured, 24), [])
        self.assertEqual(resources.spilling(measured, 23), ["mlp_forward<half,64>: local at most 23 on sm_89, got 24"])

    def test_the_table_in_the_tree(self):
        table = resources.read_table((ROOT / "tests" / "gate" / "cuda_resources.txt").read_text())
        self.assertEqual({name.split("<")[0] for name in table}, set(resources.FAMILIES))
        for name, row in table.items():
            self.assertEqual(resources.blocks(row), row["blocks"], name)


if __name__ == "__main__":
    unittest.main()
