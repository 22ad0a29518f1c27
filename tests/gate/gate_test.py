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
  *--query-gpu*) echo "${GPU-NVIDIA Test 9000}, 580.1, 1000 MiB, 345 MHz, 3201 MHz, 1980 MHz, 40, 70 W, 700 W" ;;
  *) echo "a long table" ;;
esac
"""
# A doctest binary that passes.
TESTS = """
[ -z "$FEW_FAIL" ] || [ "$MESHGRAD_TEST_MULTIPROCESSORS" != 3 ] || { echo "TEST CASE:  second rounds"; exit 1; }
echo "[doctest] test cases: 40 | 40 passed | 0 failed | 35 skipped"
echo "[doctest] assertions: 70 | 70 passed | 0 failed |"
"""
LABELS = {"engine_tests": ["allocator"], "kernels_tests": ["families", "sanitizer"], "autograd_tests": ["device"],
          "nn_tests": ["device"], "train_tests": ["device", "sanitized"]}
MESHGRAD = """
if [ "$1" = train ]; then
  all="$*"
  while [ "$1" != --run ]; do shift; done
  mkdir -p "$2"
  case "$all" in *ranks.partition=rcb*) kind=parts field=rows_by by=${ROWS_BY-nccl} ;; *) kind=reduction field=by by=${BY-nccl} ;; esac
  printf '{"step": 0, "kind": "begins", "fields": {}, "text": "x"}\\n{"step": 0, "kind": "%s", "fields": {"%s": "%s"}, "text": "said of %s"}\\n' \\
    $kind $field $by $by >"$2/events.jsonl"
  case "$2" in *cuda-f16) f=1.04 ;; *cuda-f32) f=${F32_FACTOR:-1.001} ;; */ranks) f=${RANKS_FACTOR:-1.0001} ;;
    */nccl) f=${NCCL_FACTOR:-1} ;; *) f=1 ;; esac
  for step in 10 20 30 40 50 60; do
    awk -v s=$step -v f=$f 'BEGIN { printf "{\\"step\\": %d, \\"loss\\": %g}\\n", s, f * 100 / s }'
  done | sed 's/-*nan/NaN/' >"$2/metrics.jsonl"
