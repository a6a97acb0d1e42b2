"""Step 1 of the draft for SmolLM2: the target writes the text that the draft learns.

Shard after shard goes to samples/ beside this script, some ROWS answers each: they take
hours, and so they are kept beside what was learnt from them. The same command goes on
where it was stopped: a shard follows from its number and the shards before it.
Half of the questions come from prompts.py, a quarter are about a passage of an earlier
answer (summarise, correct, translate it), and a quarter are made up by the target
itself (Xu et al. 2024, "Magpie").
"""
import argparse
import random
import time

import numpy as np
import torch
from prompts import OPENERS, entries, question

from nds_helpers.decoding import Sampling, probabilities
from nds_helpers.models import load_model, smollm2
from nds_helpers.models.pairs import DATA, load_tokenizer

SAMPLES = DATA / "make_smollm2" / "samples"
WORK = DATA / "work" / "smollm2"  # what can be made again from the samples
SEED, ROWS = 0, 96
LENGTH, ANSWER = 384, 256  # tokens of a text at most, and of the answer in it
PASSAGE = 40, 160  # tokens of an earlier answer that a question is about
TEMPERATURES = 1.0, 0.8, 1.0, 0.6, 1.0, 0.3  # of one shard after the other
KINDS = "chat", "own", "text", "chat", "story", "own", "text", "code"


class Sampler:
    """The target, and the questions that it is asked.

    Attributes:
        head, tail: lists of ids, what stands before and behind a question.
    """

    def __init__(self):
        folder = smollm2.fetch()
        self.model = load_model(folder)
        self.tokenizer = load_tokenizer(folder)
        self.end, = self.model.end_token_ids
        nothing = self.tokenizer.apply_chat_template(
            [dict(role="user", content="")], add_generation_prompt=True, tokenize=False)
        end = self.tokenizer.eos_token
        head, _, tail = nothing.rpartition(end)
        self.head, self.tail = self.encode(head), self.encode(end + tail)

    def encode(self, text):
        """Text to a list of ids."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def asked(self, kind, passages, g):
        """One question, a list of ids: whole, or its first word for the kind "own"."""
        if kind == "own":
            return self.head + self.encode(g.choice(entries(OPENERS)))
        ids = self.encode(question(kind, g))
        if kind == "text":
            passage = g.choice(passages)
            start = g.randrange(max(1, len(passage) - PASSAGE[0]))
            passage = passage[start:start + g.randint(*PASSAGE)]
            ids += self.encode("\n\n") + passage
        return self.head + ids + self.tail

    @torch.inference_mode()
    def answers(self, questions, own, sampling, generator):
        """Writes the rest of many texts at once.

        Shorter questions wait for the longer ones: each position is given in some
        rows and drawn in others, so that every row has its own text and nothing else
        in its cache.

        Args:
            questions: list of lists of ids, shorter than LENGTH.
            own: whether the target ends the question before it answers.
            sampling: Sampling.
            generator: torch.Generator.

        Returns:
            list of (ids: LongTensor[n], given: int, where the answer starts).
        """
        ids = torch.zeros(len(questions), LENGTH, dtype=torch.long)
        for row, question_ids in zip(ids, questions):
            row[:len(question_ids)] = torch.tensor(question_ids)
        given = torch.tensor([len(q) for q in questions])
        asking = torch.full_like(given, own, dtype=torch.bool)
        writing = torch.ones_like(asking)
        cache = self.model.new_cache(LENGTH, len(ids))
        written, feed = [], ids[:, :given.min()]
        for t in range(int(given.min()), LENGTH):
            drawn = draw_rows(self.next(feed, cache, sampling), generator)
            free = t >= given
            feed = torch.where(free, drawn, ids[:, t])[:, None]
            ids[:, t] = feed[:, 0]
            ended = free & (feed[:, 0] == self.end)
            for row in (ended & asking).nonzero()[:, 0].tolist():
                self.close_question(ids[row], t)
                given[row] = t + len(self.tail)
            over = (ended & ~asking) | (t + 1 >= (given + ANSWER).clamp(max=LENGTH))
            asking &= ~ended
            for row in (over & writing & ~asking).nonzero()[:, 0].tolist():
                written.append((ids[row, :t + 1].clone(), int(given[row])))
            writing &= ~over
            if not writing.any():
                break
            if writing.sum() <= len(ids) / 2:  # those that are done cost no more time
                cache.store = cache.store[:, :, writing]
                ids, feed, given, asking, writing = (
                    x[writing] for x in (ids, feed, given, asking, writing))
        return written

    def next(self, feed, cache, sampling):
        """Probabilities of the next token of each row: [B, T] -> [B, V]."""
        last = self.model.hidden(feed, cache)[:, -1:]
        return probabilities(self.model.logits(last)[:, 0], sampling)

    def close_question(self, row, t):
        """Gives what follows a question whose end token is at position t of a row."""
        tail = torch.tensor(self.tail)[:LENGTH - t]
        row[t:t + len(tail)] = tail


def draw_rows(weights, generator):
    """One token a row by inverting the cumulative sums: FloatTensor[B, V] -> [B].

    For a large vocabulary it is quicker than torch.multinomial, which takes a random
    number for every word.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    u = torch.rand(len(weights), 1, generator=generator, dtype=torch.float64)
    drawn = torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True)
    return drawn[:, 0].clamp(max=weights.shape[-1] - 1)


