#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/peers: which pairs count, how they are evaluated, and how programs are run. With programs that stand in."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader("peers_script", str(ROOT / "scripts" / "peers"))
peers = importlib.util.module_from_spec(importlib.util.spec_from_loader("peers_script", loader))
loader.exec_module(peers)
median_interval = peers.load_median_interval()

# Both log that they ran, and where. The file "peaks" contains the peaks to report.
COMMON = f"""#!{sys.executable}
import json, os, pathlib, sys
folder = pathlib.Path(__file__).parent
value = lambda option: sys.argv[sys.argv.index(option) + 1]
def ran(what):
    with open(folder / "log", "a") as log:
        log.write(json.dumps([what, sorted(os.sched_getaffinity(0)), os.environ["OMP_NUM_THREADS"], value("--threads")]) + "\\n")
def write(name, ms, **more):
    row = {{"name": name, "description": "10 nodes", "ms": ms, "ms_min": ms, "cpu_s": 2 * ms / 1e3, "cpu_share": 0.99,
           "memory_peak_mib": ms, **more}}
    pathlib.Path(value("--json")).write_text(json.dumps([{{"name": "peak/fma_f32/before"}}, row][-1 if more else 0:]))
"""
BENCH = COMMON + """
ran(sys.argv[1])
if sys.argv[1] == "peak":
    peaks = (folder / "peaks").read_text().split()
    (folder / "peaks").write_text(" ".join(peaks[1:] + peaks[:1]))
    print(peaks[0], "GFLOP/s")
else:
    write(sys.argv[2], 2.0)
"""
PEER = COMMON + """
ran("theirs")
if "pyg" in sys.argv:
    sys.exit("no such package")
write("peer", 6.0, cpu_share=float((folder / "share").read_text()), framework="PyTorch 9")
"""


def pair(ours=2.0, theirs=6.0, peaks=(100.0, 98.0, 97.0), ours_share=1.0, theirs_share=1.0, cpu=1.0):
    return {"peaks": list(peaks),
            "ours": {"ms": ours, "ms_min": ours, "cpu_s": ours * cpu, "cpu_share": ours_share},
            "theirs": {"ms": theirs, "ms_min": theirs, "cpu_s": theirs, "cpu_share": theirs_share}}