fi
"""
BENCH = """
command=$1
while [ $# -gt 1 ]; do
  case $1 in --json) file=$2 ;; --gpu) gpu=$2 ;; ratio/*) ratio=$1 ;; esac
  shift
done
if [ $command = trace ]; then
  fourth=', {"name": "trace/d/f16", "run_ms": 1, "traced_ms": 1, "kernels": []}'
  cat >"$file" <<END
[{"name": "trace/a/1M/f16", "run_ms": 5.5, "traced_ms": 5.0,
  "kernels": [{"name": "edge_backward", "launches": 15, "ms": 4.0},
              {"name": "weight_gradients", "launches": 15, "ms": 0.5},
              {"name": "node_terms_backward", "launches": 15, "ms": 0.5}]},
 {"name": "trace/b/f16", "run_ms": 1, "traced_ms": 1, "kernels": []}, {"name": "trace/c/f16", "run_ms": 1, "traced_ms": 1,
  "kernels": []}${FOURTH-$fourth}]
END
  exit 0
elif [ $command = bound ]; then
  [ -z "$ratio$NO_BOUND" ] || exit 2
  cat >"$file" <<END
[{"name": "step/train/f16", "gpu": "$gpu", "bound_ms": 0.5}, {"name": "kernel/y/f16", "gpu": "$gpu", "bound_ms": 0.4},
 {"name": "kernel/z/f16", "gpu": "$gpu", "bound_ms": 0.1}]
END
  exit 0
fi
cat >"$file" <<END
[{"name": "peak/copy/before", "gbytes_per_s": 4000.0},
 {"name": "step/train_captured/f16", "description": "10 nodes", "ms": 2.0, "launches": 3},
 {"name": "step/train/f16", "description": "10 nodes", "ms": 3.0, "launches": 3},
 {"name": "step/train/100k/f16", "description": "100 nodes", "ms": 1.0, "launches": 3},
 {"name": "kernel/y/f16", "ms": 0.5, "launches": 3},
 {"name": "kernel/x/f16", "ms": 1.0, "launches": ${LAUNCHES:-3}, "error": "$ROW_ERROR"}]
END
"""
SANITIZER = """
case "$*" in *racecheck*) summary="RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;; *) summary="ERROR SUMMARY: 0 errors" ;; esac
[ "${SANITIZER_ERRORS:-0}" = 0 ] || summary="ERROR SUMMARY: $SANITIZER_ERRORS errors"
while [ "$1" != "${1#--}" ]; do shift 2; done
"$@" || exit $?
echo "========= $summary"
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
echo '"ID","Kernel Name","dram__bytes.sum","launch__grid_size"'
echo '"","","byte",""'
echo '"0","edge_forward_kernel(Args)","1,024","132"'
echo '"1","edge_forward_kernel(Args)","3,072","132"'
"""

CORE = ["environment", "families", "few", "bench", "trace", "sample", "tests", "counters", "allocator", "nccl", "peers"]


class GateTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gate-test-"))
        self.bundle = self.folder / "bundle"
        (self.bundle / "scripts").mkdir(parents=True)
        (self.bundle / "bin").mkdir()
        (self.bundle / "tools").mkdir()
        shutil.copy(ROOT / "scripts" / "gpu-gate", self.bundle / "scripts")
        (self.bundle / "MANIFEST").write_text("commit abc123\n")
        for name in LABELS:
            self.fake("bin/" + name, TESTS)
        (self.bundle / "tests.json").write_text(json.dumps({"tests": [
            {"name": name, "command": [f"/gone/{name}", "--source-file=*x.cpp"],
             "properties": [{"name": "LABELS", "value": labels}]} for name, labels in LABELS.items()]}))
        self.fake("bin/meshgrad", MESHGRAD)
        self.fake("bin/meshgrad-bench", BENCH)
        self.fake("tools/nvidia-smi", NVIDIA_SMI)
        self.fake("tools/mpirun", 'shift 5; exec "$@"')
        self.fake("tools/ldd", 'echo "libmpi.so.40 => /lib/libmpi.so.40 (0x1)" | grep "$MPI_BUILD"')
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

    def results(self, extension="json"):
        (file,) = self.out.glob(f"*.{extension}")
        return json.loads(file.read_text()) if extension == "json" else file.read_text()

    def verdicts(self):
        return {name: result["verdict"] for name, result in self.results()["stages"].items()}

    def test_core_passes_and_ends_with_its_answer(self):
        self.fake_python()
        ended = self.gate()
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        self.assertEqual(list(self.verdicts().items()), [(name, "ok") for name in CORE])
        self.assertRegex(ended.stdout.splitlines()[0], r"^ok +environment +[0-9.]+ s  ")
        # The fastest of our rows of a size, the ratios to PyTorch, a step's launches.
        page = ended.stdout
        for line in ("## NVIDIA Test 9000", "| train, 10 nodes | 2 | 6 (3.00) | none |",
                     "| train, 100 nodes | 1 | none | none |",
                     "No bounds: peaks are known of NVIDIA A100-SXM4-80GB, ", "| edge_backward | 15 | 4.000 |"):
            self.assertIn(line, page)
        results = self.results()
        self.assertEqual((results["gpu"]["driver_version"], results["commit"]), ("580.1", "abc123"))
        self.assertIn("40 cases passed", results["stages"]["families"]["note"])
        self.assertEqual(results["counters"], {"edge_forward": {"dram__bytes.sum": 2048.0}})
        self.assertEqual(results["clocks"][0]["clocks.max.sm"], "1980 MHz")

    def test_both_groups_are_one_answer_in_two_files(self):
        self.fake_python()
        self.assertEqual(self.gate("core").returncode, 0)
        self.assertEqual(self.gate("deep").returncode, 0)
        files = [path for path in self.out.rglob("*") if path.is_file()]
        self.assertEqual(sorted(path.suffix for path in files), [".json", ".log"])
        self.assertEqual(len(self.verdicts()), 18)

    def test_the_file_names_the_gpu_and_the_day(self):
        path = f"{self.bundle / 'tools'}:/usr/bin:/bin"
        subprocess.run([sys.executable, self.bundle / "scripts" / "gpu-gate", "environment"], capture_output=True,
                       env={"PATH": path}, check=True)
        (file,) = (self.bundle / "bench" / "results").glob("*.json")
        self.assertRegex(file.name, r"^nvidia-test-9000-\d{4}-\d\d-\d\d\.json$")

    def test_the_page_of_results_is_made_from_their_files(self):
        self.out = self.bundle / "bench" / "results"
        self.out.mkdir(parents=True)
        (self.out / "cpu.json").write_text('{"rows": [{"name": "a", "ms": 3.5}]}')
        (self.out / "list.json").write_text('[{"name": "a", "ms": 3.5}]')
        none = self.gate("--page")
        self.assertEqual((none.returncode, none.stdout.splitlines()[-1]), (0, "There are none."))
        shown = self.gate("environment").stdout
        made = self.gate("--page").stdout
        self.assertIn(made.partition("\n\n")[2], shown)
        self.assertIn("## NVIDIA Test 9000\nCommit abc123, ", made)
        self.assertNotIn("none", made)

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
        self.fake("bin/kernels_tests", TESTS.replace("40 passed | 0 failed", "39 passed | 1 failed") +
                  "echo 'TEST CASE:  norms agree'; exit 1")
        ended = self.gate()
        self.assertEqual(ended.returncode, 1)
        self.assertEqual(self.verdicts()["families"], "failed")
        self.assertEqual(self.verdicts()["bench"], "ok")
        self.assertIn("norms agree", ended.stdout)
        self.assertIn("norms agree", self.results("log"))

    def test_an_error_of_second_rounds_fails_the_stage_of_few_multiprocessors(self):
        self.assertEqual(self.gate("families", "few", FEW_FAIL="1").returncode, 1)
        self.assertEqual(self.verdicts(), {"families": "ok", "few": "failed"})
        self.assertIn("second rounds", self.results()["stages"]["few"]["note"])

    def test_a_crash_runs_again_under_memcheck_and_the_rest_goes_on(self):
        crash = TESTS.replace("echo \"[doctest] test cases", "kill -SEGV $$ #")
        sticky = TESTS.replace("echo \"[doctest] test cases", "echo an earlier kernel failed: misaligned address; exit 1 #")
        self.fake("tools/compute-sanitizer", "shift 2; \"$@\"; echo '========= Invalid __global__ write at edge.cu:7'; exit 99")
        for program in (crash, sticky):
            self.fake("bin/engine_tests", program)
            self.gate("allocator", "nccl")
            self.assertEqual(self.verdicts(), {"allocator": "failed", "nccl": "ok"})
            self.assertIn("memcheck: Invalid __global__ write at edge.cu:7", self.results()["stages"]["allocator"]["note"])

    def test_a_missing_binary_is_a_failure(self):
        (self.bundle / "bin" / "nn_tests").unlink()
        self.assertEqual(self.gate("tests").returncode, 1)
        self.assertEqual(self.verdicts()["tests"], "failed")

    def test_tests_that_are_not_there_are_a_failure(self):
        self.fake("bin/kernels_tests", "echo nothing")
        (self.bundle / "tests.json").write_text(json.dumps({"tests": json.loads((self.bundle / "tests.json").read_text())["tests"][:2]}))
        self.gate("families", "tests")
        self.assertEqual(self.verdicts(), {"families": "failed", "tests": "failed"})

    def test_what_hangs_is_killed_with_its_children_and_the_rest_goes_on(self):
        mark = self.folder / "still-alive"
        self.fake("bin/engine_tests", TESTS.replace("echo \"[doctest] test cases", f"""
(sleep 8; touch {mark}) & sleep 30 #""", 1))
        ended = self.gate("allocator", "families", "--seconds", "54")
        self.assertEqual(self.verdicts(), {"allocator": "timeout", "families": "ok"})
        self.assertEqual(ended.returncode, 1)
        self.assertLess(self.seconds, 7)
        time.sleep(7)
        self.assertFalse(mark.exists())

    def test_a_program_that_sees_no_gpu_is_a_failure(self):
        for line in ("gpu       none", "device    cpu (A100 has compute capability 8.0, and this build has code for 90-real)"):
            self.fake("bin/meshgrad", f"echo '{line}'")
            self.assertEqual(self.gate("environment").returncode, 1)
            self.assertEqual(self.verdicts()["environment"], "failed")

    def test_no_stage_takes_another_ones_time(self):
        hang = TESTS.replace("echo \"[doctest] test cases", "sleep 60 #", 1)
        for name in ("engine_tests", "kernels_tests", "autograd_tests", "nn_tests"):
            self.fake("bin/" + name, hang)
        self.fake("bin/meshgrad-bench", "sleep 60")
        self.fake("tools/ncu", "sleep 60")
        self.fake_python()
        ended = self.gate("core", "--seconds", "30", TORCH_MISSING="1")
        self.assertEqual(ended.returncode, 1)
        self.assertLess(self.seconds, 32)
        late = ("families", "few", "bench", "trace", "tests", "counters", "allocator")
        self.assertEqual(self.verdicts(), {**dict.fromkeys(CORE, "ok"), **dict.fromkeys(late, "timeout"), "peers": "skipped"})

    def test_a_curve_that_parts_from_the_cpus_fails(self):
        self.gate("sample", F32_FACTOR="1.03")
        self.assertEqual(self.verdicts()["sample"], "failed")
        self.assertEqual(sorted(self.results()["losses"]["sample"]), ["cpu-f32", "cuda-f16", "cuda-f32"])
        self.gate("sample", F32_FACTOR="nan")
        self.assertEqual(self.verdicts()["sample"], "failed")

    def test_ranks_that_train_otherwise_than_one_process_fail(self):
        self.gate("ranks")
        self.assertEqual(self.verdicts()["ranks"], "ok")
        self.gate("ranks", RANKS_FACTOR="1.01")
        self.assertEqual(self.verdicts()["ranks"], "failed")
        self.gate("ranks", MPI_BUILD="no such line")
        self.assertEqual(self.verdicts()["ranks"], "skipped")
        self.fake("bin/mpirun", "exit 5")  # the bundle's own comes before that on PATH
        self.gate("ranks")
        self.assertEqual(self.verdicts()["ranks"], "failed")

    def test_meshes_in_parts_that_train_otherwise_fail(self):
        self.assertIn("(by nccl)", self.gate("parts").stdout)
        self.assertEqual(self.verdicts()["parts"], "ok")
        self.assertIn("(by host)", self.gate("parts", ROWS_BY="host").stdout)
        self.gate("parts", RANKS_FACTOR="1.01")
        self.assertEqual(self.verdicts()["parts"], "failed")

    def test_nccl_on_one_rank_must_change_nothing(self):
        self.gate("nccl")
        self.assertEqual(self.verdicts()["nccl"], "ok")
        self.gate("nccl", NCCL_FACTOR="1.00001")
        self.assertEqual(self.verdicts()["nccl"], "failed")
        self.assertIn("said of host", self.gate("nccl", BY="host").stdout)
        self.assertEqual(self.verdicts()["nccl"], "skipped")

    def test_a_row_that_launched_nothing_fails(self):
        self.gate("bench", LAUNCHES="0")
        self.assertEqual(self.verdicts()["bench"], "failed")

    def test_rows_stand_beside_their_bounds_on_a_card_whose_peaks_are_stated(self):
        for gpu, card in (("NVIDIA A100-SXM4-80GB", "a100"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA H200", "h200")):
            page = self.gate("bench", "bench-long", GPU=gpu).stdout
            self.assertEqual([row["gpu"] for row in self.results()["bounds"]], [card] * 3)
            self.assertIn("| step/train/f16 | 3.000 | 0.500 | 6.00 |\n| kernel/y/f16 | 0.500 | 0.400 | 1.25 |\n", page)
            self.assertNotIn("No bounds", page)
            shutil.rmtree(self.out)

    def test_another_card_has_no_bounds(self):
        for gpu in ("NVIDIA GH200 480GB", "NVIDIA H100 PCIe", "NVIDIA A100-SXM4-40GB"):
            self.assertIn("No bounds", self.gate("bench", GPU=gpu, NO_BOUND="1").stdout)
            self.assertEqual(self.verdicts(), {"bench": "ok"})
            shutil.rmtree(self.out)

    def test_bounds_that_are_not_computed_fail_the_stage_and_leave_the_rows(self):
        self.gate("bench", GPU="NVIDIA H200", NO_BOUND="1")
        self.assertEqual((self.verdicts()["bench"], len(self.results()["rows"])), ("failed", 6))
        self.assertIn("bound: exit 2", self.results()["stages"]["bench"]["note"])

    def test_a_trace_without_all_its_steps_fails(self):
        self.gate("trace", FOURTH="")
        self.assertEqual(self.verdicts()["trace"], "failed")
        self.gate("bench", "trace")
        self.assertEqual((len(self.results()["traces"]), len(self.results()["rows"])), (4, 6))

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
        self.assertEqual(self.results()["peers"][0]["name"], "peer/pytorch/train/eager/60/f16")

    def test_counters_are_kept_or_refused(self):
        self.gate("counters")
        self.assertEqual(self.verdicts()["counters"], "ok")
        self.fake("tools/ncu", "echo 'ERR_NVGPUCTRPERM: no permission'; exit 1")
        self.assertEqual(self.gate("counters").returncode, 0)
        self.assertEqual(self.verdicts()["counters"], "refused")
        self.fake("tools/ncu", "echo 'nothing was profiled'")
        self.assertEqual(self.gate("counters").returncode, 1)

    def test_long_logs_keep_their_ends(self):
        self.fake("bin/kernels_tests", TESTS + "echo begin-mark; yes 0123456789 | head -c 8000000; echo end-mark")
        self.gate("families")
        log = self.results("log")
        self.assertLess(len(log), 1 << 20)
        self.assertIn("begin-mark", log)
        self.assertIn("end-mark", log)


if __name__ == "__main__":
    os.chdir(tempfile.gettempdir())
    unittest.main()
