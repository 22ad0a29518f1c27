#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Refuses private words where the field has a common one (docs/glossary.md), in code, comments, scripts and docs;
errors whose `got` is a pronoun instead of a value or a place; and long names of tests.

usage: tests/vocabulary.py [--count] [ROOT]      exits 1 and lists every place; --count: places per folder instead
"""
import collections
import pathlib
import re
import sys

FOLDERS = ["engine", "kernels", "autograd", "nn", "train", "bench", "tests", "examples", "docs", "scripts", "cmake", "packaging"]
SUFFIXES = {".h", ".cpp", ".cu", ".cuh", ".c", ".f90", ".py", ".md", ".txt", ".cmake", ".toml", ".html", ".css", ".js",
            ".in", ""}  # scripts have none
SKIPPED = {"tests/vocabulary.py", "tests/gate/vocabulary_test.py"}  # which have to name the words
SKIPPED_FOLDERS = {"tests/data", "tests/fuzz/corpus", "bench/results"}  # data and measurements

# A word or a phrase, as a regular expression, and what to write instead. A blank stands for whatever separates words:
# also an underscore, or the end of a line with the next line's comment mark or quote.
WORDS = [
    (r"comput(?:e|es|ed|ing|ation)(?: [\w']+){0,2} again", "recompute"),
    (r"the way back|on (?:its|their) way back|there and back", "the backward pass; forward and backward"),
    (r"(?:nobody|somebody|whoever|no one)", "unused, not needed: only people are somebody"),
    (r"who look on|those who", "observers"),
    (r"recycl(?:e|es|ed|ing)|memory that is used again|asks? (?:\w+ )?the heap|the heap (?:is|was) asked",
     "pooled memory; no heap allocation"),
    (r"what is kept|hidden kept|all kept|kept hidden", "saved for backward; cached by the allocator"),
    (r"masters", "master weights"),
    (r"matrix products?", "matrix multiplication, GEMM"),
    (r"judge[sd]?|judging", "the reference implementation; check"),
    (r"yardsticks?", "baseline, measured peak"),
    (r"in turns", "interleaved"),
    (r"on (?:its|their) way", "in flight; before"),
    (r"waits? (?:elsewhere|outside)|waiting (?:elsewhere|outside)", "is offloaded"),
    (r"is a wish|are wishes", "is a hint"),
    (r"(?:comes?|came) again", "is repeated"),
    (r"(?:run|runs|ran|running)(?: [\w']+){0,5} dry|dry (?:streams?|runtimes?|steps?)", "dry-run; a dry run"),
    (r"foret(?:el|old)\w*", "predict"),
    (r"precedents?|strikes", "matching history position; mispredictions"),
    (r"(?:is|are) brief|weighty", "short-lived; large"),
    (r"(?:give|gives|given|gave|giving)(?: [\w']+){0,3} back", "free, release, return"),
    (r"dealt|TileDeal", "assigned round-robin"),
    (r"leavings", "backward workspace"),
    (r"sums start|ends a product|what becomes of|SumEnd|HiddenEnd|GradientEnd", "initial accumulator; epilogue"),
    (r"FetchQueue", "Prefetch"),
    (r"saving helps|places of sums|few enough|fused covers|care for memory",
     "saves_hidden, preactivation_buffers, fits_int32, fused_supports, check_memory"),
    (r"(?<!\")(?:bad losses|skipped in a row)", "non_finite_losses, consecutive_skips"),
    (r"(?:comes|come) at once", "runs immediately"),
    (r"what is off", "the error"),
    (r"(?:state|carried) deviations?|deviations? (?:forward|backward|of the state|from the data)|"
     r"Deviation(?:Forward|Backward)",
     "state error (predicted minus data)"),
    (r"(?:go|goes|going|went) on from", "resume from"),
    (r"follow gradients", "the optimizer"),
    (r"shall", "is to, must"),
    (r"hears?", "receives"),
    (r"(?:is|are) dear|dearest|dearer", "costs more"),
    (r"on, off or over", "on, off or between modes"),
    (r"mend(?:s|ed|ing)?", "fix"),
]
# Makers of errors with the place of `got` among their arguments; for lambdas and wrappers any argument may be it.
MAKERS = {"invalid_argument": 2, "config_error": 2, "data_error": 2, "device_error": 2, "rank_error": 2,
          "bad": None, "broken": None, "broken_array": None, "wrong": None, "fail": None,
          "refused": None, "different_run": None, "check_range": None, "period_error": None, "missing": None}
VAGUE = re.compile(r"(?:an? )?(?:[a-z]+ ones?|others?|another|something|both|neither|one|"
                   r"ones|more|fewer|less|some|too (?:few|many|long|short))\b(?! (?:value|number) a )|(?:its?|they|these|those|this|such) |.*\bsuch\b(?! as)|.*(?:\bor others|\bnone of .*|"
                   r"\b(?:without|beside|past|of|in) (?:it|them)\b.*|.*\bwithout|"
                   r"\bof another [a-z]+|do(?:es)? not fit)$")
NAME_LENGTH = 60
GAP = r"""[\s"'/#*_|>\\-]+"""


def compiled(words):
    for pattern, better in words:
        yield re.compile(rf"(?<![A-Za-z])(?:{pattern.replace(' ', GAP)})(?![A-Za-z])", re.I), better


def skipped(relative):
    name = relative.as_posix()
    return name in SKIPPED or any(name.startswith(folder + "/") for folder in SKIPPED_FOLDERS)


def texts(root):
    """All text that people read: sources, scripts, pages, build files."""
    paths = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))]
    paths += [*sorted(root.glob("*.md")), root / "CMakeLists.txt"]
    for path in paths:
        relative = path.relative_to(root)
        if path.is_file() and path.suffix in SUFFIXES and not skipped(relative) and "__pycache__" not in path.parts:
            yield relative, path.read_text(errors="replace")


