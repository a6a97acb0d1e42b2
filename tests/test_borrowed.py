"""Drafts that borrow their target's parts: early exits, and trained layers."""
import pytest
import torch
from helpers import generator, random_transformer
from safetensors.torch import load_file, save_file

from nds_helpers.decoding import (
    ModelDrafter,
    Sampling,
    autoregressive,
    speculative,
)
from nds_helpers.models import load_model, load_pair, pairs, smollm2
from nds_helpers.models.borrowed import early_exit, load_borrowing
from nds_helpers.models.checkpoint import SINGLE
from nds_helpers.models.decoder import causal_mask
from nds_helpers.parallel import shard_model, simulate

WORDS = [0, 3, 4, 17, 60]  # that the trained draft can say
TOKENS = torch.arange(1, 40)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tied")
    random_transformer("qwen2, tied").save_pretrained(made)
    return made


@pytest.fixture
def target(folder):
    return load_model(folder, torch.float64)


@pytest.fixture
def trained(folder, tmp_path):
    """A folder as data/smollm2 is: the second of two layers, a norm, some ids."""
    whole = load_file(folder / SINGLE)
    found = {name.replace("layers.1", "layers.0").removeprefix("model."): weight
             for name, weight in whole.items() if ".layers.1." in name}
    found["norm.weight"] = 2 * whole["model.norm.weight"]
    found["ids"] = torch.tensor(WORDS, dtype=torch.int32)
    save_file(found, tmp_path / SINGLE)
    smollm2.write_sums(tmp_path)
    return tmp_path


# Early exit.
def test_an_early_exit_is_the_target_less_its_last_layers(target):
    draft = early_exit(target, 1)
    x = target.embed_tokens(TOKENS)
    cos, sin = target.rotary.rows(0, len(TOKENS), x)
    mask = causal_mask(0, len(TOKENS), 2, x)
    x = target.norm(target.layers[0](x, cos, sin, mask, None, 0))
    torch.testing.assert_close(draft.forward(TOKENS), target.lm_head(x))
    whole = target.forward(TOKENS)
    assert not torch.allclose(whole, draft.forward(TOKENS))
    assert len(target.layers) == 2  # the target is as it was


def test_nothing_is_copied_and_the_cache_is_its_own(target):
    draft, theirs = early_exit(target, 1), {w.data_ptr() for w in target.parameters()}
    assert {w.data_ptr() for w in draft.parameters()} <= theirs
    cache = draft.new_cache(8)
    draft.forward(TOKENS[:5], cache)
    assert cache.length == 5 and cache.store.shape[0] == 1  # one layer


def test_an_exit_is_masked_like_its_target(target):
    target.vocab_size = 50
    assert early_exit(target, 1).forward(TOKENS).shape == (len(TOKENS), 50)


@pytest.mark.parametrize("layers", [0, 2, -1])
def test_an_exit_keeps_some_layers_and_leaves_some(target, layers):
    with pytest.raises(ValueError, match=f"keeps 1 to 1 of them, not {layers}"):
        early_exit(target, layers)


# A trained draft.
def test_a_trained_draft_reads_its_targets_embedding(target, trained):
    draft = load_borrowing(trained, target)
    assert draft.embed_tokens is target.embed_tokens
    assert len(draft.layers) == 1 and draft.norm.weight.dtype == torch.float64
    logits = draft.forward(TOKENS)
    stream = draft.hidden(TOKENS[None])[0]
    expected = stream @ target.embed_tokens.weight[WORDS].T
    torch.testing.assert_close(logits[:, WORDS], expected)
    others = [i for i in range(61) if i not in WORDS]
    assert bool((logits[:, others] == -torch.inf).all()) and logits.shape[1] == 61
    torch.testing.assert_close(draft.layers[0].mlp.gate_up.weight,
                               target.layers[1].mlp.gate_up.weight)


def test_a_draft_of_few_words_changes_nothing(target, trained):
    draft, prompt = load_borrowing(trained, target), [1, 2, 5]
    for temperature in (0.0, 0.7, 2.0):
        guesses = ModelDrafter(draft).propose(torch.tensor(prompt), 4,
                                              Sampling(temperature), generator())
        assert set(guesses.tokens.tolist()) <= set(WORDS)
    settings = dict(max_new_tokens=40, sampling=Sampling(0.0))
    plain = autoregressive(target, prompt, **settings)
    fast = speculative(target, ModelDrafter(draft), prompt, k=4, **settings)
    assert fast.tokens.tolist() == plain.tokens.tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_load_pair_finds_it(folder, trained, monkeypatch, dtype):
    monkeypatch.setattr(smollm2, "fetch", lambda: folder)
    monkeypatch.setattr(pairs, "DATA", trained.parent)
    trained.rename(trained.parent / "smollm2")
    try:
        pair = load_pair("smollm2", dtype=dtype)
        assert len(pair.draft.layers) == 1 and pair.tokenizer is None
        result = speculative(pair.target, ModelDrafter(pair.draft), [1, 2], k=2,
                             max_new_tokens=9, sampling=Sampling(1.0))
        assert len(result.tokens) > 0
        (trained.parent / "smollm2" / SINGLE).write_bytes(b"!")
        with pytest.raises(ValueError, match="git checkout -- data/smollm2"):
            load_pair("smollm2")
    finally:
        (trained.parent / "smollm2").rename(trained)


def test_without_it_the_draft_is_an_early_exit(folder, monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2, "fetch", lambda: folder)
    monkeypatch.setattr(pairs, "DATA", tmp_path)
    monkeypatch.setattr(pairs, "EXIT", 1)
    pair = load_pair("smollm2")
    assert pair.draft.layers[0] is pair.target.layers[0]


# On several ranks.
@pytest.mark.parametrize("scheme", ["all-reduce", "sequence"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_shards_of_a_trained_draft_say_what_it_says(target, trained, size, scheme):
    """Some rank has none of the words that it can say."""
    draft = load_borrowing(trained, target)
    expected = draft.forward(TOKENS)
    for logits in simulate(
            lambda me: shard_model(draft, me.group, scheme).forward(TOKENS), size):
        torch.testing.assert_close(logits, expected)
        assert logits.isfinite().any(0).nonzero().flatten().tolist() == WORDS
