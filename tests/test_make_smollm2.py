"""The scripts that make SmolLM2's draft, on the tiny pair and on random models."""
import json
import random
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from helpers import generator, random_transformer

from nds_helpers.decoding import Sampling, autoregressive, probabilities
from nds_helpers.models import load_model
from nds_helpers.models.borrowed import load_borrowing
from nds_helpers.models.pairs import DATA

SCRIPTS = "prompts", "sample", "features", "train"
GREEDY = Sampling(0.0)


@pytest.fixture
def scripts(monkeypatch, tmp_path):
    """The modules of data/make_smollm2; what they write goes to a folder of ours."""
    monkeypatch.syspath_prepend(str(DATA / "make_smollm2"))
    import sample
    import train

    monkeypatch.setattr(sample, "WORK", tmp_path)
    monkeypatch.setattr(sample, "SAMPLES", tmp_path)
    monkeypatch.setattr(train, "WORK", tmp_path)
    yield sample, train
    for name in SCRIPTS:
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small random model with tied embeddings and end token 3."""
    folder = tmp_path_factory.mktemp("model")
    random_transformer("qwen2, tied").save_pretrained(folder)
    return load_model(folder, torch.float64)


@pytest.fixture
def sampler(scripts, model, monkeypatch):
    """A Sampler of the small model, without a tokenizer."""
    sample, _ = scripts
    monkeypatch.setattr(sample, "LENGTH", 60)
    monkeypatch.setattr(sample, "ANSWER", 30)
    made = sample.Sampler.__new__(sample.Sampler)
    made.model, made.end, made.tail = model, 3, [3, 10, 11, 12]
    return made


def questions(count=9):
    g = random.Random(0)
    return [[g.randrange(4, 61) for _ in range(g.randint(2, 20))] for _ in range(count)]


# Sampling.
def test_each_answer_is_that_of_its_question_alone(sampler, model, monkeypatch):
    """Whatever the lengths of the others, and whoever has ended."""
    asked, settings = questions(40), dict(max_new_tokens=30, sampling=GREEDY)
    free = [autoregressive(model, q, **settings).tokens.tolist() for q in asked]
    often = Counter(token for text in free for token in set(text[2:]))
    sampler.end = min(often, key=lambda token: abs(often[token] - 15))
    monkeypatch.setattr(model, "end_token_ids", (sampler.end,))
    alone = [autoregressive(model, q, **settings).tokens.tolist() for q in asked]
    assert len({len(text) for text in alone}) > 5  # some ended early
    written = sampler.answers(asked, False, GREEDY, generator())
    found = {tuple(ids[:given].tolist()): ids[given:].tolist()
             for ids, given in written}
    assert found == {tuple(q): text for q, text in zip(asked, alone)}


def test_the_target_ends_its_own_questions(sampler):
    written = sampler.answers(questions(40), True, Sampling(2.0), generator())
    assert written
    for ids, given in written:
        assert ids[given - 4:given].tolist() == sampler.tail
        assert 3 not in ids[given:-1].tolist()
        assert 0 < len(ids) - given <= 30 and len(ids) <= 60


def test_answers_follow_the_seed(sampler):
    runs = [sampler.answers(questions(), False, Sampling(1.0), generator(seed))
            for seed in (1, 1, 2)]
    texts = [[ids.tolist() for ids, _ in run] for run in runs]
    assert texts[0] == texts[1] != texts[2]


def test_a_shard_comes_back_as_it_was(scripts):
    sample, _ = scripts
    written = [(torch.arange(40_000, 40_009), 4), (torch.arange(5), 2)]
    sample.save(sample.shard_path(7), written, seed=1, temperature=0.8, kind="chat")
    path, = sample.shards()
    back = sample.texts(path)
    assert [(ids.tolist(), given) for ids, given in back] == [
        (ids.tolist(), given) for ids, given in written]
    assert sample.answer_tokens(back) == 5 + 3
    with np.load(path) as shard:
        assert shard["seed"] == 1 and shard["kind"] == "chat"
    assert [p.name for p in path.parent.iterdir()] == [path.name]


# Training.
@pytest.fixture
def prepared(scripts, sampler, model, monkeypatch):
    """Two shards with their features, and a draft that has learnt nothing."""
    import features

    sample, train = scripts
    monkeypatch.setattr(train, "LAYERS", (1,))
    for index in range(2):
        written = sampler.answers(questions(), False, Sampling(1.0), generator(index))
        sample.save(sample.shard_path(index), written)
        features.make_features(model, sample.shard_path(index))
    single = model.__class__(model.config)
    single.load_state_dict(model.state_dict())
    single.float()
    ids = torch.arange(0, 61, 2, dtype=torch.int32)
    return sample, train, single, train.new_draft(single,
                                                  train.first_weights(single, ids))


def test_features_are_the_targets_probabilities(prepared, model):
    sample, train, _, draft = prepared
    for ids, given, stream, total in train.read(sample.shard_path(0)):
        p = probabilities(model.forward(ids[:-1])[given - 1:], Sampling())
        q = (stream.double() @ model.embed_tokens.weight.T - total[:, None]).exp()
        torch.testing.assert_close(q, p, atol=5e-3, rtol=0)


def test_the_loss_is_the_share_of_rejected_guesses(prepared, model):
    sample, train, _, draft = prepared
    batch = train.read(sample.shard_path(0))
    _, alpha = train.imitation(draft, batch)
    overlaps = []
    for ids, given, *_ in batch:
        p, q = (probabilities(m.forward(ids[:-1])[given - 1:], Sampling())
                for m in (model, draft))
        overlaps.append(torch.minimum(p, q).sum(-1))
    assert alpha.item() == pytest.approx(torch.cat(overlaps).mean().item(), abs=0.02)


def test_a_draft_learns_and_comes_back(prepared):
    sample, train, target, draft = prepared
    batch = train.read(sample.shard_path(0))
    own = train.own_weights(draft)
    assert {id(w) for w in own}.isdisjoint(id(w) for w in target.parameters())
    optimiser = torch.optim.AdamW(own, lr=1e-2)
    alphas = []
    for _ in range(30):
        loss, alpha = train.imitation(draft, batch)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        alphas.append(alpha.item())
    assert alphas[-1] > alphas[0] + 0.1
    train.save_file(train.trained_weights(draft), sample.WORK / train.SINGLE)
    back = load_borrowing(sample.WORK, target)
    torch.testing.assert_close(back.forward(torch.arange(9)),
                               draft.forward(torch.arange(9)), atol=0.05, rtol=0.01)


def test_training_goes_on_and_behind_a_shorter_one(prepared, monkeypatch):
    """Cut in the middle, or begun from another's checkpoint: nothing is lost."""
    sample, train, target, draft = prepared
    steps = len(list(train.schedule(sample.shards(), 1)))
    folder = sample.WORK / "out"
    for name, value in dict(FOLDER=folder, HELD_OUT=sample.shard_path(0), SAVED_EVERY=1,
                            WORDS=31).items():
        monkeypatch.setattr(train, name, value)
    monkeypatch.setattr(train, "load_model", lambda folder: target)
    monkeypatch.setattr(train.smollm2, "fetch", lambda: None)
    monkeypatch.setattr(train, "commonest_words", lambda paths: torch.arange(31).int())
    run(train, monkeypatch, "--shards 1 --epochs 1")
    short = json.loads((folder / "curve.json").read_text())
    first, whole = (sample.WORK / f"draft-0-{shards}-1.pt" for shards in (1, 2))
    run(train, monkeypatch, f"--shards 2 --epochs 1 --behind {first}")
    long = json.loads((folder / "curve.json").read_text())
    assert long[:len(short)] == short and len(long) == len(short) + steps
    weights = (folder / train.SINGLE).read_bytes()
    state = torch.load(whole, weights_only=True)
    assert state["step"] == steps and state["seen"] == long[-1][0] > short[-1][0]
    run(train, monkeypatch, "--shards 2 --epochs 1")  # nothing is left to do
    assert json.loads((folder / "curve.json").read_text()) == long
    assert (folder / train.SINGLE).read_bytes() == weights
    run(train, monkeypatch, f"--skip 1 --shards 2 --epochs 1 --behind {whole}")
    last = json.loads((folder / "curve.json").read_text())
    new = sample.answer_tokens(sample.texts(sample.shard_path(1)))
    assert last[:len(long)] == long and last[-1][0] == long[-1][0] + new