def shard_path(index):
    """Where a shard lies."""
    return SAMPLES / f"{index:05d}.npz"


def shards():
    """The shards that are there, in order: list of paths."""
    return sorted(SAMPLES.glob("[0-9]" * 5 + ".npz"))


def texts(path):
    """The texts of a shard: list of (ids: LongTensor[n], where the answer starts)."""
    with np.load(path) as shard:
        ids = torch.from_numpy(shard["ids"].astype(np.int64))
        parts = ids.split(shard["lengths"].tolist())
        return list(zip(parts, shard["given"].tolist()))


def save(path, written, **settings):
    """Writes a shard, all of it or nothing."""
    ids = torch.cat([ids for ids, _ in written]).numpy().astype(np.uint16)
    part = path.with_suffix(".part")
    with open(part, "wb") as stream:
        np.savez_compressed(stream, ids=ids, lengths=[len(ids) for ids, _ in written],
                 given=[given for _, given in written], **settings)
    part.replace(path)


def answer_tokens(written):
    """How many tokens of a shard are answers."""
    return sum(len(ids) - given for ids, given in written)


def make(sampler, index):
    """Writes shard number `index`; returns its tokens."""
    kind = KINDS[index % len(KINDS)]
    temperature = TEMPERATURES[index % len(TEMPERATURES)]
    g = random.Random(f"{SEED} {index}")
    passages = []
    if kind == "text":
        earlier = texts(shard_path(g.randrange(index)))
        passages = [ids[given:-1].tolist() for ids, given in earlier]
        passages = [p for p in passages if len(p) >= PASSAGE[0]]
    if kind == "text" and not passages:
        kind = "chat"
    questions = [sampler.asked(kind, passages, g) for _ in range(ROWS)]
    seed = g.getrandbits(63)
    written = sampler.answers(questions, kind == "own", Sampling(temperature),
                              torch.Generator().manual_seed(seed))
    save(shard_path(index), written, seed=seed, temperature=temperature, kind=kind)
    return answer_tokens(written)


def main():
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("--tokens", type=int, default=1_000_000)
    wanted = parse.parse_args().tokens
    SAMPLES.mkdir(parents=True, exist_ok=True)
    sampler = Sampler()
    index = total = 0
    while total < wanted:
        began = time.perf_counter()
        if shard_path(index).exists():
            total += answer_tokens(texts(shard_path(index)))
        else:
            count = make(sampler, index)
            total += count
            speed = count / (time.perf_counter() - began)
            print(f"shard {index}: {count:,} tokens, {total:,} in all, "
                  f"{speed:.0f} tokens/s", flush=True)
        index += 1


if __name__ == "__main__":
    main()
