#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/figures.py finds figures that disagree with the results."""
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "figures.py"
ROWS = [{"name": "a/f32", "ms": 346.2488, "share": 0.4174}, {"name": "b/f32", "ms": 1234.5, "share": 0.5}]


class FiguresTest(unittest.TestCase):
    def check(self, text):
        """The faults of a page with this text."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "docs" / "page.md").write_text(text)
            (root / "results.json").write_text(json.dumps({"rows": ROWS}))
            ended = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
        faults = ended.stdout.splitlines()[:-1]
        self.assertEqual(ended.returncode, 1 if faults else 0, ended.stdout + ended.stderr)
        return faults

    def test_inline(self):
        self.assertEqual(self.check("It takes 346 ms <!-- figure: results.json name=a/f32 ms --> a step."), [])
        self.assertEqual(self.check("It takes 346.2 ms <!-- figure: results.json name=a/f32 ms --> a step."), [])
        self.assertEqual(self.check("At 42 % <!-- figure: results.json name=a/f32 share -->."), [])
        self.assertEqual(self.check("Three: 1,037 <!-- figure: results.json name=a/f32 ms*2.995 -->."), [])
        self.assertEqual(self.check("Mean: 790.4 ms <!-- figure: results.json mean ms -->."), [])
        for wrong in ("347 ms <!-- figure: results.json name=a/f32 ms -->",
                      "346.3 ms <!-- figure: results.json name=a/f32 ms -->",
                      "41 % <!-- figure: results.json name=a/f32 share -->",
                      "346 ms <!-- figure: results.json name=b/f32 ms -->",
                      "346 ms <!-- figure: results.json name=c/f32 ms -->",
                      "346 ms <!-- figure: results.json ms -->",
                      "346 ms <!-- figure: results.json name=a/f32 s -->",
                      "346 ms <!-- figure: other.json name=a/f32 ms -->",
                      "346 ms <!-- figure: results.json -->"):
            self.assertTrue(self.check(wrong), wrong)

    def test_the_page_of_gpus_is_what_their_results_say(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "docs").mkdir()
            (root / "scripts").mkdir()
            shutil.copy(SCRIPT.parent.parent / "scripts" / "gpu-gate", root / "scripts")
            page = root / "docs" / "gpu-results.md"
            made = subprocess.run([root / "scripts" / "gpu-gate", "--page"], capture_output=True, text=True, check=True).stdout
            for text, code in ((made, 0), (made + "It takes 3 ms.\n", 1)):
                page.write_text(text)
                ended = subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True)
                self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)

    def test_what_names_no_source(self):
        for text in ("346 ms", "4.3 TB/s", "in 0.2 µs.", "12 GFLOP/s", "| | ms |\n|---|---|\n| a | 346 |\n"):
            self.assertEqual(len(self.check(text)), 1, text)
        self.assertEqual(self.check("```\n346 ms\n```\n15 blocks, 2 MiB, ms are milliseconds"), [])

    def table(self, rows, columns, body):
        return (f"<!-- figures: results.json\nrows: {rows}\ncolumns: {columns} -->\n"
                "| what | ms | share | note |\n|---|---|---|---|\n" + body)

    def test_tables(self):
        body = "| a/f32 | 346 | 42 % | x |\n| b/f32 | 1,234.5 | 0.50 | 7 |\n"
        self.assertEqual(self.check(self.table("2 times name=@", "ms; share; -", body)), [])
        self.assertEqual(self.check(self.table("name=a/f32; name=b/f32", "ms; share; -", body)), [])
        self.assertEqual(len(self.check(self.table("name=b/f32; name=a/f32", "ms; share; -", body))), 4)
        self.assertEqual(len(self.check(self.table("2 times name=@", "ms; share; -", body.replace("346", "345")))), 1)
        self.assertTrue(self.check(self.table("3 times name=@", "ms; share; -", body)))
        self.assertTrue(self.check(self.table("2 times name=@", "ms; share", body)))
        self.assertTrue(self.check(self.table("2 times name=@", "ms; share; ms", body)))
        self.assertTrue(self.check(self.table("2 times name=@", "ms; share; -", "") + "\nno table"))


if __name__ == "__main__":
    unittest.main()