@pytest.mark.parametrize("wrong", [
    "--shards 0", "--shards -1", "--shards 3", "--shards 2 --skip 2",
    "--shards 2 --epochs 0", "--shards 2 --behind missing.pt"])
def test_a_training_of_nothing_is_refused(prepared, monkeypatch, wrong):
    """Else an untrained draft would take the place of the trained one."""
    train = prepared[1]
    monkeypatch.setattr(train, "make_held_out", lambda: pytest.fail("began"))
    with pytest.raises(SystemExit):
        run(train, monkeypatch, wrong)


def test_a_damaged_checkpoint_is_named(prepared, tmp_path):
    path = tmp_path / "draft.pt"
    path.write_bytes(b"PK, not really")
    with pytest.raises(SystemExit, match="draft.pt is damaged"):
        prepared[1].resume(None, None, path)


def run(train, monkeypatch, arguments):
    """The script, with the arguments of a command line."""
    monkeypatch.setattr(sys, "argv", ["train.py", *arguments.split()])
    train.main()


def test_batches_cover_every_text_once_an_epoch(prepared):
    sample, train, *_ = prepared
    once = list(train.schedule(sample.shards(), 1))
    twice = list(train.schedule(sample.shards(), 2))
    assert twice[:len(once)] == once and twice[len(once):] != once
    seen = sorted((path.name, row) for path, rows in once for row in rows)
    assert seen == sorted((path.name, row) for path in sample.shards()
                          for row in range(len(sample.texts(path))))


def test_words_are_the_commonest(prepared, monkeypatch):
    sample, train, *_ = prepared
    monkeypatch.setattr(train, "WORDS", 5)
    monkeypatch.setattr(train, "texts", lambda path: [
        (torch.tensor([1, 9, 9, 7, 40_000, 40_000, 7]), 1)])
    assert train.commonest_words(["one"]).tolist() == [0, 1, 7, 9, 40_000]
