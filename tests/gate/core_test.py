#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The build without foreign readers and extras, which README's first command makes, links: no source that stays calls
one that such a build leaves out. Compiles only train/convert anew; the rest is read from a build that has everything.
usage: core_test.py BUILD"""
import json
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def symbols(folder, option):
    """Names of functions that the objects in a folder use but do not define ("U"), or define ("T")."""
    objects = sorted(folder.rglob("*.o"))
    lines = subprocess.run(["nm", *map(str, objects)], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1] for line in lines if f" {option} " in line}


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    core = build / "core"
    options = ("EXTRAS", "TESTS", "BENCH", "CUDA")
    subprocess.run(["cmake", "-S", str(ROOT), "-B", str(core), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug",
                    "-DCMAKE_CXX_FLAGS_DEBUG=-O0", *(f"-DMESHGRAD_{name}=OFF" for name in options)],
                   stdout=subprocess.DEVNULL, check=True)
    targets = subprocess.run(["ninja", "-C", str(core), "-t", "targets", "all"], capture_output=True, text=True,
                             check=True).stdout.split()
    objects = [name[:-1] for name in targets if name.endswith(".o:") and "meshgrad_train_convert.dir" in name]
    subprocess.run(["ninja", "-C", str(core), *objects], stdout=subprocess.DEVNULL, check=True)
    # What stands for the extras is in one unit with the program: it is compiled by itself.
    none = core / "extras_none" / "extras_none.o"
    none.parent.mkdir(exist_ok=True)
    commands = json.loads((core / "compile_commands.json").read_text())
    words = shlex.split(next(one["command"] for one in commands if "meshgrad_train_tools_program.dir" in one["command"]))
    flags = words[:words.index("-o")]
    subprocess.run([*flags, "-c", str(ROOT / "train/tools/program/extras_none.cpp"), "-o", str(none)], cwd=core, check=True)
    convert, folder = core / "CMakeFiles/meshgrad_train_convert.dir", "CMakeFiles/meshgrad_train_{}.dir"
    missing = symbols(convert, "U") & symbols(build / folder.format("convert"), "T") - symbols(convert, "T")
    missing |= (symbols(build / folder.format("tools_program"), "U") & symbols(build / folder.format("tools_extras"), "T")
                - symbols(none.parent, "T"))
    for name in sorted(missing):
        print(subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip())
    print(f"{len(missing)} functions that such a build leaves out are called" if missing
          else f"{len(objects)} units call nothing that such a build leaves out")
    return 1 if missing or len(objects) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
