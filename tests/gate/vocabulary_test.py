#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/vocabulary.py finds private words, also across lines and in names, vague errors and long names of tests."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "vocabulary.py"


class VocabularyTest(unittest.TestCase):
    def check(self, text, name="engine/tensor.h"):
        """The lines that are found in a file with this text."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            ended = subprocess.run([sys.executable, SCRIPT, folder], capture_output=True, text=True)
        found = ended.stdout.splitlines()[:-1]
        self.assertEqual(ended.returncode, 1 if found else 0, ended.stdout + ended.stderr)
        return [int(line.split(":")[1]) for line in found]

    def test_words_in_comments_strings_and_names(self):
        self.assertEqual(self.check("// a segment that is computed again\n"), [1])
        self.assertEqual(self.check("int x;\n// on the way\n/// back\n"), [2])
        self.assertEqual(self.check('note("blocks are computed "\n     "again");\n'), [1])
        self.assertEqual(self.check("void give_back_gradients();\n"), [1])
        self.assertEqual(self.check("# Masters\n\nNobody reads it.\n", "docs/page.md"), [1, 3])
        self.assertEqual(self.check("# in turns\n", "scripts/peers"), [1])
        self.assertEqual(self.check("deviation of the state\n", "README.md"), [1])

    def test_the_fields_own_words(self):
        self.assertEqual(self.check("// recomputed in the backward pass; master weights; standard deviation\n"), [])
        self.assertEqual(self.check("double standard_deviation;  // of squared deviations\n"), [])
        self.assertEqual(self.check("// a dry run; a runtime; foreground; in turn\n"), [])

    def test_errors_name_values_and_places(self):
        self.assertEqual(self.check('throw data_error(name, "ascending offsets", "others", kFix);\n'), [1])
        self.assertEqual(self.check('throw data_error(name,\n    fmt::format("{}", f(a, b)), "one of them", "");\n'), [1])
        self.assertEqual(self.check('throw broken("integers", ok ? text : "another type");\n'), [1])
        self.assertEqual(self.check('throw data_error(name, "a closed file", "an open one", kFix);\n'), [1])
        self.assertEqual(self.check('throw data_error(name, "a map", "a file of another kind", kFix);\n'), [1])
        self.assertEqual(self.check('throw data_error(name, "metrics", run + " without it", kFix);\n'), [1])
        self.assertEqual(self.check('throw data_error(name, "one after the other", "they overlap", kFix);\n'), [1])
        self.assertEqual(self.check('throw data_error(name, "another file than the output", target, kFix);\n'), [])
        self.assertEqual(self.check('throw config_error(key, "1", fmt::format("{} of {}", a, b), "some other");\n'), [])

    def test_names_of_tests_are_short(self):
        long = 'TEST_CASE("a name of more than sixty characters, which no list of tests " "shows") {}\n'
        self.assertEqual(self.check(long, "tests/engine/a_test.cpp"), [1])
        self.assertEqual(self.check('TEST_CASE_FIXTURE(State, "a launch names its kernel") {}\n', "tests/a.cu"), [])

    def test_an_empty_tree_is_a_fault(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(subprocess.run([sys.executable, SCRIPT, folder], capture_output=True).returncode, 1)


if __name__ == "__main__":
    unittest.main()
