#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every snippet of C, C++ and Fortran in README.md and docs/, all of a language in one source, so that an error
names page and line. A snippet is the body of a function after tests/snippets/context.*; one with functions or types of its
own stands below <!-- snippet: declarations -->.

usage: tests/snippets/compile.py ROOT FOLDER --cpp COMMAND --c COMMAND [--fortran COMMAND]
       FOLDER is where the sources are written; a COMMAND has its words in one argument, without the source
"""
import argparse
import pathlib
import re
import shlex
import subprocess
import sys

SNIPPET = re.compile(r"^(<!-- snippet: declarations -->\n)?```(cpp|c|fortran)\n(.*?)^```$", re.S | re.M)


def snippets_of(root):
    """(language, page, first line, text, whether it declares) of each."""
    for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))]:
        text = page.read_text()
        for found in SNIPPET.finditer(text):
            yield (found.group(2), page.relative_to(root), text.count("\n", 0, found.start(3)) + 1, found.group(3),
                   found.group(1) is not None)


def c_source(root, snippets, language):
    """Lines `#include` go in front of what holds a snippet."""
    parts = ['#include "context.h"\n' if language == "cpp" else "#include <meshgrad.h>\n"]
    for number, (page, line, text, declares) in enumerate(snippets):
        included = "".join(re.findall(r"^#include .*\n", text, re.M))
        body = f'#line {line} "{page}"\n' + re.sub(r"^#include .*$", "", text, flags=re.M)
        holder = f"namespace snippet_{number}" if declares else f"void snippet_{number}(void)"
        parts.append(f"{included}{holder} {{\n{body}}}\n")
    return "".join(parts)


def fortran_source(root, snippets):
    context = (root / "tests/snippets/context.f90").read_text()
    blocks = [f'block\n# {line} "{page}"\n{text}end block\n' for page, line, text, _ in snippets]
    return (context + "".join(blocks) + "contains\nsubroutine advance(u, load)\nreal(real64), intent(inout) :: u(:, :), load(:)\n"
            "u = u + load(1)\nend subroutine\nend program\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    for language in ("cpp", "c", "fortran"):
        parser.add_argument(f"--{language}", default="", metavar="COMMAND")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    snippets, failed = list(snippets_of(options.root)), False
    for language, suffix in (("cpp", ".cpp"), ("c", ".c"), ("fortran", ".F90")):
        chosen = [snippet[1:] for snippet in snippets if snippet[0] == language]
        command = shlex.split(getattr(options, language))
        if not chosen or not command:
            print(f"{language}: {len(chosen)} snippets, {'not compiled' if chosen else 'nothing to compile'}")
            continue
        source = options.folder / f"snippets{suffix}"
        source.write_text(fortran_source(options.root, chosen) if language == "fortran"
                          else c_source(options.root, chosen, language))
        ended = subprocess.run([*command, source], capture_output=True, text=True)
        print(ended.stdout + ended.stderr, end="")
        print(f"{language}: {len(chosen)} snippets {'compiled' if ended.returncode == 0 else 'of which some do not compile'}")
        failed = failed or ended.returncode != 0
    if not any(snippet[0] == "cpp" for snippet in snippets):
        sys.exit("no snippets found")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
