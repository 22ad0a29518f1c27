#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every function, structure and enumeration of packaging/python/meshgrad/_c.py is what meshgrad.h declares.

usage: tests/python_interfaces.py [ROOT]      exits 1 and lists every difference
"""
import ctypes
import pathlib
import re
import runpy
import sys

import fortran_interfaces

NUMBERS = {"int": ctypes.c_int, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "size_t": ctypes.c_size_t, "double": ctypes.c_double}


def declared(kind, structures):
    """What ctypes declares for a C type; None is void."""
    if kind == "void":
        return None
    if kind == "(*)":
        return ctypes.c_void_p
    if array := re.match(r"(\w+)\[(\d+)\]$", kind):
        return NUMBERS[array.group(1)] * int(array.group(2))
    base, stars = re.match(r"(.*?)\s*(\**)$", kind.replace("const ", "")).groups()
    if base == "char":
        base, stars = ctypes.c_char_p, stars[1:]
    elif base == "void" or base not in NUMBERS and base not in structures:  # a handle
        base, stars = ctypes.c_void_p, stars[1:]
    else:
        base = NUMBERS.get(base) or structures[base]
    return ctypes.POINTER(base) if stars else base


def name_of(kind):
    return getattr(kind, "__name__", str(kind))


def differences(header, module):
    functions, members, constants = header
    structures = {}
    for name in members:
        short = "".join(word.capitalize() for word in name.removeprefix("meshgrad_").split("_"))
        if short in module:
            structures[name] = module[short]
    for name, structure in structures.items():
        expected = [(member, declared(kind, structures)) for kind, member in members[name]]
        if list(structure._fields_) != expected:
            yield (f"{name}: members {[f'{name_of(kind)} {member}' for member, kind in structure._fields_]}, "
                   f"meshgrad.h has {[f'{name_of(kind)} {member}' for member, kind in expected]}")
    if len(structures) != sum(isinstance(one, type) and issubclass(one, ctypes.Structure) for one in module.values()):
        yield f"meshgrad.h has of the structures only {sorted(structures)}"
    for name, signature in module["FUNCTIONS"].items():
        prototype = functions.get(f"meshgrad_{name}")
        if prototype is None:
            yield f"{name}: meshgrad.h has no meshgrad_{name}"
            continue
        expected = [declared(kind, structures) for kind in [prototype[0], *(kind for kind, _ in prototype[1])]]
        if list(signature) != expected:
            yield f"{name}: {list(map(name_of, signature))}, meshgrad.h has {list(map(name_of, expected))}"
    if module["STRIDED"] != constants.get("meshgrad_strided"):
        yield f"STRIDED: {module['STRIDED']}, meshgrad.h has {constants.get('meshgrad_strided')}"
    for values in (module["STATUS"], module["DTYPE"]):
        for number, value in enumerate(values):
            if constants.get(f"meshgrad_{value}") != number:
                yield f"{value}: {number}, meshgrad.h has {constants.get(f'meshgrad_{value}')}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    text = (root / "train/embed/meshgrad.h").read_text()
    module = runpy.run_path(str(root / "packaging/python/meshgrad/_c.py"))
    header = fortran_interfaces.header_of(text)
    header[2].update({name.lower(): int(value) for name, value in re.findall(r"^enum \{ (\w+) = (\d+) \};", text, re.M)})
    found = list(differences(header, module))
    log = [fortran_interfaces.split_declaration(one)[0] for one in re.search(r"\(\*log\)\((.*?)\)", text).group(1).split(",")]
    if list(module["Log"]._argtypes_) != [declared(kind, {}) for kind in log]:
        found.append(f"Log: {list(map(name_of, module['Log']._argtypes_))}, meshgrad.h has {log}")
    version = ".".join(re.search(rf"#define MESHGRAD_VERSION_{part} (\d+)", text).group(1) for part in ("MAJOR", "MINOR", "PATCH"))
    if module["VERSION"] != version:
        found.append(f"VERSION: {module['VERSION']}, meshgrad.h has {version}")
    for one in found:
        print(one)
    print(f"{len(found)} differences" if found else f"{len(module['FUNCTIONS'])} functions are those of meshgrad.h")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
