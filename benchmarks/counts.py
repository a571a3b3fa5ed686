"""How large the house is: the counts that docs/design.md and reviews speak of.

    python benchmarks/counts.py [--json] [--no-trace]

The trace runs the demo study with one seed. A file counts when one of its functions runs; a *first
cross-file call* is a named function that another file of the package calls, counted once: what a
newcomer has to follow from file to file to read one run.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import inspect
import io
import json
import keyword
import re
import sys
import tempfile
import threading
import tokenize
from collections import defaultdict
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "suture"
LONG, PARAMETERS, SHARED, COMMON = 100, 12, 6, 8
SKIPPED = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)


def sizes() -> dict[str, object]:
    """Modules, lines, `Any`, long lines and long parameter lists of the package."""
    files = sorted(PACKAGE.rglob("*.py"))
    texts = {path: path.read_text(encoding="utf-8") for path in files}
    lines = [line for text in texts.values() for line in text.splitlines()]
    words = sum(len(re.findall(r"\bAny\b", text)) for text in texts.values())
    return {
        "modules at the top": len(list(PACKAGE.glob("*.py"))),
        "modules": len(files),
        "lines": len(lines),
        "Any per 1,000 lines": round(1000 * words / len(lines), 1),
        f"% of lines over {LONG} columns": round(
            100 * sum(len(line) > LONG for line in lines) / len(lines), 2
        ),
        f"functions with more than {PARAMETERS} parameters": [
            f"{path.relative_to(ROOT)}:{node.lineno} {node.name} ({count})"
            for path, text in texts.items()
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (count := _parameters(node)) > PARAMETERS
        ],
    }


def _parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    asked = node.args
    named = [*asked.posonlyargs, *asked.args, *asked.kwonlyargs]
    return sum(one.arg not in ("self", "cls") for one in named)


def _shapes(path: Path) -> list[tuple[int, str, str]]:
    """Lines of code as (number, text, shape): imports, docstrings and lone brackets are left out,
    and in a shape every name, string and number looks alike."""
    found: dict[int, list[tuple[str, str]]] = defaultdict(list)
    reader = io.StringIO(path.read_text(encoding="utf-8")).readline
    for token in tokenize.generate_tokens(reader):
        if token.type in SKIPPED or token.type == tokenize.NEWLINE:
            continue
        plain = token.string
        if token.type == tokenize.NAME and not keyword.iskeyword(plain):
            plain = "name"
        elif token.type in (tokenize.NUMBER, tokenize.STRING):
            plain = "value"
        found[token.start[0]].append((token.string, plain))
    lines = []
    for number, tokens in sorted(found.items()):
        text, shape = (" ".join(part) for part in zip(*tokens, strict=True))
        if re.search(r"\w", text) and not re.match(r"(from|import) |[rf]?[\"']", text):
            lines.append((number, text, shape))
    return lines


def shared() -> dict[str, int]:
    """Pairs of files that share runs of six or more lines: to the letter, or in shape."""
    code = {path: _shapes(path) for path in sorted(PACKAGE.rglob("*.py"))}
    found = {}
    for name, column in (("to the letter", 1), ("in shape", 2)):
        places: dict[tuple[str, ...], list[tuple[Path, int]]] = defaultdict(list)
        for path, lines in code.items():
            for start in range(len(lines) - SHARED + 1):
                run = tuple(line[column] for line in lines[start : start + SHARED])
                if sum(len(text.split()) > 2 for text in run) >= SHARED - 1:
                    places[run].append((path, start))
        pairs: dict[tuple[Path, Path], set[int]] = defaultdict(set)
        for there in places.values():
            if 2 <= len(there) <= COMMON:
                for (one, start), (two, other) in combinations(there, 2):
                    if one != two or abs(start - other) >= SHARED:
                        pairs[one, two].add(start - other)
        found[f"pairs of places that share {SHARED} or more lines, {name}"] = len(pairs)
    return found


def trace(study: Path) -> dict[str, int]:
    """Run a study under a profiler: files of the package that are entered, first calls between
    them."""
    from suture.cli.main import main

    here = str(PACKAGE)
    files: set[str] = set()
    calls: set[tuple[str, str]] = set()

    def seen(frame, event, argument):
        callee, back = frame.f_code, frame.f_back
        function = callee.co_flags & inspect.CO_OPTIMIZED  # not the body of a module or class
        inside = callee.co_filename.startswith(here) and callee.co_filename.endswith(".py")
        if event != "call" or not function or not inside:  # templates are not counted
            return
        files.add(callee.co_filename)
        caller = "" if back is None else back.f_code.co_filename
        named = not callee.co_name.startswith(("<", "__"))
        if named and caller.startswith(here) and caller != callee.co_filename:
            calls.add((callee.co_filename, callee.co_qualname))

    arguments = sys.argv
    with tempfile.TemporaryDirectory() as work, contextlib.redirect_stdout(io.StringIO()):
        sys.argv = ["suture", "run", str(study), "--seeds", "1", "--out", f"{work}/run"]
        threading.setprofile(seen)
        sys.setprofile(seen)
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            sys.argv = arguments
    return {"files in the trace": len(files), "first cross-file calls in the trace": len(calls)}


def main() -> None:
    """Count, and print."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", action="store_true", help="one JSON object")
    options.add_argument("--no-trace", action="store_true", help="leave out the run")
    asked = options.parse_args()
    found = {**sizes(), **shared()}
    if not asked.no_trace:
        found |= trace(ROOT / "examples" / "demo.toml")
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        if isinstance(value, list):
            print(f"{len(value):>10,}  {name}", *value, sep="\n            ")
        else:
            print(f"{value:>10,}  {name}")


if __name__ == "__main__":
    main()
