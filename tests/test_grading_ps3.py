"""Problem set 3: right answers get their points, wrong ones lose only their own.

The many wrong answers run in this process, with the cells of their own part: questions
1 to 3, or 4, or 5. That no part harms another is seen where nbgrader grades whole
submissions, with real ranks.
"""
import copy

import psutil
import pytest
from grading import (
    Class,
    answered,
    cell,
    left_out,
    lost,
    maximum,
    number,
    numbers_of,
    points,
    problem_set,
    said,
)
from kernels import left_over
from wrong_answers import ps3

from nds_helpers.classroom import own_drafter
from nds_helpers.classroom.grading_precheck import grade_id
from nds_helpers.decoding import NGramDrafter

NOTEBOOK = problem_set(ps3.NAME)
CASES = [pytest.param(question, source, id=f"{question}: {what}")
         for question, wrong in ps3.WRONG.items() for what, source in wrong]
PARTS = {"q1": "q1 q2 q3", "q2": "q1 q2 q3", "q3": "q1 q2 q3", "q4": "q4", "q5": "q5"}

SLOW = {"asks the target", "asks the draft model",
        "the likeliest word, with a q that says half"}  # in the students' check

# The same functions, written in another way.
OTHERWISE = {
    "q1_argmax": """
def argmax_over(group, logits, start):
    filled = torch.nn.functional.pad(logits, (0, 1), value=-torch.inf)
    values = group.all_gather(filled.amax(-1, keepdim=True))
    ids = group.all_gather(filled.argmax(-1, keepdim=True) + start)
    best = values == values.amax(-1, keepdim=True)
    return ids.masked_fill(~best, 10 ** 9).amin(-1)
""",
    "q2_loop": """
def write_greedily(me, shard, drafter, prompt, k, max_new_tokens):
    new, cache = [], shard.new_cache(len(prompt) + max_new_tokens)
    def read(tokens):
        x = shard.hidden(torch.tensor([tokens]), cache)
        return shard.local_logits(x)[0]
    if prompt[:-1]:
        read(prompt[:-1])
    while len(new) < max_new_tokens:
        asked, guesses = min(k, max_new_tokens - len(new) - 1), []
        if me.rank == 0 and asked:
            guesses = drafter.propose(torch.tensor(prompt + new), asked, Sampling(0),
                                      torch.Generator()).tokens.tolist()
        message = torch.tensor(guesses + [-1] * (k + 1 - len(guesses)))
        guesses = [x for x in me.group.broadcast(message).tolist() if x >= 0]
        choices = argmax_over(me.group, read([*prompt, *new][-1:] + guesses),
                              shard.vocabulary.start)
        for choice, guess in zip(choices.tolist(), [*guesses, None]):
            new.append(choice)
            if choice in shard.end_token_ids:
                return new
            if choice != guess:
                break
        cache.truncate(len(prompt) + len(new) - 1)
    return new
""",
    "q5_drafter": """
class MyDrafter:
    def __init__(self, corpus):
        self.corpus = torch.tensor(corpus)
        self.pairs = {}
        for i, pair in enumerate(zip(corpus, corpus[1:])):
            self.pairs.setdefault(pair, []).append(i + 2)

    def reset(self):
        self.seen = 0

    def propose(self, sequence, k, sampling, generator):
        text, rows = sequence.tolist(), []
        for _ in range(k):
            places = self.pairs.get(tuple(text[-2:]), [])[:-1]
            if not places:
                break
            counts = self.corpus[places].bincount(minlength=4096).float()
            rows.append(counts ** 3 / (counts ** 3).sum())
            text.append(int(torch.multinomial(rows[-1], 1, generator=generator)))
        if not rows:
            return Draft(sequence[:0])
        return Draft(torch.tensor(text[len(sequence):]), torch.stack(rows))
""",
}
IMPORTED = {
    "q1_argmax": """
from nds_helpers.distributed.slices import candidates
def argmax_over(group, logits, start):
    values, ids = candidates(logits, 1, group, start)
    return ids.gather(1, values.argmax(1, keepdim=True))[:, 0]""",
    "q2_loop": """
from nds_helpers.distributed import speculative_on_ranks
def write_greedily(me, shard, drafter, prompt, k, max_new_tokens):
    return speculative_on_ranks(me, shard, drafter, prompt, k=k, sampling=Sampling(0),
                                max_new_tokens=max_new_tokens).tokens.tolist()""",
    "q5_drafter": """
from nds_helpers.decoding import NGramDrafter
class MyDrafter(NGramDrafter):
    def __init__(self, corpus):
        super().__init__()
    def propose(self, *given):
        return super().propose(*given)""",
}
# Answers that know the values of the tests that a student can see.
COPIED = {
    "q1_argmax": """
def argmax_over(group, logits, start):
    return torch.tensor([1 if logits.any() else 0])""",
    "q2_loop": "def write_greedily(*given):\n    return [2, 5, 9]",
    "q3_settle": "def settle(*given):\n    return [5, 1, 2]",
    "q5_drafter": """
class MyDrafter:
    def __init__(self, corpus):
        pass
    def propose(self, *given):
        return Draft(torch.tensor([1, 2]))""",
}


