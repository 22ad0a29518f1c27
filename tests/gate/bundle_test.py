#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-bundle, on a small program and library in place of ours."""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARIES = ["meshgrad", "meshgrad-bench", "tests/engine_tests", "tests/kernels_tests", "tests/autograd_tests",
            "tests/nn_tests", "tests/train_tests"]


def compile_to(path, code, *flags):
    subprocess.run(["c++", "-x", "c++", "-", "-o", path, *flags], input=code, text=True, check=True)


class BundleTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="bundle-test-"))
        self.built = self.folder / "built"
        (self.built / "tests").mkdir(parents=True)
        compile_to(self.built / "libinner.so", "int inner() { return 7; }", "-shared", "-fPIC")
        compile_to(self.built / "libouter.so", "int inner(); int outer() { return inner(); }", "-shared", "-fPIC",
                   f"-L{self.built}", "-linner")
        self.link("-Wl,--disable-new-dtags", r"-Wl,-rpath,$ORIGIN/../lib")
        (self.built / "CTestTestfile.cmake").write_text("".join(
            f'add_test({label} "{self.built}/tests/kernels_tests")\nset_tests_properties({label} PROPERTIES LABELS {label})\n'
            for label in ("families", "allocator", "device", "sanitizer")))
        self.out = self.folder / "bundle"

    def tearDown(self):
        shutil.rmtree(self.folder)

    def link(self, *flags):
        compile_to(self.built / "meshgrad", "int outer(); int main(int words, char**) { return words > 1 ? 7 - outer() : outer(); }",
                   f"-L{self.built}", "-louter", f"-Wl,-rpath-link,{self.built}", *flags)
        for name in BINARIES[1:]:
            shutil.copy(self.built / "meshgrad", self.built / name)

    def bundle(self):
        clean = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
        return subprocess.run([ROOT / "scripts" / "gpu-bundle", "--built", "built", self.out], capture_output=True,
                              text=True, cwd=self.folder, env=clean)

    def test_it_runs_where_the_build_is_gone(self):
        ended = self.bundle()
        self.assertEqual(ended.returncode, 0, ended.stderr)
        libraries = {path.name for path in (self.out / "lib").iterdir()}
        self.assertLessEqual({"libinner.so", "libouter.so"}, libraries)
        self.assertFalse([name for name in libraries if name.startswith(("libc.", "libm.", "ld-", "libcuda"))])
        self.assertTrue((self.out / "MANIFEST").read_text().startswith("commit "))
        for path in ("scripts/gpu-gate", "bench/peers/meshgraphnet.py", "tests/data/cylinder_flow_sample/meta.json",
                     "examples/cylinder_flow.toml", "docs/config.md", "autograd/ops.h"):
            self.assertTrue((self.out / path).exists(), path)
        shutil.rmtree(self.built)
        moved = self.folder / "moved"
        self.out.rename(moved)
        clean = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
        self.assertEqual(subprocess.run([moved / "bin" / "meshgrad"], env=clean).returncode, 7)
        gate = subprocess.run([moved / "scripts" / "gpu-gate"], env={**clean, "PATH": "/usr/bin:/bin"},
                              capture_output=True, text=True)
        self.assertIn(gate.returncode, (0, 1) if shutil.which("nvidia-smi", path="/usr/bin:/bin") else (3,))

    def test_a_run_path_that_leads_elsewhere_is_refused(self):
        self.link()
        ended = self.bundle()
        self.assertEqual(ended.returncode, 1)
        self.assertIn("libouter.so", ended.stderr)

    def test_a_missing_binary_is_named(self):
        (self.built / "tests" / "nn_tests").unlink()
        ended = self.bundle()
        self.assertEqual(ended.returncode, 1)
        self.assertIn("nn_tests", ended.stderr)
        self.link("-Wl,--disable-new-dtags", r"-Wl,-rpath,$ORIGIN/../lib")
        self.assertEqual(self.bundle().returncode, 0)  # the failed attempt does not get in the way

    def test_its_size_is_printed_with_that_of_the_tracked_files(self):
        self.assertRegex(self.bundle().stderr, r"bundle\.tar\.gz, \d+ MiB, with the tracked files \d+ of 60 MiB")

    def test_a_program_that_does_not_run_in_an_empty_root_is_refused(self):
        compile_to(self.built / "meshgrad", '#include <unistd.h>\nint main() { return access("/usr/bin/env", X_OK); }')
        ended = self.bundle()
        self.assertEqual(ended.returncode, 1)
        self.assertIn("[meshgrad info] needed to run in an empty root", ended.stderr)
        self.link("-Wl,--disable-new-dtags", r"-Wl,-rpath,$ORIGIN/../lib")
        compile_to(self.built / "meshgrad-bench", "int main(int words, char**) { return words > 1 ? 3 : 0; }")
        self.assertIn("[meshgrad-bench bound kernel/segment_sum/1M/f16 --gpu h100] needed", self.bundle().stderr)

    def test_tests_without_labels_are_refused(self):
        (self.built / "CTestTestfile.cmake").write_text('add_test(some "kernels_tests")\n')
        self.assertIn("needed tests with the label families", self.bundle().stderr)

    def test_a_tree_whose_tests_have_no_program_is_refused(self):
        file = self.built / "CTestTestfile.cmake"
        file.write_text(file.read_text().replace("tests/kernels_tests", "tests/gone_tests", 1))
        self.assertIn("needed the program of each test, got a tree that moved", self.bundle().stderr)

    def test_what_is_too_large_is_refused(self):
        (self.folder / "noise").write_bytes(os.urandom(60 << 20))  # which gzip does not make smaller
        compile_to(self.built / "meshgrad-bench", f'asm(".pushsection .data\\n.incbin \\"{self.folder}/noise\\"\\n.popsection"); int main() {{}}')
        ended = self.bundle()
        self.assertEqual(ended.returncode, 1)
        self.assertIn("needed at most 60 MiB with the tracked files", ended.stderr)
        self.assertIn("meshgrad-bench", ended.stderr)

    def test_another_folder_is_not_replaced(self):
        self.out.mkdir()
        (self.out / "mine").write_text("x")
        self.assertEqual(self.bundle().returncode, 1)
        self.assertTrue((self.out / "mine").exists())


if __name__ == "__main__":
    if subprocess.run(["unshare", "--map-root-user", "true"], capture_output=True).returncode != 0:
        print("skipped: no user namespaces here, as in a chroot, for an empty root")
        sys.exit(77)
    unittest.main()
