"""The prompts that bench and chapters use: of many kinds, and none learnt from."""
import json
import random
import sys
from collections import Counter

import pytest

from nds_helpers.models.pairs import DATA

KINDS = {"chat", "story", "summarise", "edit", "code", "translate"}
PROMPTS = [json.loads(line) for line in
           (DATA / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def learnt(monkeypatch):
    """data/make_smollm2/prompts.py, what the draft's samples are about."""
    monkeypatch.syspath_prepend(str(DATA / "make_smollm2"))
    import prompts

    yield prompts
    sys.modules.pop("prompts")


def test_there_are_ten_or_more_of_each_kind():
    counts = Counter(p["kind"] for p in PROMPTS)
    assert set(counts) == KINDS and min(counts.values()) >= 10 and len(PROMPTS) >= 60


def test_no_two_are_the_same():
    for field in ("id", "text"):
        assert len({p[field] for p in PROMPTS}) == len(PROMPTS)
    assert all(set(p) == {"id", "kind", "text"} for p in PROMPTS)
    assert all(p["id"].startswith(p["kind"]) for p in PROMPTS)


def test_some_are_not_ascii():
    foreign = [p["kind"] for p in PROMPTS if not p["text"].isascii()]
    assert len(foreign) >= 10 and len(set(foreign)) >= 5
    assert any(ord(c) > 0x3000 for p in PROMPTS for c in p["text"])


def test_they_leave_room_for_an_answer():
    assert max(len(p["text"]) for p in PROMPTS) < 2000  # some 500 tokens of 8,192
    assert min(len(p["text"]) for p in PROMPTS) > 20


def test_the_readme_counts_them():
    page = (DATA / "README.md").read_text(encoding="utf-8")
    assert f"{len(PROMPTS)} prompts" in page


def test_the_draft_never_learnt_from_them(learnt):
    g = random.Random(0)
    asked = {learnt.question(kind, g) for kind in learnt.ASKED for _ in range(3000)}
    assert len(asked) > 5000  # they vary
    for p in PROMPTS:
        assert not asked & {p["text"], p["text"].split("\n\n")[0]}
        assert not any(word in p["text"] for word in ("{thing}", "{who}"))


def test_every_template_is_filled(learnt):
    g = random.Random(1)
    for kind, templates in learnt.ASKED.items():
        for _ in range(300):
            assert not set("{}|\n") & set(learnt.question(kind, g))
        assert all(t.strip() == t and t for t in learnt.entries(templates))
