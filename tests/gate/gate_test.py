#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The logic of scripts/gpu-gate, with scripts that stand in for the GPU's tools and for the binaries.

usage: tests/gate/gate_test.py [NAME...]
"""
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

NVIDIA_SMI = """
case "$*" in
  *--query-gpu*) echo "NVIDIA Test 9000, 580.1, 1000 MiB, 345 MHz, 3201 MHz, 1980 MHz, 40, 70 W, 700 W" ;;
  *) echo "a long table" ;;
esac
"""
# A doctest binary of 40 cases that pass.
TESTS = """
case "$*" in *--count*) echo "[doctest] unskipped test cases passing the current filters: 40"; exit 0 ;; esac
echo "[doctest] test cases: 5 | 5 passed | 0 failed | 35 skipped"
echo "[doctest] assertions: 70 | 70 passed | 0 failed |"
"""
MESHGRAD = """
if [ "$1" = train ]; then
  case "$*" in *ranks.partition=rcb*) echo "${HALO-2 ranks; NCCL exchanges the rows at their borders}" ;; esac
  case "$*" in *ranks.sum_alone=true*) echo "${NCCL-NCCL adds gradients}" ;; esac
  while [ "$1" != --run ]; do shift; done
  mkdir -p "$2"
  case "$2" in *cuda-f16) f=1.04 ;; *cuda-f32) f=${F32_FACTOR:-1.001} ;; */ranks | */parts) f=${RANKS_FACTOR:-1.0001} ;;
    */nccl) f=${NCCL_FACTOR:-1} ;; *) f=1 ;; esac
  for step in 10 20 30 40 50 60; do
    awk -v s=$step -v f=$f 'BEGIN { printf "{\\"step\\": %d, \\"loss\\": %g}\\n", s, f * 100 / s }'
  done | sed 's/-*nan/NaN/' >"$2/metrics.jsonl"
