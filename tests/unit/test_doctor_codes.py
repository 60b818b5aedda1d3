"""The codes of findings: stable, distinct, and each with what repairs it or why nothing does."""

import re

from console.cli.verbs import cli
from console.doctor.checks import CODES


def test_codes_are_words_and_distinct() -> None:
    names = [code.name for code in CODES]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() and name == name.lower() for name in names)


def test_each_says_what_repairs_it_or_why_nothing_does() -> None:
    assert all(code.repair or code.advice for code in CODES)


def test_a_repair_begins_with_its_verb() -> None:
    for words in filter(None, (code.repair for code in CODES)):
        verb = re.split(r"[ ,:]", words)[0]
        assert verb in cli.commands, words
