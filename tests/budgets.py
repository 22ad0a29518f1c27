#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Limits for the sources: sizes of files and functions, macros, order of includes, licence lines.

usage: tests/budgets.py [ROOT]      exits 1 and lists every excess
"""
import pathlib
import re
import sys

FILE_LINES = 500
FUNCTION_LINES = 80
MACROS_PER_KLOC = 1.0
MOST_SCRIPTS = 16  # in scripts/: what a user or maintainer starts by hand
LAYERS = ["engine", "kernels", "autograd", "nn", "train"]
# The rooms of train/ and what each sees besides itself. Includes of a room below that is not listed do not build; what
# the build cannot see (the order within learn/, parts of engine/) is checked here.
ROOMS = {
    "data": [],
    "learn": ["data"],
    "embed": ["data", "learn"],
    "convert": ["data"],
    "tools": ["data", "learn", "embed", "convert"],
}
LEARN_ORDER = ["config", "task", "run", "planning", "train.h"]
HIDDEN = {  # what a room does not see of the folders below train/
    "data": r"autograd/|engine/ranks/",
    "convert": r"(kernels|autograd|nn)/|engine/ranks/",
}
ABOVE_ALL = ["bench", "tests", "examples"]
CODE = {".h", ".cpp", ".cu", ".cuh"}
SCRIPTS = ["scripts/*", "bench/studies/*", "tests/cuda/*", "cmake/*", "**/CMakeLists.txt"]
SPDX = "SPDX-License-Identifier: Apache-2.0"


def sources(root):
    """All code files below the folders of the tree, as (path relative to root, lines)."""
    for folder in LAYERS + ABOVE_ALL:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in CODE and path.is_file():
                yield path.relative_to(root), path.read_text().splitlines()


def without_text(lines):
    """The lines with comments, strings and character literals blanked, so that braces can be counted."""
    code = "\n".join(lines)
    pattern = re.compile(
        r'//[^\n]*|/\*.*?\*/|R"(?P<tag>[^(\s]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
        re.S)
    return pattern.sub(lambda m: "\n" * m.group().count("\n"), code).split("\n")


def functions(lines):
    """(first line, lines) of each block in braces that is neither a namespace, a type nor inside a function."""
    stack = []  # per open brace: the line where its statement began, or None for namespaces and types
    statement, began = "", 1
    for number, line in enumerate(without_text(lines), 1):
        if line.lstrip().startswith("#"):
            continue
        for char in line:
            if char in "{};":
                if char == "{":
                    scope = re.search(r"\b(namespace|class|struct|enum|union|extern)\b[^()=]*$", statement)
                    inside = any(entry is not None for entry in stack)
                    stack.append(began if not scope and not inside and "(" in statement else None)
                elif char == "}" and stack:
                    first = stack.pop()
                    if first is not None:
                        yield first, number - first + 1
                statement = ""
            else:
                if not statement.strip():
                    began = number
                statement += char
        statement += " "


def layer_faults(path, lines):
    own = path.parts[0]
    for number, line in enumerate(lines, 1):
        include = re.match(r"\s*#\s*include\s*[<\"]meshgrad/(\w+)/(.*)[>\"]", line)
        if not include:
            continue
        other = include.group(1)
        if other not in LAYERS:
            yield f"{path}:{number}: includes meshgrad/{other}, which is no folder of the library"
        elif own in LAYERS and LAYERS.index(other) > LAYERS.index(own):
            yield f"{path}:{number}: {own}/ includes {other}/, which lies above it"
        elif own in LAYERS and own != "kernels" and re.match(r"(cpu|cuda)/|check\.h", include.group(2)):
            yield f"{path}:{number}: {own}/ includes an internal header of {other}/"


def room_faults(path, lines):
    if path.parts[0] != "train":
        return
    own, part = path.parts[1], path.parts[2]
    for number, line in enumerate(lines, 1):
        include = re.match(r"\s*#\s*include\s*[<\"]meshgrad/((?:train/([\w.]+)/([\w.]+))?[^>\"]*)", line)
        if not include:
            continue
        whole, room, inside = include.groups()
        if room is None:
            if own in HIDDEN and re.match(HIDDEN[own], whole):
                yield f"{path}:{number}: train/{own} includes {whole}, which it does not see"
        elif room != own:
            if room not in ROOMS[own]:
                yield f"{path}:{number}: train/{own} includes train/{room}, which it does not see"
        elif own == "learn":
            order = [LEARN_ORDER.index("train.h" if name.startswith("train.") else name) for name in (part, inside)]
            if order[1] > order[0]:
                yield f"{path}:{number}: train/learn/{part} includes train/learn/{inside}, which comes after it"
        elif own == "tools" and part == "program" and inside == "extras":
            yield f"{path}:{number}: train/tools/program includes train/tools/extras, which it does not see"


def faults(root):
    macros, total, seen = [], 0, 0
    for path, lines in sources(root):
        seen += 1
        if not lines or SPDX not in lines[0]:
            yield f"{path}:1: the first line lacks {SPDX}"
        if len(lines) > FILE_LINES:
            yield f"{path}: {len(lines)} lines, more than {FILE_LINES}"
        for first, length in functions(lines):
            if length > FUNCTION_LINES:
                yield f"{path}:{first}: a function of {length} lines, more than {FUNCTION_LINES}"
        yield from layer_faults(path, lines)
        yield from room_faults(path, lines)
        total += len(lines)
        # Highway is configured by macros: HWY_TARGET_INCLUDE, HWY_ONCE and the like are not ours to avoid.
        macros += [f"{path}:{n}" for n, line in enumerate(lines, 1)
                   if re.match(r"\s*#\s*define\s+(?!HWY_)", line)]
    for script in sorted(path for glob in SCRIPTS for path in root.glob(glob)):
        if "build" not in script.relative_to(root).parts and script.is_file():
            if SPDX not in "".join(script.read_text().splitlines()[:2]):
                yield f"{script.relative_to(root)}:1: the first lines lack {SPDX}"
    if len(list(root.glob("scripts/*"))) > MOST_SCRIPTS:
        yield f"{root}/scripts: more than {MOST_SCRIPTS}; fix: bench/studies, tests/, or beside what uses it"
    if seen == 0:
        yield f"{root}: no sources found"
    elif 1000 * len(macros) / total >= MACROS_PER_KLOC:
        yield f"{len(macros)} macros in {total} lines, {MACROS_PER_KLOC} in 1000 or more: {', '.join(macros)}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    found = list(faults(root))
    for fault in found:
        print(fault)
    print(f"{len(found)} excesses" if found else "within all budgets")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