class PairsTest(unittest.TestCase):
    def test_a_pair_counts_when_the_machine_was_quiet(self):
        self.assertEqual(peers.objections(pair(), 100.0), [])
        self.assertEqual(peers.objections(pair(peaks=(90.0, 90.0, 90.0)), 100.0), [])

    def test_a_low_peak_before_between_or_behind_rejects(self):
        for at in range(3):
            peaks = [100.0, 100.0, 100.0]
            peaks[at] = 89.9
            (why,) = peers.objections(pair(peaks=peaks), 100.0)
            self.assertIn("90 % of the best", why)

    def test_cpu_time_that_others_took_rejects(self):
        for who in ("ours", "theirs"):
            (why,) = peers.objections(pair(**{f"{who}_share": 0.949}), 100.0)
            self.assertTrue(why.startswith(f"{who} got 95 %"), why)
            self.assertEqual(peers.objections(pair(**{f"{who}_share": 0.95}), 100.0), [])
            for unknown in (0.0, None):
                (why,) = peers.objections(pair(**{f"{who}_share": unknown}), 100.0)
                self.assertIn("does not count", why)

    def test_ratios_are_those_of_pairs(self):
        # The ratio of the medians would be 20 / 2 = 10.
        pairs = [pair(1.0, 2.0), pair(2.0, 30.0), pair(4.0, 20.0)]
        row = peers.summary(pairs, 100.0, median_interval)
        self.assertEqual((row["ratio"], row["ratio_low"], row["ratio_high"]), (5.0, 2.0, 15.0))
        self.assertEqual((row["ours_ms"], row["theirs_ms"]), (2.0, 20.0))
        self.assertEqual(row["coverage"], 0.75)
        row = peers.summary([pair(cpu=0.5)] * 6, 100.0, median_interval)
        self.assertEqual((row["ratio"], row["cpu_ratio"], row["coverage"]), (3.0, 6.0, 0.95))

    def test_a_better_peak_later_rejects_earlier_pairs(self):
        pairs = [pair(2.0, 6.0), pair(2.0, 8.0, peaks=(120.0, 120.0, 120.0))]
        row = peers.summary(pairs, 120.0, median_interval)
        self.assertEqual((row["pairs"], row["pairs_used"], row["pairs_rejected"], row["ratio"]), (2, 1, 1, 4.0))
        row = peers.summary(pairs[:1], 120.0, median_interval)
        self.assertEqual((row["pairs_used"], "ratio" in row), (0, False))
        self.assertIn("no pair counts", peers.line({"name": "x", **row}))
        self.assertEqual(peers.summary(pairs, 120.0, median_interval, all_count=True)["pairs_used"], 2)


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="comparison-test-"))
        self.cores = sorted(os.sched_getaffinity(0))[:1]
        for name, text in (("meshgrad-bench", BENCH), ("peer.py", PEER)):
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        (self.folder / "peaks").write_text("100 99 98")
        (self.folder / "share").write_text("0.97")

    def tearDown(self):
        shutil.rmtree(self.folder)

    def compare(self, *arguments):
        self.json = self.folder / "out.json"
        ended = subprocess.run([sys.executable, ROOT / "scripts" / "peers", "--build", self.folder, "--python",
                                sys.executable, "--program", self.folder / "peer.py", "--cores", str(self.cores[0]),
                                "--json", self.json, *arguments], capture_output=True, text=True, timeout=60)
        log = self.folder / "log"
        self.ran = [json.loads(text) for text in log.read_text().splitlines()] if log.exists() else []
        return ended

    def rows(self):
        return {row["name"]: row for row in json.loads(self.json.read_text())["rows"]}

    def test_interleaved_on_the_same_cores(self):
        ended = self.compare("--only", "train/bf16/pytorch_eager", "--pairs", "2")
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual([what for what, *_ in self.ran], ["peak", "run", "peak", "theirs", "peak"] * 2)
        self.assertTrue(all(where == [self.cores, "1", "1"] for _, *where in self.ran), self.ran)
        row = self.rows()["train/bf16/pytorch_eager"]
        self.assertEqual((row["ratio"], row["cpu_ratio"], row["pairs_used"], row["ours"], row["theirs"]),
                         (3.0, 3.0, 2, "step/train/bf16", "--amp bf16"))
        self.assertEqual(row["framework"], "PyTorch 9")
        self.assertEqual([run["ours"]["ms"] for run in row["runs"]], [2.0, 2.0])
        conditions = json.loads(self.json.read_text())["conditions"]
        self.assertEqual((conditions["best_peak_gflops"], conditions["cores_used"]), (100.0, self.cores))
        self.assertTrue(conditions["cpu"] and conditions["date"])
        self.assertIn("3.00 [3.00, 3.00]", ended.stdout)

    def test_rejected_pairs_are_tried_again_and_not_for_ever(self):
        (self.folder / "peaks").write_text("100 100 100 100 50 100")  # every second pair
        self.assertEqual(self.compare("--only", "forward/f32/pytorch_eager", "--pairs", "2").returncode, 0)
        row = self.rows()["forward/f32/pytorch_eager"]
        self.assertEqual((row["pairs_used"], row["pairs_rejected"]), (2, 1))
        (self.folder / "peaks").write_text("100")
        (self.folder / "share").write_text("0.5")
        ended = self.compare("--only", "forward/f32/pytorch_eager", "--pairs", "1")
        self.assertEqual(ended.returncode, 1)
        row = self.rows()["forward/f32/pytorch_eager"]
        self.assertEqual((row["pairs"], row["pairs_used"]), (3, 0))
        self.assertIn("theirs got 50 %", row["objections"][0])

    def test_what_fails_is_named_and_the_rest_goes_on(self):
        ended = self.compare("--only", "train/f32/py", "--quick")
        self.assertEqual(ended.returncode, 1)
        self.assertRegex(ended.stderr, r"train/f32/pyg: python\S* exited with 1: no such package")
        rows = self.rows()
        self.assertEqual([name for name, row in rows.items() if row.get("ratio")],
                         ["train/f32/pytorch_eager", "train/f32/pytorch_compiled"])

    def test_other_sizes_are_no_comparison(self):
        peer = self.folder / "peer.py"
        peer.write_text(peer.read_text().replace('"10 nodes"', '"11 nodes"'))
        ended = self.compare("--only", "train/f32/pytorch_eager", "--quick")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("ours has 10 nodes, theirs 11 nodes", ended.stderr)

    def test_memory(self):
        ended = self.compare("--only", "memory")
        self.assertEqual(ended.returncode, 0, ended.stderr)
        rows = self.rows()
        self.assertEqual(len(rows), len(peers.MEMORY_OURS) * len(peers.MEMORY_PEERS))
        self.assertTrue(all(row["ratio"] == 3.0 for row in rows.values()))

    def test_a_program_that_hangs_is_killed_with_its_children(self):
        mark = self.folder / "alive"
        limit, peers.LIMIT_S = peers.LIMIT_S, 0.3
        try:
            with self.assertRaises(peers.Failure):
                peers.run_process(["bash", "-c", f"(sleep 1; touch {mark}) & sleep 20"], set(self.cores), os.environ)
        finally:
            peers.LIMIT_S = limit
        time.sleep(1.2)
        self.assertFalse(mark.exists())

    def test_when_it_is_ended_so_is_what_it_runs(self):
        mark = self.folder / "alive"
        bench = self.folder / "meshgrad-bench"
        bench.write_text(f"#!/bin/bash\ntouch {self.folder}/started; sleep 2; touch {mark}\n")
        script = subprocess.Popen([sys.executable, ROOT / "scripts" / "peers", "--build", self.folder, "--python", "none",
                                   "--only", "memory", "--only", "train/f32/pyg"], stderr=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL)
        while not (self.folder / "started").exists():
            time.sleep(0.02)
        script.terminate()
        self.assertEqual(script.wait(20), 143)
        time.sleep(2.2)
        self.assertFalse(mark.exists())

    def test_a_missing_benchmark_and_wrong_arguments(self):
        (self.folder / "meshgrad-bench").unlink()
        ended = self.compare()
        self.assertEqual(ended.returncode, 1)
        self.assertIn("meshgrad-bench is missing", ended.stderr)
        for wrong in (["--only", "nothing"], ["--cores", "a"], ["--cores", "99999"], ["--pairs", "0"]):
            with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as ended:
                peers.parse(wrong)
            self.assertEqual(ended.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
