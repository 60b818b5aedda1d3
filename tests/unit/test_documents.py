"""The documents: a short README, valid references, no repeated sentences."""

import re
from collections import defaultdict
from pathlib import Path

from console.designs import DESIGNS
from console.features import NAMES
from console.features.prove.asking import QUESTIONS
from console.help import topics

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
DOCUMENTS = (
    README,
    *sorted((ROOT / "console" / "help").glob("*.md")),
    *sorted((ROOT / "console" / "features").glob("*/help/*.md")),
    ROOT / "console" / "README.md",
    ROOT / "queries" / "README.md",
    ROOT / "queries" / "mssql" / "README.md",
    ROOT / "tests" / "README.md",
    ROOT / "tests" / "bench" / "README.md",
)
WORDS = 8
"""Shorter sentences may be repeated."""


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) <= 260


def test_every_topic_has_its_page_and_the_readme_names_it() -> None:
    """With its summary, and names no other: a page that is lost is still named there."""
    assert all(topic.text.startswith("# ") for topic in topics().values())
    pages = {
        f"| `dbq-console help {topic.name}` | {topic.summary} |" for topic in topics().values()
    }
    rows = set(re.findall(r"^\| `dbq-console help .*", README.read_text(), re.MULTILINE))
    assert rows - pages == set(), "rows of README.md that no page has"
    assert pages - rows == set(), "these lines are missing in README.md"


def test_every_design_is_listed_in_the_readme_and_in_the_help() -> None:
    for document in (README, ROOT / "console" / "help" / "designs.md"):
        rows = re.findall(r"^\| `([a-z]+)` \|", document.read_text(), re.MULTILINE)
        assert [name for name in rows if name in DESIGNS] == list(DESIGNS), document


def test_no_long_sentence_is_repeated() -> None:
    locations: dict[str, set[str]] = defaultdict(set)
    for document in DOCUMENTS:
        for sentence in sentences(document.read_text()):
            locations[sentence].add(document.relative_to(ROOT).as_posix())
    for design in DESIGNS.values():
        for sentence in sentences("\n\n".join((design.summary, design.advice, design.details))):
            locations[sentence].add(f"the design {design.name}")
    assert {sentence: where for sentence, where in locations.items() if len(where) > 1} == {}


def sentences(text: str) -> set[str]:
    """The longer ones, without code blocks and titles."""
    prose = re.sub(r"^```.*?^```$|^# [^\n]*$", "\n", text, flags=re.MULTILINE | re.DOTALL)
    parts = re.split(r"(?<=[.!?:])\s+|\n\s*\n|\n(?=[-|#\d])|\s\|\s", prose)
    return {" ".join(part.split()) for part in parts if len(part.split()) >= WORDS}


def test_links_and_paths_in_the_documents_exist() -> None:
    for document in DOCUMENTS:
        text = document.read_text()
        for link in re.findall(r"\]\(([^)#]+)\)", text):
            assert (document.parent / link).exists(), (document, link)
        for path in re.findall(r"`((?:console|tests|queries)/[\w./-]+)`", text):
            if not re.search(r"\byours\b", path):
                assert (ROOT / path).exists(), (document, path)


def test_the_architecture_document_names_every_package() -> None:
    architecture = (ROOT / "console" / "README.md").read_text()
    packages = [
        path.name
        for path in (ROOT / "console").iterdir()
        if (path / "__init__.py").is_file() and path.name != "queries"
    ]
    packages += [f"features/{name}" for name in NAMES]
    modules = [path.name for path in (ROOT / "console").glob("[a-z]*.py")]
    missing = [name for name in packages if f"`{name}/`" not in architecture]
    missing += [name for name in modules if f"`{name}`" not in architecture]
    assert not missing, "add a row to the tables of console/README.md"


def test_the_assumptions_of_the_t_sql_are_counted_and_name_their_claims() -> None:
    """Each has a source, or is open; each claim is one that `prove` makes."""
    text = (ROOT / "queries" / "mssql" / "README.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ")]
    facts = [row for row in rows if row[0].strip() != "fact" and set(row[0]) != {"-", " "}]
    kinds = {kind: sum(kind in row[2] for row in facts) for kind in ("manual", "probed", "open")}
    assert all(any(kind in row[2] for kind in (*kinds, "·")) for row in facts)
    stated = f"Of {len(facts)} facts {kinds['manual']} are in the manual, {kinds['probed']} were"
    assert f"{stated} probed and {kinds['open']} are open" in text
    codes = {code for row in facts for code in re.findall(r"`([\w-]+)`", row[3])}
    assert codes <= {question.code for question in QUESTIONS}
    named = {file for row in facts for file in re.findall(r"`([\w/]+\.sql)`", row[1])}
    assert all((ROOT / "queries" / "mssql" / file).is_file() for file in named)
