#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every interface, structure and constant of meshgrad.f90 that is bound to C is what meshgrad.h declares: the same
functions with the same arguments, by value or by reference, and structures with the same members in the same order.

usage: tests/fortran_interfaces.py [ROOT]      exits 1 and lists every difference
"""
import pathlib
import re
import sys

NUMBERS = {"int": "integer(c_int)", "int32_t": "integer(c_int32_t)", "int64_t": "integer(c_int64_t)",
           "size_t": "integer(c_size_t)", "double": "real(c_double)"}
FROM_ELSEWHERE = {"strlen": ("size_t", [("const char*", "text")])}  # of the C library
POINTER_TO_TEXT = {"c_strlen"}  # takes what another function returned, so a pointer


def without_comments(text, pattern):
    return re.sub(pattern, " ", text, flags=re.S | re.M)


def split_declaration(text):
    """(type, name) of a C parameter or member; a function pointer has the type `(*)`, an array its extent."""
    text = " ".join(text.split())
    if function := re.match(r".*\(\*\s*(\w+)\)\s*\(.*\)$", text):
        return "(*)", function.group(1)
    kind, stars, name, extent = re.match(r"(.*?)\s*(\**)\s*(\w+)((?:\[\d+\])?)$", text).groups()
    return kind + stars + extent, name


def header_of(text):
    """Functions {name: (result, [(type, name)])}, structures {name: [(type, name)]}, constants {name: value}."""
    text = without_comments(text, r"/\*.*?\*/")
    text = re.sub(r"^static inline .*?\}\n", "", text, flags=re.S | re.M)
    structures, constants = {}, {}
    for name, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \w+;", text, re.S):
        structures[name] = [split_declaration(member) for member in re.split(r";(?![^(]*\))", body) if member.strip()]
    for body in re.findall(r"typedef enum \w+ \{(.*?)\}", text, re.S):
        constants.update({name.lower(): int(value) for name, value in re.findall(r"(\w+) = (\d+)", body)})
    functions = {}
    for result, name, arguments in re.findall(r"^(?!typedef)([\w ]+?[ *]+?)(\w+)\(([^()]*)\);", text, re.S | re.M):
        pairs = [] if arguments.strip() == "void" else [split_declaration(one) for one in arguments.split(",")]
        functions[name] = (" ".join(result.split()).replace(" *", "*"), pairs)
    return functions, structures, constants


def fortran_name(structure, types):
    short = "c_" + structure.removeprefix("meshgrad_")
    return short if short in types else structure


def declared(kind, structures, types, member=False):
    """What Fortran declares for a C type: the type, how it is passed, and its shape."""
    if kind == "(*)":
        return "type(c_funptr)", ""
    if array := re.match(r"(\w+)(\[\d+\])$", kind):
        return NUMBERS[array.group(1)], array.group(2).replace("[", "(").replace("]", ")")
    base, stars = re.match(r"(.*?)(\**)$", kind).groups()
    constant, base = base.startswith("const "), base.removeprefix("const ").strip()
    if not stars:
        known = NUMBERS.get(base) or f"type({fortran_name(base, types)})"
        return (known, "") if member else (known + ", value", "")
    if member:
        return "type(c_ptr)", ""
    if base == "char" and stars == "*":
        return "character(kind=c_char), intent(in)", "(*)"
    if stars == "**":
        return "type(c_ptr), intent(out)", ""
    if base in structures or base in NUMBERS:
        known = NUMBERS.get(base) or f"type({fortran_name(base, types)})"
        return f"{known}, intent({'in' if constant else 'out'})", ""
    return "type(c_ptr), value", ""  # a handle


def fortran_of(text):
    """Interfaces {c name: (fortran name, [dummies], {name: (declaration, shape)})}, structures {name: [...]}."""
    text = without_comments(text, r"!.*?$")
    text = re.sub(r"&\s*\n\s*", " ", text)
    interfaces, structures, constants = {}, {}, {}
    for kind, name, dummies, bound, body in re.findall(
            r"^\s*(subroutine|function) (\w+)\(([^()]*)\)\s*bind\(c, name=\"(\w+)\"\)(.*?)end \1", text, re.S | re.M):
        interfaces[bound] = (name, [d.strip() for d in dummies.split(",") if d.strip()], declarations(body), kind)
    for name, body in re.findall(r"^\s*type, bind\(c\) :: (\w+)\n(.*?)end type", text, re.S | re.M):
        structures[name] = list(declarations(body).items())
    for names in re.findall(r"integer, parameter, public :: (.*)", text):
        constants.update({name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", names)})
    return interfaces, structures, constants


def declarations(body):
    found = {}
    for line in body.splitlines():
        if "::" not in line:
            continue
        left, right = line.split("::")
        for name, shape in re.findall(r"(\w+)(\([^)]*\))?(?:\s*=\s*[^,]*)?", re.sub(r"=\s*\w+", "", right)):
            found[name] = (" ".join(left.split()), shape)
    return found


def differences(header, fortran):
    functions, structures, constants = header
    interfaces, types, parameters = fortran
    for bound, (name, dummies, found, kind) in interfaces.items():
        prototype = functions.get(bound) or FROM_ELSEWHERE.get(bound)
        if prototype is None:
            yield f"{name}: meshgrad.h has no {bound}"
            continue
        result, arguments = prototype
        if len(arguments) != len(dummies):
            yield f"{name}: {len(dummies)} arguments, {bound} has {len(arguments)}"
            continue
        for (c_type, c_name), dummy in zip(arguments, dummies):
            expected = ("type(c_ptr), value", "") if name in POINTER_TO_TEXT else declared(c_type, structures, types)
            got = found.get(dummy, ("nothing", ""))
            if got[1] == "(*)" and got[0].startswith("type("):
                got = (got[0], "")  # an array of structures
            if got != expected:
                yield f"{name}: {dummy} is {''.join(got)}, {bound}'s {c_type} {c_name} is {''.join(expected)}"
        expected = None if result == "void" else NUMBERS.get(result, "type(c_ptr)")
        got = found.get(name, (None, ""))[0]
        if got != expected or (kind == "subroutine") != (expected is None):
            yield f"{name}: a {kind} that returns {got}, {bound} returns {result}"
    for name, members in types.items():
        c_name = name if name in structures else "meshgrad_" + name.removeprefix("c_")
        expected = [declared(kind, structures, types, member=True) for kind, _ in structures.get(c_name, [])]
        if [got for _, got in members] != expected:
            yield f"{name}: members {[''.join(got) for _, got in members]}, {c_name} has {[''.join(one) for one in expected]}"
    for name, value in parameters.items():
        if constants.get(name) != value:
            yield f"{name}: {value}, meshgrad.h has {constants.get(name)}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    header = header_of((root / "train/embed/meshgrad.h").read_text())
    fortran = fortran_of((root / "train/embed/meshgrad.f90").read_text())
    bound = len(re.findall(r"bind\(c, name=", (root / "train/embed/meshgrad.f90").read_text()))
    found = list(differences(header, fortran))
    if bound == 0 or len(fortran[0]) != bound:
        found.append(f"{bound} interfaces are bound to C, {len(fortran[0])} were read")
    for one in found:
        print(one)
    print(f"{len(found)} differences" if found else f"{bound} interfaces and {len(fortran[1])} structures are those of meshgrad.h")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
