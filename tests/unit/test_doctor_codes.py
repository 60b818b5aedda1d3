"""The codes of findings: stable, distinct, and told where an operator looks."""

from pathlib import Path

from console.doctor.codes import CODES

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_readme_tells_every_code_and_no_other() -> None:
    section = README.read_text().split("## The doctor")[1].split("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    told = [(row[0].strip("| `"), row[1], row[2].removesuffix(" |")) for row in rows]
    assert told == [(code.name, code.severity.word, code.meaning) for code in CODES]


def test_codes_are_words_and_distinct() -> None:
    names = [code.name for code in CODES]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() and name == name.lower() for name in names)
