"""The size of the code: files and lines by package; code, docstrings, comments, blanks.

    python -m tests.tools.lines [REVISION ...]

Of the working tree or of git revisions: one table each, then their sums side by side. `width` is
the mean number of characters in a line of code without its indentation, so that fewer lines are
not simply longer ones.
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
FOLDERS = ("console", "queries", "tests")
_LAYOUT = {
    tokenize.ENCODING,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Lines:
    """Counts of one or more files."""

    files: int = 0
    code: int = 0
    docstrings: int = 0
    comments: int = 0
    blanks: int = 0
    characters: int = 0
    """In lines of code, without their indentation."""

    def __add__(self, other: "Lines") -> "Lines":
        return Lines(*(one + two for one, two in zip(astuple(self), astuple(other), strict=True)))

    @property
    def all(self) -> int:
        """Lines of every kind."""
        return self.code + self.docstrings + self.comments + self.blanks

    @property
    def width(self) -> int:
        """The mean number of characters in a line of code."""
        return round(self.characters / self.code) if self.code else 0


def count_python(text: str) -> Lines:
    """A line with code and a comment is code; a blank line in a text belongs to the text."""
    code, docstrings, comments = set[int](), set[int](), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in _LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        # A string on its own is a docstring, also of an attribute.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.JoinedStr):
            docstrings.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    code -= docstrings
    return _count(text, code, docstrings, comments - code - docstrings)


def count_sql(text: str) -> Lines:
    """A statement's name and its conditions are comments too."""
    lines = enumerate(text.splitlines(), 1)
    stripped = {number: line.strip() for number, line in lines if line.strip()}
    comments = {number for number, line in stripped.items() if line.startswith("--")}
    return _count(text, stripped.keys() - comments, set(), comments)


def _count(text: str, code: set[int], docstrings: set[int], comments: set[int]) -> Lines:
    lines = text.splitlines()
    blanks = len(lines) - len(code) - len(docstrings) - len(comments)
    characters = sum(len(lines[number - 1].strip()) for number in code)
    return Lines(1, len(code), len(docstrings), len(comments), blanks, characters)


COUNTERS: Mapping[str, Callable[[str], Lines]] = {".py": count_python, ".sql": count_sql}


def by_package(files: Iterator[tuple[str, str]]) -> dict[str, Lines]:
    """Files (path, text), summed by their folder's first two names."""
    found: dict[str, Lines] = defaultdict(Lines)
    for path, text in files:
        folder = PurePosixPath(path).parent
        found["/".join(folder.parts[:2])] += COUNTERS[PurePosixPath(path).suffix](text)
    return dict(sorted(found.items()))


def working_tree_files(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in COUNTERS:
                yield path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")


def revision_files(revision: str) -> Iterator[tuple[str, str]]:
    command = ["git", "-C", str(ROOT), "archive", revision, *FOLDERS]
    packed = subprocess.run(command, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is not None and PurePosixPath(member.name).suffix in COUNTERS:
                yield member.name, content.read().decode()


def table(title: str, rows: Mapping[str, Lines]) -> Iterator[str]:
    """One revision."""
    kinds = [field.name for field in fields(Lines) if field.name != "characters"]
    yield f"{title:28}" + "".join(f"{kind:>11}" for kind in (*kinds, "all", "width"))
    for package, lines in rows.items():
        figures = [getattr(lines, kind) for kind in (*kinds, "all", "width")]
        yield f"{package:28}" + "".join(f"{figure:>11,}" for figure in figures)


def sums(packages: Mapping[str, Lines]) -> dict[str, Lines]:
    return {
        folder: sum(
            (lines for package, lines in packages.items() if package.split("/")[0] == folder),
            Lines(),
        )
        for folder in FOLDERS
    }


def side_by_side(counted: Mapping[str, Mapping[str, Lines]]) -> Iterator[str]:
    """Files and lines of each revision's folders and packages."""
    yield f"{'files, lines':28}" + "".join(f"{name[:17]:>18}" for name in counted)
    every = sorted({package for packages in counted.values() for package in packages})
    for package in every:
        cells = [packages.get(package, Lines()) for packages in counted.values()]
        yield f"{package:28}" + "".join(f"{lines.files:>8,}{lines.all:>10,}" for lines in cells)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revisions", nargs="*", metavar="REVISION")
    revisions = parser.parse_args(arguments).revisions
    counted = {revision: by_package(revision_files(revision)) for revision in revisions} or {
        "here": by_package(working_tree_files())
    }
    for name, packages in counted.items():
        print(*table(name, packages), *table("sum", sums(packages)), "", sep="\n")
    if len(counted) > 1:
        totals = {name: sums(packages) for name, packages in counted.items()}
        print(*side_by_side(counted), *side_by_side(totals), sep="\n")


if __name__ == "__main__":
    main()
