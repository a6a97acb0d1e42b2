"""The shipped pair writes what `transformers` writes with the same weights."""
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from nds_helpers.decoding import ModelDrafter, NGramDrafter, Sampling, speculative
from nds_helpers.models import load_pair

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
WARM = Sampling(1.2, top_k=4, top_p=0.95)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def run(model, drafter, prompt, k, n):
    return speculative(model, drafter, prompt, k=k, max_new_tokens=n,
                       sampling=Sampling(0.0))


@pytest.fixture(scope="module")
def tiny():
    return load_pair("tiny", dtype=torch.float64)


@pytest.fixture(scope="module")
def theirs():
    """The shipped pair as `transformers` reads it."""
    return [AutoModelForCausalLM.from_pretrained(
        TINY / name, dtype=torch.float64, local_files_only=True) for name in
        ("target", "draft")]


PROMPTS = ["KING RICHARD:\nWhat", "O"]


def test_greedy_text_equals_transformers(tiny, theirs):
    """Its own assisted generation too, with the same draft."""
    target, draft = theirs
    draft.generation_config.num_assistant_tokens = 4
    for text in PROMPTS:
        prompt = tiny.encode(text)
        settings = dict(max_new_tokens=24, do_sample=False, pad_token_id=0)
        expected = target.generate(prompt[None], **settings)[0, len(prompt):].tolist()
        assisted = target.generate(prompt[None], assistant_model=draft, **settings)
        assert assisted[0, len(prompt):].tolist() == expected
        for k, drafter in [(0, NGramDrafter()), (4, ModelDrafter(tiny.draft)),
                           (4, NGramDrafter())]:
            assert run(tiny.target, drafter, prompt, k, 24).tokens.tolist() == expected


def test_the_draft_follows_the_target_as_well_as_a_fresh_one_would(tiny):
    """CASES 8: a draft whose cache had holes would guess worse and worse."""
    prompt = tiny.encode(PROMPTS[0])
    follows, sequence = ModelDrafter(tiny.draft), prompt
    for i in range(8):
        fresh = ModelDrafter(tiny.draft).propose(sequence, 4, WARM, generator(i))
        draft = follows.propose(sequence, 4, WARM, generator(i))
        assert torch.equal(draft.tokens, fresh.tokens)
        torch.testing.assert_close(draft.probs, fresh.probs, atol=1e-10, rtol=0)
        new = torch.cat([draft.tokens[:i % 5], torch.tensor([5 + i])])
        sequence = torch.cat([sequence, new])


def test_the_target_as_its_own_draft_is_always_accepted(tiny):
    result = run(tiny.draft, ModelDrafter(tiny.draft), tiny.encode(PROMPTS[0]), 3, 24)
    assert result.trace.summary()["acceptance_rate"] == 1


def test_the_last_position_of_the_context_can_be_reached(tiny):
    limit = tiny.draft.max_length
    prompt = torch.arange(limit - 6) % 100 + 10
    result = run(tiny.draft, ModelDrafter(tiny.draft), prompt, 4, 6)
    plain = run(tiny.draft, NGramDrafter(), prompt, 0, 6)
    assert torch.equal(result.tokens, plain.tokens)
    with pytest.raises(ValueError, match=f"context of {limit}"):
        run(tiny.draft, ModelDrafter(tiny.draft), prompt, 4, 7)
