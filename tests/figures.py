#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks measured figures in README.md and docs/ against the result files that they come from.

usage: tests/figures.py [ROOT]      exits 1 and lists every figure that disagrees with its result, or names none

A figure in the text is followed by its source, with nothing but a unit in between:

    takes 106 ns <!-- figure: bench/results/memory-hit-path.json name=memory/hit_path/engine ms*500 -->

A table's source is in the lines above it: the selectors of its rows, and of its columns except the first (- for a column
without figures). @ is the text of the row's first cell; rows are separated by ; and may be repeated (17 times trace=@):

    <!-- figures: bench/results/step.json
    rows: name=step/train/f32; name=step/forward/f32
    columns: ms; peak_fraction; - -->

Conditions key=value select a row of results; `mean` is the mean over all selected rows. -NUMBER, *NUMBER or /NUMBER may
follow the field. The figure must equal the value rounded to the printed digits, in per cent if % follows. Numbers with a
unit of time or rate must name a source; code is not checked. docs/gpu-results.md has no marks: it must be what
`scripts/gpu-gate --page` prints.
"""
import json
import math
import pathlib
import re
import subprocess
import sys

NUMBER = r"\d[\d,]*(?:\.\d+)?(?:e-?\d+)?"
UNIT = r"(?:ms|µs|us|ns|[GT]B/s|[GT]FLOP/s|TFLOP/s|steps/s)"
INLINE = re.compile(rf"({NUMBER})\s*([^\s\d<]+(?: (?:more|less|times))?)?\s*<!-- figure: (\S+) (.*?) -->")
TABLE = re.compile(r"<!-- figures: (\S+)\s+rows: (.*?)\s+columns: (.*?) -->", re.S)
MEASURED = re.compile(rf"(?<![\w.]){NUMBER}\s?{UNIT}(?![\w/])")
MEASURED_HEADER = re.compile(rf"(?<!\w){UNIT}(?!\w)")


class Fault(Exception):
    pass


def load(root, path):
    try:
        value = json.loads((root / path).read_text())
    except (OSError, ValueError) as error:
        raise Fault(f"{path}: {error}") from None
    rows = value.get("rows") if isinstance(value, dict) else value
    if not isinstance(rows, list):
        raise Fault(f"{path}: contains no rows")
    return rows


def same(value, text):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value) == text
    try:
        return float(text) == value
    except ValueError:
        return False


def evaluate(rows, words, first_cell=""):
    """The selected value: conditions, optionally `mean`, and a field with an operation."""
    conditions = [word.split("=", 1) for word in words if "=" in word]
    rest = [word for word in words if "=" not in word]
    mean = "mean" in rest
    fields = [word for word in rest if word != "mean"]
    if len(fields) != 1:
        raise Fault(f"needs one field, got {' '.join(fields) or 'none'}")
    field, operator, operand = re.fullmatch(rf"(\w+)(?:([-*/])({NUMBER}))?", fields[0]).groups()
    chosen = [row for row in rows
              if all(same(row.get(key), value.replace("@", first_cell)) for key, value in conditions)]
    if not chosen or (len(chosen) > 1 and not mean):
        raise Fault(f"{' '.join(words)}: {len(chosen)} rows of results are selected")
    missing = [row for row in chosen if not isinstance(row.get(field), (int, float))]
    if missing:
        raise Fault(f"a row without the number {field}")
    value = sum(row[field] for row in chosen) / len(chosen)
    by = float(operand) if operand else 0.0
    return {None: value, "-": value - by, "*": value * by, "/": value / by if by else 0.0}[operator]


def printed_as(text, value, percent):
    """Whether `text` is `value` rounded to the digits of `text`."""
    plain = text.replace(",", "")
    value *= 100.0 if percent else 1.0
    digits = len(plain.partition("e")[0].partition(".")[2])
    unit = 10.0 ** (int(plain.partition("e")[2] or 0) - digits)
    return math.isclose(float(plain), value, rel_tol=0.0, abs_tol=0.5 * unit * (1 + 1e-9))


def disagreement(root, source, words, text, percent, first_cell=""):
    """The disagreement of one figure with its result; empty if there is none."""
    try:
        value = evaluate(load(root, source), words, first_cell)
    except Fault as fault:
        return str(fault)
    if printed_as(text, value, percent):
        return ""
    return f"{text}{' %' if percent else ''}, where {source} has {value * (100 if percent else 1):.6g}"


def cells_of(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def words_of(selector):
    """Words of a selector; a value in double quotes may hold spaces."""
    return [word.replace('"', "") for word in re.findall(r'(?:[^\s"]|"[^"]*")+', selector)]


def repeated(selectors):
    """The selectors, with `17 times x` expanded."""
    for selector in selectors:
        times, _, one = selector.strip().partition(" times ")
        yield from [one] * int(times) if one and times.isdigit() else [selector]


def table_faults(root, lines, source, rows, columns):
    """Faults of the table that begins with lines[0]."""
    table = []
    for line in lines:
        if not line.lstrip().startswith("|"):
            break
        table.append(cells_of(line))
    body = table[2:]
    if not body:
        yield "no table follows"
        return
    if len(rows) == 1:
        rows = rows * len(body)
    if len(rows) != len(body) or len(columns) != len(body[0]) - 1:
        yield f"{len(rows)} rows and {len(columns)} columns are named, of {len(body)} and {len(body[0]) - 1}"
        return
    for row, cells in zip(rows, body):
        for column, cell in zip(columns, cells[1:]):
            if column.strip() == "-" or not cell:
                continue
            found = re.fullmatch(rf"\W*({NUMBER})\W*", cell)
            if not found:
                yield f"{cells[0]}: {cell} is no figure"
                continue
            words = words_of(row) + words_of(column)
            wrong = disagreement(root, source, words, found.group(1), "%" in cell, cells[0])
            if wrong:
                yield f"{cells[0]}: {wrong}"


def faults(root, path):
    text = path.read_text()
    # Blanks code line by line, so that line numbers do not change.
    plain = re.sub(r"^```.*?^```", lambda m: "\n" * m.group().count("\n"), text, flags=re.S | re.M)
    lines = plain.split("\n")
    covered = set()  # lines of tables with a source
    checked = 0
    for found in TABLE.finditer(plain):
        first = plain.count("\n", 0, found.end()) + 1
        rows, columns = list(repeated(found.group(2).split(";"))), found.group(3).split(";")
        end = first
        while end < len(lines) and lines[end].lstrip().startswith("|"):
            end += 1
        covered.update(range(first, end))
        for fault in table_faults(root, lines[first:], found.group(1), rows, columns):
            yield f"{path.relative_to(root)}:{first + 1}: {fault}"
        checked += 1
    for found in INLINE.finditer(plain):
        number = plain.count("\n", 0, found.start()) + 1
        wrong = disagreement(root, found.group(3), words_of(found.group(4)), found.group(1),
                      (found.group(2) or "").startswith("%"))
        if wrong:
            yield f"{path.relative_to(root)}:{number}: {wrong}"
        checked += 1
    marks = len(re.findall(r"<!-- figures?: ", plain))
    if marks != checked:
        yield f"{path.relative_to(root)}: {marks - checked} marks are not of the form that tests/figures.py describes"
    unmarked = INLINE.sub("", plain)  # the remaining numbers have no source
    for number, line in enumerate(unmarked.split("\n"), 1):
        in_table = line.lstrip().startswith("|")
        if in_table and number - 1 in covered:
            continue
        header = in_table and number < len(lines) and re.match(r"\s*\|[\s:|-]+$", lines[number] or "")
        for found in [*MEASURED.finditer(line), *(MEASURED_HEADER.finditer(line) if header else ())]:
            yield f"{path.relative_to(root)}:{number}: {found.group()} names no source"


def generated_faults(root, path):
    made = subprocess.run([root / "scripts" / "gpu-gate", "--page"], capture_output=True, text=True, check=True).stdout
    if path.read_text() != made:
        yield f"{path.relative_to(root)}: needed what bench/results say; fix: scripts/gpu-gate --page > {path.relative_to(root)}"


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent).resolve()
    pages = [page for page in [root / "README.md", *sorted((root / "docs").glob("*.md"))] if page.exists()]
    found = [fault for page in pages
             for fault in (generated_faults if page.name == "gpu-results.md" else faults)(root, page)]
    for fault in found:
        print(fault)
    marks = sum(len(re.findall(r"<!-- figures?: ", page.read_text())) for page in pages)
    print(f"{len(found)} faults; {marks} marks in {len(pages)} pages")
    return 1 if found or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