def faults(root):
    words = list(compiled(WORDS))
    seen = 0
    for path, text in texts(root):
        seen += 1
        for pattern, better in words:
            for found in pattern.finditer(text):
                line = text.count("\n", 0, found.start()) + 1
                yield path, f"{path}:{line}: \"{' '.join(re.split(GAP, found.group()))}\"; write: {better}"
    if seen == 0:
        yield pathlib.Path("."), f"{root}: no text found"


def arguments_of_calls(text, names):
    """(offset, name, arguments) of each call of one of `names`."""
    for call in re.finditer(rf"\b({'|'.join(names)})\(", text):
        arguments, depth = [""], 1
        for token in re.finditer(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])+\'|[^"\'()\[\]{},]+|.', text[call.end():call.end() + 2000],
                                 re.S):
            word = token.group()
            depth += (word in list("([{")) - (word in list(")]}"))
            if depth == 0:
                break
            if word == "," and depth == 1:
                arguments.append("")
            else:
                arguments[-1] += word
        yield call.start(), call.group(1), arguments


def vague_errors(root):
    for path, text in texts(root):
        if path.suffix not in {".h", ".cpp"} or path.parts[0] in {"tests", "bench", "examples"}:
            continue
        for start, name, arguments in arguments_of_calls(text, MAKERS):
            place = MAKERS[name]
            for argument in arguments[place:place + 1] if place else arguments[1:]:
                for literal in re.findall(r'"((?:\\.|[^"\\])*)"', argument):
                    if VAGUE.match(literal):
                        line = text.count("\n", 0, start) + 1
                        yield path, f'{path}:{line}: got "{literal}"; write: the value, or the place, that was found'


def long_names(root):
    for path, text in texts(root):
        if path.parts[0] != "tests" or path.suffix not in {".h", ".cpp", ".cu"}:
            continue
        for case in re.finditer(r'TEST_CASE(?:_FIXTURE|_TEMPLATE)?\((?:\s*\w+,)?((?:\s*"(?:\\.|[^"\\])*")+)', text):
            name = "".join(re.findall(r'"((?:\\.|[^"\\])*)"', case.group(1)))
            if len(name) > NAME_LENGTH:
                line = text.count("\n", 0, case.start()) + 1
                yield path, f'{path}:{line}: "{name}" has {len(name)} characters; write: at most {NAME_LENGTH}'


def main():
    arguments = sys.argv[1:]
    count = "--count" in arguments
    rest = [argument for argument in arguments if argument != "--count"]
    root = pathlib.Path(rest[0] if rest else pathlib.Path(__file__).parent.parent)
    found = [*faults(root), *vague_errors(root), *long_names(root)]
    if count:
        folders = collections.Counter("/".join(path.parts[:2][:max(1, len(path.parts) - 1)]) for path, _ in found)
        for folder, number in sorted(folders.items()):
            print(f"{number:5} {folder}")
    else:
        for _, fault in sorted(found, key=lambda f: f[1]):
            print(fault)
    print(f"{len(found)} places that a reader from outside would stumble at" if found else "the field's own words throughout")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
