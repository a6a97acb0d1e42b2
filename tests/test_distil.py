"""A small distillation: what learns, from which texts, and that alpha rises."""
import pytest
import torch
from helpers import generator

from nds_helpers.lab import distil
from nds_helpers.models import load_pair


@pytest.fixture(scope="module")
def pair():
    return load_pair("tiny")


def test_a_student_starts_as_its_layers_and_only_they_learn(pair):
    draft = distil.student(pair.target)
    learning = {name for name, w in draft.named_parameters() if w.requires_grad}
    assert {name.split(".")[0] for name in learning} == {"layers", "norm"}
    assert draft.embed_tokens is pair.target.embed_tokens
    ends = pair.target.layers[0], pair.target.layers[-1]
    for ours, theirs in zip(draft.layers, ends, strict=True):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            assert torch.equal(a, b) and a.data_ptr() != b.data_ptr()
    assert not any(w.requires_grad for w in pair.target.parameters())


def test_lessons_are_the_targets_own_and_differ_by_seed(pair):
    first, again, other = (distil.lessons(pair, 3, 24, seed=s) for s in (0, 0, 1))
    assert first.shape == (3, 24)
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert not first.is_inference()
    text = pair.decode(first[0, 1:distil.GIVEN - 1])
    assert any(text in held for held in distil.held_out_texts())


def test_every_text_is_learnt_from_once_before_any_twice():
    taken = list(distil.batches(12, 4, 6))
    for epoch in (taken[:3], taken[3:]):
        assert sorted(torch.cat(epoch).tolist()) == list(range(12))
    assert torch.cat(taken[:3]).tolist() != torch.cat(taken[3:]).tolist()


def test_the_rate_rises_then_falls_to_almost_nothing():
    rates = [distil.rate(step, 80) for step in range(80)]
    assert max(rates) <= 2e-3 and rates.index(max(rates)) in (9, 10)
    assert 0 < rates[-1] < 1e-4 and 0 < rates[0] < 1e-3


def test_divergence_is_pytorchs():
    log_p, log_q = torch.randn(2, 3, 7, 11, generator=generator()).log_softmax(-1)
    expected = torch.nn.functional.kl_div(log_q.flatten(0, 1), log_p.flatten(0, 1),
                                          log_target=True, reduction="batchmean")
    torch.testing.assert_close(distil.divergence(log_p, log_q), expected)
    assert distil.divergence(log_p, log_p).item() == 0


def test_mean_overlap_counts_the_places_where_tokens_were_drawn(pair):
    texts = distil.lessons(pair, 2, 20)
    p = pair.target.forward(texts).softmax(-1)
    assert distil.mean_overlap(p, pair.target, texts) == pytest.approx(1, abs=1e-5)
    p[:, :distil.GIVEN - 1] = 0  # nobody asks about the given tokens
    p[:, -1] = 0  # and nothing was drawn after the last
    assert distil.mean_overlap(p, pair.target, texts) == pytest.approx(1, abs=1e-5)


def test_learning_raises_alpha_on_unseen_texts(pair):
    texts, unseen = (distil.lessons(pair, 8, 40, seed=s) for s in (0, 1))
    draft = distil.student(pair.target)
    optimiser = torch.optim.AdamW(
        [w for w in draft.parameters() if w.requires_grad], lr=5e-4)
    with torch.no_grad():
        p, log_p = (pair.target.forward(rows).softmax(-1) for rows in (unseen, texts))
        log_p = log_p.log()
    before = distil.mean_overlap(p, draft, unseen)
    for _ in range(6):
        distil.divergence(log_p, draft.forward(texts).log_softmax(-1)).backward()
        optimiser.step()
        optimiser.zero_grad()
    assert distil.mean_overlap(p, draft, unseen) > before + 0.02
