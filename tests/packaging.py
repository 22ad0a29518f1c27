#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The recipes and scripts in packaging/ name options, versions and packages as the build does.

usage: tests/packaging.py [ROOT]      exits 1 and lists every fault
"""
import ast
import pathlib
import re
import sys

# Spack's names of what CMake calls otherwise. zlib-api is a name for several packages, and has no version.
SPACK_NAMES = {"hwy": "highway", "zlib": "zlib-api"}
SECTIONS = {"files", "post", "test", "runscript", "labels", "environment", "help", "setup", "startscript"}


def options_of(text):
    """Options that a text passes to or sets in CMake."""
    return set(re.findall(r"\bMESHGRAD_[A-Z0-9]+\b", text))


def spack_faults(text, known, automatic, needed):
    tree = ast.parse(text)  # a SyntaxError is a fault, too
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    if names != ["Meshgrad"]:
        yield f"package.py: needed one class Meshgrad, got {names}"
    for option in sorted(options_of(text) - known):
        yield f"package.py: {option} is no option of CMakeLists.txt"
    for option in sorted(automatic - options_of(text)):
        yield f"package.py: {option} is AUTO: two builds of one recipe may differ; set it"
    versions = dict(re.findall(r'depends_on\("([\w-]+)(?:@([\d.]+))?', text))
    for package, version in needed.items():
        package = SPACK_NAMES.get(package, package)
        if versions.get(package) != (version if package != "zlib-api" else ""):
            yield f"package.py: {package}@{version}: is what CMake asks for, got {versions.get(package)}"


def apptainer_faults(text, known, root):
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    header = dict(re.findall(r"^(\w+): (\S+)$", text, re.M))
    for key in ("Bootstrap", "From"):
        if key not in header:
            yield f"meshgrad.def: no {key}"
    sections = [line[1:].strip() for line in lines if line.startswith("%")]
    for section in sorted(set(sections) - SECTIONS):
        yield f"meshgrad.def: %{section} is no section"
    for section in ("files", "post", "runscript"):
        if sections.count(section) != 1:
            yield f"meshgrad.def: needed one %{section}, got {sections.count(section)}"
    first = next((i for i, line in enumerate(lines) if line.startswith("%")), len(lines))
    for line in lines[first:]:
        if not line.startswith(("%", " ")):
            yield f"meshgrad.def: not indented within its section: {line}"
    for option in sorted(options_of(text) - known):
        yield f"meshgrad.def: {option} is no option of CMakeLists.txt"
    for script in re.findall(r"^\s+(scripts/\w+)", text, re.M):
        if not (root / script).is_file():
            yield f"meshgrad.def: {script} does not exist"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    cmake = (root / "CMakeLists.txt").read_text()
    dependencies = (root / "cmake/Dependencies.cmake").read_text()
    known = options_of(cmake)
    automatic = set(re.findall(r'^set\((MESHGRAD_\w+) "AUTO"', cmake, re.M))
    needed = {"cmake": re.search(r"cmake_minimum_required\(VERSION ([\d.]+)", cmake).group(1)}
    for name, version in re.findall(r"^meshgrad_package\((\w+) \S+ .*?([\d.]+)\)", dependencies, re.M):
        needed[name.lower().replace("_", "-")] = version
    needed["cuda"] = re.search(r"^set\(oldest_cuda ([\d.]+)\)", dependencies, re.M).group(1)
    tests = (root / "tests/CMakeLists.txt").read_text()
    needed["doctest"] = re.search(r"find_package\(doctest ([\d.]+)", tests).group(1)
    faults = list(spack_faults((root / "packaging/spack/package.py").read_text(), known, automatic, needed))
    faults += apptainer_faults((root / "packaging/meshgrad.def").read_text(), known, root)
    for script in ("binary", "release", "python/build"):
        for option in sorted(set(re.findall(r"-D(MESHGRAD_\w+)=", (root / "packaging" / script).read_text())) - known):
            faults.append(f"{script}: {option} is no option of CMakeLists.txt")
    for fault in faults:
        print(fault)
    print("the recipes fit the build" if not faults else f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