def part(notebook, questions):
    """A copy of a notebook with the cells of some questions, "q1 q2", and the rest."""
    short = copy.copy(notebook)
    short.cells = [c for c in notebook.cells
                   if number(str(grade_id(c))) in ("None", "setup", *questions.split())]
    return short


def lost_alone(question, answers):
    """The tests that answers lose, among those of the question's part."""
    short = part(answered(NOTEBOOK, answers), PARTS[number(question)])
    return lost(short, points(short))


def test_the_reference_gets_all_points():
    assert lost(NOTEBOOK, points(NOTEBOOK)) == set()


@pytest.mark.parametrize("question", OTHERWISE)
def test_right_answers_of_another_make_lose_nothing_but_the_last_points(question):
    """A drafter that draws is honest; at temperature 0 drawing costs tokens."""
    gone = lost_alone(question, {question: OTHERWISE[question]})
    assert gone <= {"q5_better_test"}


@pytest.mark.parametrize("question", ps3.WRONG)
def test_a_question_left_out_costs_its_own_points_only(question):
    gone = lost_alone(question, {question: left_out(NOTEBOOK, question)})
    assert numbers_of(gone) == {number(question)}


@pytest.mark.parametrize("question, source", CASES)
def test_a_wrong_answer_costs_its_own_question_only(question, source):
    gone = lost_alone(question, {question: source})
    assert numbers_of(gone) == {number(question)}


@pytest.mark.parametrize("answers", [IMPORTED, COPIED], ids=["imported", "copied"])
def test_answers_that_are_not_the_students_get_nothing(answers):
    for question, source in answers.items():
        gone = lost_alone(question, {question: source})
        assert gone == {t for t in maximum(NOTEBOOK) if number(t) == number(question)}


def test_a_drafter_that_only_looks_back_loses_the_last_points_only():
    source = dict(ps3.WRONG["q5_drafter"])["looks in the text only"]
    assert lost_alone("q5", {"q5_drafter": source}) == {"q5_better_test"}


def test_checks_pass_the_reference_and_tell_most_wrong_answers():
    """A check may miss a mistake that the graded tests find; most it must tell."""
    told = []
    for question, wrong in ps3.WRONG.items():
        earlier = ["q2_loop"] if question == "q4_text" else []
        earlier += ["q1_argmax"] if question in ("q2_loop", "q4_text") else []
        reference = cell(NOTEBOOK, question).source
        assert "\nPassed" in "\n" + said(NOTEBOOK, question, reference, *earlier)
        told += ["Not yet" in said(NOTEBOOK, question, source, *earlier)
                 for what, source in wrong if what not in SLOW]
    assert sum(told) >= 0.8 * len(CASES)


def test_a_real_rank_that_does_not_come_is_named():
    source = dict(ps3.WRONG["q4_text"])["rank 1 doesn't come"]
    words = said(NOTEBOOK, "q4_text", source, "q1_argmax", "q2_loop")
    assert "raised RuntimeError: on rank 1: returned, although rank 0" in words


def test_n_grams_are_no_better_than_n_grams():
    texts = own_drafter.greedy_texts()
    said = own_drafter.score(NGramDrafter, texts)
    assert said == "1.47 tokens a round, n-grams 1.47"


def test_the_leaderboard_tells_tokens_a_round_and_a_speedup(capsys):
    own_drafter.leaderboard(NGramDrafter())
    said = capsys.readouterr().out
    assert said.startswith("1.47 tokens a round at K = 4\nalpha 0.")
    assert "expected speedup" in said


@pytest.mark.slow
def test_nbgrader_gives_the_same_marks_and_no_process_is_left(tmp_path, monkeypatch):
    """The reference, the release, one wrong answer of each question, and cheats."""
    monkeypatch.setenv("NDS_MARK", str(tmp_path))  # kernels and ranks inherit it
    course = Class(tmp_path / "course")
    wrong = {question: answers[0][1] for question, answers in ps3.WRONG.items()}
    wrong["q4_text"] = dict(ps3.WRONG["q4_text"])["rank 1 doesn't come"]
    for student, answers in [
        ("reference", {}),
        ("wrong", {q: wrong[q] for q in ("q1_argmax", "q3_settle", "q5_drafter")}),
        ("others", {q: wrong[q] for q in ("q2_loop", "q4_text")}),
        ("imported", IMPORTED),
    ]:
        marks = course.marks(student, ps3.NAME, answered(NOTEBOOK, answers))
        assert not marks.note
        assert numbers_of(lost(NOTEBOOK, marks.points)) == numbers_of(answers)
        assert marks.by_hand == ["q6_written"]
    marks = course.marks("untouched", ps3.NAME, course.released(ps3.NAME))
    assert (marks.total, marks.by_hand, marks.note) == (0, [], "")
    assert left_over(marked(str(tmp_path))) == []


def marked(word):
    """The processes with that word in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("NDS_MARK") == word:
                found.append(process)
        except psutil.Error:  # another user's, or gone
            continue
    return found