fi
"""
BENCH = """
command=$1
case "$*" in *--wgmma*) sums=${WGMMA_KERNEL-weight_gradients_wgmma} ;; *) sums=weight_gradients ;; esac
terms=node_terms_backward${sums#weight_gradients}
while [ $# -gt 1 ]; do [ "$1" = --json ] && file=$2; shift; done
if [ $command = trace ]; then
  echo "note: ${NOTE-MLP forward runs op by op}" >&2
  fourth=', {"name": "trace/d/f16", "run_ms": 1, "traced_ms": 1, "kernels": []}'
  cat >"$file" <<END
[{"name": "trace/a/1M/f16", "run_ms": 5.5, "traced_ms": 5.0,
  "kernels": [{"name": "edge_backward", "launches": ${LAUNCHES:-15}, "ms": 4.0}, {"name": "loss", "launches": 1, "ms": 1.0},
              {"name": "$sums", "launches": 15, "ms": 0.5}, {"name": "$terms", "launches": 15, "ms": 0.5}]},
 {"name": "trace/b/f16", "run_ms": 1, "traced_ms": 1, "kernels": []}, {"name": "trace/c/f16", "run_ms": 1, "traced_ms": 1,
  "kernels": []}${FOURTH-$fourth}]
END
  exit 0
fi
cat >"$file" <<END
[{"name": "peak/copy/before", "gbytes_per_s": 4000.0},
 {"name": "step/train_captured/f16", "description": "10 nodes", "ms": 2.0, "launches": 3},
 {"name": "step/train/f16", "description": "10 nodes", "ms": 3.0, "launches": 3},
 {"name": "step/train/100k/f16", "description": "100 nodes", "ms": 1.0, "launches": 3},
 {"name": "kernel/x/f16", "ms": 1.0, "launches": ${LAUNCHES:-3}, "error": "$ROW_ERROR"}]
END
"""
SANITIZER = """
while [ "$1" != "${1#--}" ]; do shift 2; done
"$@" || exit $?
echo "========= ERROR SUMMARY: ${SANITIZER_ERRORS:-0} errors"
[ "${SANITIZER_ERRORS:-0}" = 0 ] || exit 99
"""
PYTHON = """
case "$*" in
  *meshgraphnet.py*)
    [ -z "$TORCH_MISSING" ] || { echo "meshgraphnet.py: error: [pytorch] needed its packages, got none"; exit 1; }
    while [ $# -gt 1 ]; do [ "$1" = --json ] && file=$2; shift; done
    echo '[{"name": "peer/pytorch/train/eager/60/f16", "description": "10 nodes", "ms": 6.0}]' >"$file" ;;
esac
"""
NCU = """
echo '==PROF== Connected to process 1'
echo '"ID","Kernel Name","Metric Name","Metric Value"'
for metric in 1 2 3 4 5; do echo '"0","edge_forward","dram__bytes_read.sum","1,024"'; done
"""


CORE = ["environment", "families", "bench", "trace", "peers", "allocator", "tests", "sample", "nccl", "ranks", "parts"]


class GateTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gate-test-"))
        self.bundle = self.folder / "bundle"
        (self.bundle / "scripts").mkdir(parents=True)
        (self.bundle / "bin").mkdir()
        (self.bundle / "tools").mkdir()
        shutil.copy(ROOT / "scripts" / "gpu-gate", self.bundle / "scripts")
        (self.bundle / "MANIFEST").write_text("commit abc123\n")
        for name in ("engine_tests", "kernels_tests", "autograd_tests", "nn_tests", "train_tests"):
            self.fake("bin/" + name, TESTS)
        self.fake("bin/meshgrad", MESHGRAD)
        self.fake("bin/meshgrad-bench", BENCH)
        self.fake("tools/nvidia-smi", NVIDIA_SMI)
        self.fake("tools/compute-sanitizer", SANITIZER)
        self.fake("tools/ncu", NCU)
        self.out = self.folder / "out"

    def tearDown(self):
        shutil.rmtree(self.folder)

    def fake(self, path, text):
        file = self.bundle / path
        file.write_text("#!/bin/bash\n" + text)
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def fake_python(self):
        self.fake("tools/python3", PYTHON)
        (self.bundle / "bench" / "peers").mkdir(parents=True)
        (self.bundle / "bench" / "peers" / "meshgraphnet.py").write_text("")

    def gate(self, *arguments, **environment):
        path = f"{self.bundle / 'tools'}:/usr/bin:/bin"
        begin = time.monotonic()
        ended = subprocess.run([sys.executable, self.bundle / "scripts" / "gpu-gate", "--out", self.out, *arguments],
                               capture_output=True, text=True, timeout=120,
                               env={"PATH": path, "HOME": str(self.folder), **environment})
        self.seconds = time.monotonic() - begin
        return ended

    def verdicts(self):
        stages = json.loads((self.out / "summary.json").read_text())["stages"]
        return {name: result["verdict"] for name, result in stages.items()}

    def test_core_passes(self):
        self.fake_python()
        ended = self.gate()
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual(self.verdicts(), dict.fromkeys(
            CORE, "ok"))
        lines = ended.stdout.splitlines()
        self.assertRegex(lines[0], r"^ok +environment +[0-9.]+ s  ")
        first = lines.index("  environment  ok")
        self.assertEqual([line.split() for line in lines[first:first + len(CORE)]], [[name, "ok"] for name in CORE])
        # The answers: the fastest of our rows of a size, the ratios to PyTorch, the kernels of the largest step.
        self.assertEqual(lines[first + len(CORE):], [
            "train        2.000 ms  10 nodes; PyTorch eager 6.000 ms, 3.00 times ours; PyTorch compiled none",
            "train        1.000 ms  100 nodes; PyTorch eager none; PyTorch compiled none",
            "trace/a/1M/f16: 5.000 ms in launches, 5.500 ms in all",
            "  edge_backward                   15     4.000 ms", "  loss                             1     1.000 ms",
            "  weight_gradients                15     0.500 ms", "  node_terms_backward             15     0.500 ms"])
        summary = json.loads((self.out / "summary.json").read_text())
        self.assertEqual((summary["driver"], summary["commit"]), ("580.1", "abc123"))
        self.assertIn("40 cases passed", summary["stages"]["families"]["note"])
        bench = json.loads((self.out / "bench.json").read_text())
        self.assertEqual(bench["clocks_before"]["clocks.max.sm"], "1980 MHz")

    def test_both_groups_write_at_most_8_files_in_one_folder(self):
        self.fake_python()
        self.assertEqual(self.gate("core").returncode, 0)
        self.assertEqual(self.gate("deep").returncode, 0)
        files = [path for path in self.out.rglob("*") if path.is_file()]
        self.assertEqual(len(files), 8)
        self.assertTrue(all(path.parent == self.out and re.fullmatch(r"[\w.-]+", path.name) for path in files))
        self.assertEqual(len(self.verdicts()), 18)  # the summary holds both

    def test_default_folder_names_the_gpu_and_the_day(self):
        path = f"{self.bundle / 'tools'}:/usr/bin:/bin"
        subprocess.run([sys.executable, self.bundle / "scripts" / "gpu-gate", "environment"], capture_output=True,
                       env={"PATH": path}, check=True)
        (folder,) = (self.bundle / "bench" / "results").iterdir()
        self.assertRegex(folder.name, r"^nvidia-test-9000-\d{4}-\d\d-\d\d$")

    def test_without_a_gpu_it_exits_3(self):
        self.fake("tools/nvidia-smi", "echo 'No devices were found'; exit 6")
        ended = self.gate()
        self.assertEqual(ended.returncode, 3)
        self.assertIn("needed a GPU", ended.stderr)
        (self.bundle / "tools" / "nvidia-smi").unlink()
        self.assertEqual(self.gate().returncode, 3)
        self.assertFalse(self.out.exists())

    def test_an_unknown_stage_exits_2(self):
        ended = self.gate("cores")
        self.assertEqual(ended.returncode, 2)
        self.assertIn("[cores]", ended.stderr)

    def test_a_failing_test_does_not_stop_the_rest(self):
        self.fake("bin/kernels_tests", TESTS.replace("5 passed | 0 failed", "4 passed | 1 failed") +
                  "echo 'TEST CASE:  norms agree'; exit 1")
        ended = self.gate()
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(self.verdicts()["families"], "failed")
        self.assertEqual(self.verdicts()["bench"], "ok")
        self.assertIn("norms agree", ended.stdout)
        self.assertIn("norms agree", (self.out / "tests.log").read_text())

    def test_a_crash_is_a_failure(self):
        self.fake("bin/engine_tests", TESTS.replace("echo \"[doctest] test cases", "kill -SEGV $$ #"))
        self.gate("allocator")
        self.assertEqual(self.verdicts()["allocator"], "failed")

    def test_a_missing_binary_is_a_failure(self):
        (self.bundle / "bin" / "nn_tests").unlink()
        self.assertEqual(self.gate("tests").returncode, 1)
        self.assertEqual(self.verdicts()["tests"], "failed")

    def test_a_binary_without_cases_is_a_failure(self):
        self.fake("bin/kernels_tests", TESTS.replace("filters: 40", "filters: 0"))
        self.gate("families")
        self.assertEqual(self.verdicts()["families"], "failed")

    def test_what_hangs_is_killed_with_its_children_and_the_rest_goes_on(self):
        mark = self.folder / "still-alive"
        self.fake("bin/engine_tests", TESTS.replace("echo \"[doctest] test cases", f"""
(sleep 8; touch {mark}) & sleep 30 #""", 1))
        ended = self.gate("allocator", "families", "--seconds", "12")
        self.assertEqual(self.verdicts(), {"allocator": "timeout", "families": "ok"})
        self.assertEqual(ended.returncode, 1)
        self.assertLess(self.seconds, 12)
        time.sleep(7)
        self.assertFalse(mark.exists())

    def test_a_program_that_sees_no_gpu_is_a_failure(self):
        self.fake("bin/meshgrad", "echo 'gpu       none'")
        self.assertEqual(self.gate("environment").returncode, 1)
        self.assertEqual(self.verdicts()["environment"], "failed")

    def test_a_group_ends_in_its_time(self):
        hang = TESTS.replace("echo \"[doctest] test cases", "sleep 30 #", 1)
        for name in ("engine_tests", "kernels_tests", "autograd_tests", "nn_tests", "train_tests"):
            self.fake("bin/" + name, hang)
        self.fake("bin/meshgrad", "[ $1 = info ] || sleep 30")
        self.fake("bin/meshgrad-bench", "sleep 30")
        ended = self.gate("core", "--seconds", "6")
        self.assertEqual(ended.returncode, 1)
        self.assertLess(self.seconds, 8)
        self.assertEqual(self.verdicts()["environment"], "ok")
        self.assertEqual(self.verdicts()["allocator"], "timeout")
        self.assertEqual(self.verdicts()["bench"], "timeout")

    def test_a_curve_that_parts_from_the_cpus_fails(self):
        self.gate("sample", F32_FACTOR="1.03")
        self.assertEqual(self.verdicts()["sample"], "failed")
        curves = json.loads((self.out / "losses.json").read_text())["curves"]
        self.assertEqual(sorted(curves), ["cpu-f32", "cuda-f16", "cuda-f32"])
        self.gate("sample", F32_FACTOR="nan")
        self.assertEqual(self.verdicts()["sample"], "failed")

    def test_ranks_that_train_otherwise_than_one_process_fail(self):
        self.gate("ranks")
        self.assertEqual(self.verdicts()["ranks"], "ok")
        self.gate("ranks", RANKS_FACTOR="1.01")
        self.assertEqual(self.verdicts()["ranks"], "failed")

    def test_meshes_in_parts_that_train_otherwise_fail(self):
        self.assertIn("rows exchanged by NCCL", self.gate("parts").stdout)
        self.assertEqual(self.verdicts()["parts"], "ok")
        self.assertIn("rows exchanged in host memory", self.gate("parts", HALO="").stdout)
        self.gate("parts", RANKS_FACTOR="1.01")
        self.assertEqual(self.verdicts()["parts"], "failed")

    def test_nccl_on_one_rank_must_change_nothing(self):
        self.gate("nccl")
        self.assertEqual(self.verdicts()["nccl"], "ok")
        self.gate("nccl", NCCL_FACTOR="1.00001")
        self.assertEqual(self.verdicts()["nccl"], "failed")
        self.gate("nccl", NCCL="gradients are added in host memory")
        self.assertEqual(self.verdicts()["nccl"], "skipped")

    def test_a_row_that_launched_nothing_fails(self):
        self.gate("bench", LAUNCHES="0")
        self.assertEqual(self.verdicts()["bench"], "failed")

    def test_a_trace_without_all_its_steps_fails(self):
        self.gate("trace", FOURTH="")
        self.assertEqual(self.verdicts()["trace"], "failed")
        self.gate("bench", "trace")
        bench = json.loads((self.out / "bench.json").read_text())
        self.assertEqual((len(bench["traces"]), len(bench["rows"])), (4, 5))

    def test_both_kernels_of_weight_gradients_are_compared(self):
        ended = self.gate("wgmma")
        self.assertEqual(self.verdicts()["wgmma"], "ok")
        self.assertIn("weight_gradients_wgmma 0.500 ms, node_terms_backward_wgmma 0.500 ms", ended.stdout)
        self.gate("wgmma", WGMMA_KERNEL="weight_gradients")
        self.assertEqual(self.verdicts()["wgmma"], "skipped")  # not launched, on a GPU that is no H100
        self.gate("wgmma", ROW_ERROR="d_weight differs")
        self.assertEqual(self.verdicts()["wgmma"], "failed")
        self.assertEqual(json.loads((self.out / "bench-long.json").read_text())["wgmma_ms"],
                         {"weight_gradients": 0.5, "node_terms_backward": 0.5})
        ended = self.gate("wgmma", NOTE="weight gradients are copied by threads, not by TMA: no driver")
        self.assertEqual(self.verdicts()["wgmma"], "failed")
        self.assertIn("by TMA: no driver", ended.stdout)

    def test_sanitizer_verdicts(self):
        self.gate("memcheck")
        self.assertEqual(self.verdicts()["memcheck"], "ok")
        self.gate("memcheck", SANITIZER_ERRORS="2")
        self.assertEqual(self.verdicts()["memcheck"], "failed")
        self.fake("tools/compute-sanitizer", "echo '========= Error: Device not supported. Please refer'; exit 1")
        ended = self.gate("racecheck")
        self.assertEqual(self.verdicts()["racecheck"], "refused")
        self.assertEqual(ended.returncode, 0)
        self.assertIn("Device not supported", ended.stdout)

    def test_a_sanitizer_that_says_nothing_is_not_taken_for_a_pass(self):
        self.fake("tools/compute-sanitizer", "exit 0")
        self.gate("synccheck")
        self.assertEqual(self.verdicts()["synccheck"], "failed")

    def test_without_torch_the_peers_are_skipped(self):
        self.fake_python()
        ended = self.gate("peers", TORCH_MISSING="1")
        self.assertEqual((ended.returncode, self.verdicts()["peers"]), (0, "skipped"))
        self.gate("bench", "peers")
        self.assertEqual(self.verdicts()["peers"], "ok")
        peers = json.loads((self.out / "peers.json").read_text())
        self.assertTrue(peers["rows"])
        self.assertEqual(peers["ratios"][0], {"peer": "peer/pytorch/train/eager/60/f16",
                                              "ours": "step/train_captured/f16", "ratio": 3.0})

    def test_counters_are_kept_or_refused(self):
        self.gate("counters")
        self.assertEqual(self.verdicts()["counters"], "ok")
        self.assertEqual(len((self.out / "counters.csv").read_text().splitlines()), 6)
        self.fake("tools/ncu", "echo 'ERR_NVGPUCTRPERM: no permission'; exit 1")
        self.assertEqual(self.gate("counters").returncode, 0)
        self.assertEqual(self.verdicts()["counters"], "refused")
        self.fake("tools/ncu", "echo 'nothing was profiled'")
        self.assertEqual(self.gate("counters").returncode, 1)

    def test_long_logs_keep_their_ends(self):
        self.fake("bin/kernels_tests", TESTS + "echo begin-mark; yes 0123456789 | head -c 8000000; echo end-mark")
        self.gate("families")
        log = (self.out / "tests.log").read_text()
        self.assertLess(len(log), 5 << 20)
        self.assertIn("begin-mark", log)
        self.assertIn("end-mark", log)


if __name__ == "__main__":
    os.chdir(tempfile.gettempdir())
    unittest.main()
