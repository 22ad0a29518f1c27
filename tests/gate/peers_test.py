#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The parts of bench/peers/meshgraphnet.py that need no PyTorch: sizes, names, statistics, rows."""
import importlib.util
import io
import contextlib
import json
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
spec = importlib.util.spec_from_file_location("meshgraphnet", ROOT / "bench" / "peers" / "meshgraphnet.py")
peer = importlib.util.module_from_spec(spec)
spec.loader.exec_module(peer)


class PeersTest(unittest.TestCase):
    def test_as_many_parameters_as_meshgrads_model(self):
        # docs/reference-results.md: meshgrad's MeshGraphNet of width 64 with 6 blocks, of the same inputs.
        self.assertEqual(peer.parameter_count(64, 6), 251394)

    def test_several_sets_of_options_run_in_one_process(self):
        seen, torch = [], sys.modules.get("torch")
        run, peer.run = peer.run, lambda torch, options: seen.append(options.edges) or {
            "name": str(options.edges), **dict.fromkeys(["ms", "ms_low", "ms_high", "gflops", "memory_peak_mib"], 1.0),
            "parameters": 1}
        sys.modules["torch"] = object()
        try:
            with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
                file = pathlib.Path(folder) / "rows.json"
                self.assertEqual(peer.main(["--edges", "12", "--json", str(file), "--next", "--edges", "18", "--json",
                                            str(file)]), 0)
                self.assertEqual([row["name"] for row in json.loads(file.read_text())], ["12", "18"])
        finally:
            peer.run = run
            sys.modules.pop("torch") if torch is None else sys.modules.update(torch=torch)
        self.assertEqual(seen, [12, 18])

    def test_flops_are_those_of_a_step_that_was_measured(self):
        # bench/results/step-f32-2-cores.json: 192.94 GFLOP/s in 346.2488 ms of training.
        flops = 3 * peer.split_flops(128, 15, 1849, 10752)
        self.assertAlmostEqual(flops / 192.94334581332018e9, 0.346248762, places=6)

    def test_the_mesh_has_six_edges_a_node_in_order_of_receiver(self):
        nodes, senders, receivers = peer.mesh(peer.parse(["--edges", "210"]))
        self.assertEqual(nodes, 35)
        self.assertEqual(receivers, sorted(receivers))
        self.assertEqual(len(senders), 6 * 35)
        edges = set(zip(senders, receivers))
        self.assertTrue(all((b, a) in edges for a, b in edges))
        self.assertEqual(sorted(s for s, r in zip(senders, receivers) if r == 0), [1, 6, 7, 28, 29, 34])

    def test_the_square_has_boundaries(self):
        options = peer.parse([])
        nodes, senders, receivers = peer.mesh(options)
        self.assertEqual((nodes, len(senders)), (1849, 10752))
        self.assertEqual(peer.mesh_sizes(options), (1849, 10752))
        self.assertEqual(sorted(s for s, r in zip(senders, receivers) if r == 0), [1, 43, 44])

    def test_interval_of_the_median(self):
        self.assertEqual(peer.median_interval([3.0, 1.0, 2.0]), (2.0, 1.0, 3.0))
        self.assertEqual(peer.median_interval(list(range(1, 11))), (5.5, 2, 9))  # 97.9 %
        middle, low, high = peer.median_interval(list(range(2000)))
        self.assertEqual(middle, 999.5)
        self.assertTrue(950 < low < 960 and 1039 < high < 1050)

    def test_options_and_names(self):
        options = peer.parse(["--edges", "600", "--amp", "f16", "--checkpoint", "--compile"])
        self.assertEqual(peer.row_name(options), "peer/pytorch/train/compiled_checkpoint/600/f16")
        self.assertEqual(peer.row_name(peer.parse(["--forward"])), "peer/pytorch/forward/eager/10752/f32")
        self.assertEqual(peer.row_name(peer.parse(["--framework", "pyg", "--compile"])),
                         "peer/pyg/train/compiled/10752/f32")
        self.assertEqual(peer.row_name(peer.parse(["--framework", "physicsnemo", "--forward", "--amp", "bf16"])),
                         "peer/physicsnemo/forward/concat_trick/10752/bf16")
        self.assertEqual(peer.row_name(peer.parse(["--memory", "--device", "cpu", "--batch", "4", "--checkpoint"])),
                         "peer/pytorch/memory/train/eager_checkpoint/43008/f32")
        for wrong in (["--edges", "5"], ["--batch", "0"], ["--amp", "f8"], ["--bogus"], ["--framework", "dgl"],
                      ["--framework", "physicsnemo", "--compile"], ["--framework", "pyg", "--checkpoint"],
                      ["--memory", "--device", "cuda"]):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit):
                peer.parse(wrong)

    def test_shares_of_the_cpu_time_asked_for(self):
        before, after = (10.0, 1.0), (13.0, 2.0)  # ran 3 s, waited 1 s
        self.assertEqual(peer.cpu_fields(before, after, 4.0, 2), {"cpu_s": 2.0, "cpu_share": 0.75})
        self.assertEqual(peer.cpu_fields(None, None, 4.0, 2), {"cpu_s": 2.0, "cpu_share": 0.0})
        fields = peer.cpu_fields((0.0, 0.0), (1.0, 0.0), 1.0, 1)
        self.assertEqual(fields["cpu_share"], 1.0)
        report = (ROOT / "bench" / "report.cpp").read_text()
        for field in fields:
            self.assertIn(f'"{field}"', report)

    def test_fields_are_those_of_meshgrad_bench(self):
        row = peer.make_row(peer.parse(["--edges", "605", "--batch", "2"]), [2.0, 1.0, 3.0], 5.0, "gpu", 1, "2.0")
        self.assertEqual((row["ms"], row["ms_min"], row["ms_max"]), (2.0, 1.0, 3.0))
        self.assertEqual(row["description"], "200 nodes, 1200 edges, 15 blocks, width 128")
        report = (ROOT / "bench" / "report.cpp").read_text()
        for field in set(row) - {"framework"}:
            self.assertIn(f'"{field}"', report)


if __name__ == "__main__":
    unittest.main()
