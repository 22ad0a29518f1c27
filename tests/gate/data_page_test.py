#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs what docs/data.md prints, in its order: Python, and commands of meshgrad.

usage: data_page_test.py PROGRAM VENV     VENV is the environment of vtu_readers_test.py; exits 77 where it cannot be made
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import vtu_readers_test


def main():
    program, venv = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    vtu_readers_test.make_environment(venv)
    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/data.md").read_text()
    blocks = re.findall(r"```(python|sh)\n(.*?)```", page, re.DOTALL)
    assert [kind for kind, _ in blocks].count("python") == 5, blocks
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"}
        python = ""
        for kind, text in blocks:
            python += text if kind == "python" else ""
            command = [venv / "bin/python", "-c", python] if kind == "python" else ["bash", "-ec", text]
            for packed in pathlib.Path(folder).glob("*.mgd") if kind == "sh" else ():
                packed.unlink()  # each command of the page begins anew
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
            if kind == "sh":
                print(done.stdout.splitlines()[1])


if __name__ == "__main__":
    main()
