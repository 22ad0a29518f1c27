#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/cuda/cuda-model: which instructions a tile takes, and the cycles of traces that can be counted by hand."""
import importlib.machinery
import importlib.util
import pathlib
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LOADER = importlib.machinery.SourceFileLoader("cuda_model", str(ROOT / "tests" / "cuda" / "cuda-model"))
model = importlib.util.module_from_spec(importlib.util.spec_from_loader("cuda_model", LOADER))
LOADER.exec_module(model)


def instruction(text, target=None, stall=1, sets=7, waits=()):
    control = stall | sets << 5 | 7 << 8 | sum(1 << 11 + board for board in waits)
    result = model.Instruction(0, text, control << 41)
    result.target = target
    return result


class ModelTest(unittest.TestCase):
    def test_loops_and_branches(self):
        code = [instruction("IADD3 R0"),
                instruction("@P0 BRA `(.L_x_0)", 4),  # over a slow path
                instruction("CALL.REL"), instruction("MOV R1"),
                instruction("HMMA.16816.F32 R0"), instruction("@P0 BRA `(.L_x_1)", 4),  # layers
                instruction("FADD R0"), instruction("@P0 BRA `(.L_x_2)", 0)]
        trace = model.Walk(code, 3, False).trace()
        names = [c.name for c in trace]
        self.assertEqual(names.count("HMMA"), 3)
        self.assertEqual(names.count("CALL"), 0)
        self.assertEqual(names.count("FADD"), 1)

    def test_backward_multiplies_twice_as_often(self):
        code = [instruction("HMMA.16816.F32 R0"), instruction("@P0 BRA `(.L_x_0)", 0),
                instruction("HMMA.16816.F32 R0"), instruction("@P0 BRA `(.L_x_1)", 2),
                instruction("@P0 BRA `(.L_x_2)", 0)]
        self.assertEqual(sum(c.name == "HMMA" for c in model.Walk(code, 3, True).trace()), 6)

    def test_a_stage_of_weight_gradients(self):
        stage = [instruction("BAR.SYNC"), instruction("LDSM.16.MT88.4 R0"),
                 instruction("@P1 BRA `(.L_x_3)", 5), instruction("LDGSTS.E.BYPASS.128 [R0]"),
                 instruction("BRA `(.L_x_4)", 6), instruction("LDG.E.U16 R0"), instruction("@P0 BRA `(.L_x_0)", 2),
                 instruction("HMMA.16816.F32 R0"), instruction("@P0 BRA `(.L_x_1)", 7),
                 instruction("@P0 BRA `(.L_x_2)", 0), instruction("FADD R0"), instruction("@P0 BRA `(.L_x_5)", 0)]
        walk = model.StageWalk(stage, "LDGSTS")
        names = [c.name for c in walk.trace()]
        self.assertEqual((walk.head, walk.tail), (0, 9))
        self.assertEqual([names.count(name) for name in ("HMMA", "LDGSTS", "LDG", "LDSM", "FADD")], [2, 2, 0, 1, 0])

    def test_stages_by_boxes_and_by_threads_have_a_row_each(self):
        def stage(copy, first):
            return [instruction("BAR.SYNC"), instruction(copy), instruction("@P0 BRA `(.L_x_0)", first + 1),
                    instruction("HGMMA.64x128x16.F32 R24"), instruction("@P0 BRA `(.L_x_1)", first)]
        code = stage("UTMALDG.2D [UR0]", 0) + stage("LDGSTS.E.BYPASS.128 [R0]", 5) + [instruction("@P0 BRA `(.L_x_3)", 0)]
        rows = model.walks("weight_gradients_wgmma<half>", code, 3)
        self.assertEqual([(name, walk.head, walk.tail) for name, walk in rows],
                         [("weight_gradients_wgmma<half> boxes", 0, 4), ("weight_gradients_wgmma<half> threads", 5, 9)])
        self.assertEqual([c.name for c in rows[1][1].trace()].count("LDGSTS"), 2)
        alone = stage("LDGSTS.E.BYPASS.128 [R0]", 0) + [instruction("@P0 BRA `(.L_x_3)", 0)]
        self.assertEqual([name for name, _ in model.walks("weight_gradients<half>", alone, 3)], ["weight_gradients<half>"])

    def test_products_of_warpgroups_run_beside_their_warp(self):
        product = instruction("HGMMA.64x128x16.F32 R24")
        waiting = [product] * 4 + [instruction("WARPGROUP.DEPBAR.LE gsb0")]
        self.assertAlmostEqual(model.replay(waiting, 290, 0)[0], 4 * 2 * 64, delta=64)  # of two warps a scheduler
        beside = [product] * 4 + [instruction("FADD R0")] * 100 + [instruction("WARPGROUP.DEPBAR.LE gsb0")]
        self.assertAlmostEqual(model.replay(beside, 290, 0)[0], 4 * 2 * 64, delta=64)

    def test_two_warps_share_a_tensor_core(self):
        cycles, exposed = model.replay([instruction("HMMA.16816.F32 R0")] * 100, 290, 0)
        self.assertAlmostEqual(cycles, 100 * 2 * 6, delta=40)
        self.assertEqual(exposed, 0)

    def test_a_load_that_nothing_hides(self):
        trace = [instruction("LDG.E.128 R0", sets=0), instruction("FADD R0", waits=[0])]
        self.assertEqual(model.replay(trace, 290, 0)[1], 1)
        self.assertGreater(model.replay(trace, 500, 0)[0], model.replay(trace, 290, 0)[0] + 150)

    def test_mean_over_starts(self):
        tensor = [instruction("HMMA.16816.F32 R0")] * 100                                     # 600 cycles, shared
        loads = [instruction("LDG.E.128 R0", sets=0), instruction("FADD R0", waits=[0])] * 2  # 580 cycles, not shared
        mean, exposed, least, most = model.over_starts(tensor + loads, 290)
        self.assertAlmostEqual(least, 1200, delta=60)  # one warp multiplies while the other waits
        self.assertGreater(most, least + 100)          # both multiply, then both wait
        self.assertTrue(least < mean < most)
        self.assertEqual(exposed, 2)
        turned = model.over_starts(tensor[50:] + loads + tensor[:50], 290)[0]  # the loop begins elsewhere
        self.assertAlmostEqual(turned, mean, delta=0.01 * mean)


if __name__ == "__main__":
    unittest.main()
