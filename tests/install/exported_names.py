#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every function that the installed C++ headers declare without a body is exported by one of the libraries: by name, as
many overloads as there are declarations, and templates for at least one type.

usage: tests/install/exported_names.py NM INCLUDE LIBRARY...      exits 1 and lists what does not link
"""
import collections
import pathlib
import re
import subprocess
import sys

PRIVATE = "MESHGRAD_PRIVATE_"  # symbols of this version are for the programs of the same build
LEAST = 300  # declarations: fewer were not read


def public_text(text):
    """What a header declares for programs: up to the end of its visibility."""
    return text.split("#pragma GCC visibility pop")[0]


def without_comments(text):
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.S))
    text = re.sub(r"'(?:\\.|[^'\\])'", "0", text)
    return re.sub(r"\[\[.*?\]\]|^\s*#(?:[^\n]*\\\n)*[^\n]*", " ", text, flags=re.S | re.M)


def outside_angles(text):
    """The text with what template arguments contain blanked."""
    previous = None
    while previous != text:
        previous, text = text, re.sub(r"<[^<>()]*>|<[^<>]*\([^<>]*\)[^<>]*>", "", text)
    return text


def declared_function(statement):
    """(name, whether it is a template) of a declaration that another file defines, or None."""
    words = " ".join(statement.split())
    template = words.startswith("template")
    words = re.sub(r"\brequires\b.*?(?=\b(?:auto|void|static)\b)", "", outside_angles(words.removeprefix("template")))
    if re.match(r"\s*(using|typedef|friend|static_assert|enum|extern|return|class|struct)\b", words):
        return None
    if re.search(r"\b(inline|constexpr|consteval)\b|=\s*(0|default|delete)\s*$", words) or "operator" in words:
        return None
    found = re.match(r"[^=(]*?(~?\w+)\s*\((?!\s*\*)", words)  # and no member that points to a function
    return (found.group(1), template) if found else None


def is_definition(statement):
    """Of what stands before a block in braces: of a function, not of a value."""
    plain = outside_angles(statement)
    return "(" in plain and "=" not in re.sub(r"\([^()]*\)", "", re.sub(r"\([^()]*\)", "", plain))


def declarations(text):
    """Qualified names of functions, each as often as it is declared; templates by name + '<'."""
    scopes, statement, skipped = [], "", 0
    for char in without_comments(text):
        if skipped:
            skipped += {"{": 1, "}": -1}.get(char, 0)
            if not skipped and is_definition(statement):
                statement = ""
        elif char == "{":
            opened = re.match(r"\s*(?:inline\s+)?(namespace|class|struct|union)\s+([\w:]+)[^()=]*$", statement)
            if opened:
                scopes.append(opened.group(2))
                statement = ""
            else:
                skipped = 1
        elif char == "}":
            if scopes:
                scopes.pop()
            statement = ""
        elif char == ";":
            if found := declared_function(re.sub(r"\b(public|private|protected)\s*:", "", statement)):
                yield "::".join([*scopes, found[0]]) + ("<" if found[1] else "(")
            statement = ""
        else:
            statement += char


def exported(nm, libraries):
    """Of each name, followed by its bracket, the signatures."""
    names = collections.defaultdict(set)
    for library in libraries:
        for line in subprocess.run([nm, "-DC", "--defined-only", library], capture_output=True, text=True,
                                   check=True).stdout.splitlines():
            symbol = line.split(" ", 2)[-1].replace("[abi:cxx11]", "")
            if PRIVATE in symbol:
                continue
            for name in re.findall(r"\bmeshgrad(?:::~?\w+)+[(<]", symbol):
                names[name].add(symbol)
    return names


def main():
    nm, include, *libraries = sys.argv[1:]
    names = exported(nm, libraries)
    total, faults = 0, []
    for header in sorted(pathlib.Path(include).glob("meshgrad/**/*.h")):
        for name, count in collections.Counter(declarations(public_text(header.read_text()))).items():
            total += count
            got = len(names[name])
            if got < (1 if name.endswith("<") else count):
                faults.append(f"{header}: {name[:-1]}: {count} declarations, {got} exported")
    if total < LEAST:
        faults.append(f"{total} declarations were read, fewer than {LEAST}")
    for fault in faults:
        print(fault)
    print(f"{len(faults)} functions do not link" if faults else f"{total} functions of the headers are exported")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
