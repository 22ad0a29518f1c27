#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each word that newcomers search the pages for stands in a heading or in the first sentence of one.

usage: tests/searched_words.py [ROOT]      exits 1 and lists the words that none has
"""
import pathlib
import re
import sys

WORDS = ["gradient checkpointing", "mixed precision", "AMP", "loss scaling", "out of memory", "fragmentation", "torch.compile",
         "teacher", "batch size", "PyTorch", "Python"]


def prominent(text):
    """Headings, and what precedes the first full stop below the title."""
    headings = re.findall(r"^#+ (.*)", text, re.M)
    first = re.search(r"^# [^\n]*\n+(.*?\.)(?:\s|$)", text, re.S | re.M)
    return headings + ([" ".join(first.group(1).split())] if first else [])


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent.parent)
    found = [line for page in sorted((root / "docs").glob("*.md")) for line in prominent(page.read_text())]
    absent = [word for word in WORDS if not any(re.search(rf"\b{re.escape(word)}\b", line, re.I) for line in found)]
    for word in absent:
        print(f"{word}: in no heading and no first sentence of docs/*.md")
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
