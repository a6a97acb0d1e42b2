"""Speculative decoding with the target sharded over ranks.

Every rank runs the same loop, `speculative_rounds`. Rank 0 leads: it alone draws
random numbers, and what it drafts and decides is sent to the others, so that no
decision is taken twice and no rank can disagree.
"""
import time

import torch

from ..decoding import Draft, Sampling, verify_tokens
from ..decoding.request import check_count, check_prompt
from ..decoding.sampling import probabilities, uniforms
from ..decoding.speculative import as_policy, speculative_rounds
from ..decoding.trace import collect
from ..decoding.verify import Verdict, at_drafted
from .ahead import Ahead, Elsewhere, facts_of
from .slices import sliced_probabilities
from .verdict import Slices
from .wire import Wire

KINDS = "corrected", "bonus"
SOURCES = "tokens", "here", "rank 0"  # where the draft's probabilities are


def speculative_on_ranks(me, model, drafter, prompt, *, k, max_new_tokens,
                         sampling=None, seed=0, verify=verify_tokens,
                         logits="gathered"):
    """Speculative decoding on all ranks of a group; every rank calls it.

    What is generated is rank 0's to say: its prompt, k, sampling and seed hold on all
    ranks. The result equals `speculative` on one device with the same seed.

    Where the draft runs is decided by what each rank brings:

        rank 0 alone        a drafter on rank 0, None on the others
        on every rank       ModelDrafter(draft) on all
        sharded             ShardedDrafter(shard_model(draft, me.group)) on all
        on a rank of its    the model is None on rank 0, which has the drafter, and
        own, ahead          shard_model(target, team) on the others, where team is
                            me.group.subgroup(range(1, me.size)). While they verify
                            a round, rank 0 drafts the next, on the bet that all of
                            this one is accepted (ahead.py).

    Args:
        me: Rank.
        model: this rank's shard of the target, or None, as above.
        drafter: this rank's drafter, or None, as above.
        prompt: LongTensor[T] or list of ids.
        k: drafted tokens a round, an int or a policy, as in `speculative`.
        max_new_tokens: at most this many.
        sampling: Sampling; temperature 1 by default.
        seed: int, of rank 0's generator.
        verify: verify_tokens or verify_block.
        logits: "gathered" brings the logits of a round to rank 0; "sliced" leaves
            them where they are and exchanges a few numbers (DESIGN: vocabulary
            parallel).

    Returns:
        Result: the same tokens on every rank. The trace's seconds and bytes are this
        rank's own.

    Raises:
        ValueError: a bad request, the same on every rank, before anything runs.
        RankError: (from `Workers.run`) a rank died; error.reports[0] has the tokens
            that were committed, a list for each round.
    """
    return collect(rounds_on_ranks(
        me, model, drafter, prompt, k=k, max_new_tokens=max_new_tokens,
        sampling=sampling, seed=seed, verify=verify, logits=logits))


def rounds_on_ranks(me, model, drafter, prompt, *, k, max_new_tokens, sampling=None,
                    seed=0, verify=verify_tokens, logits="gathered"):
    """The same, as a generator: yields each Round when it is committed."""
    wire = Wire(me.group, me.device)
    model, everyone = placed(wire, model, drafter)
    request = agree(wire, dict(
        k=None if callable(k) else k, max_new_tokens=max_new_tokens, seed=seed,
        logits=logits, **vars(sampling or Sampling())), prompt, model.vocab_size)
    if isinstance(model, Elsewhere):
        drafter = model.ahead = Ahead(
            drafter, model.end_token_ids,
            len(request["prompt"]) + request["max_new_tokens"])
    step = Step(wire, model, request, k, everyone)
    rounds = speculative_rounds(
        model, drafter or Silent(), request["prompt"], k=step.policy,
        max_new_tokens=request["max_new_tokens"],
        sampling=Sampling(*(request[n] for n in ("temperature", "top_k", "top_p"))),
        generator=torch.Generator().manual_seed(request["seed"]),
        verify=verify, step=step)
    return reported(timed(rounds, step, model), me)


def placed(wire, model, drafter):
    """Sees to it that the ranks hold what a generation needs.

    Returns:
        (model, whether every rank drafts): on a rank 0 that has none, the model is
        an Elsewhere.
    """
    brought = torch.tensor([[model is not None, drafter is not None]],
                           dtype=torch.uint8, device=wire.device)
    models, drafters = zip(*wire.group.all_gather(brought, dim=0).tolist())
    if not (all(models[1:]) and (models[0] or drafters[0] and wire.group.size > 1)):
        raise ValueError("every rank needs its shard of the target; only rank 0 may "
                         "have None, where it drafts for the others.")
    if not models[0]:
        facts = wire.share(facts_of(model) if model else None, source=1)
        model = model or Elsewhere(facts, wire.device)
    return model, all(drafters)


def agree(wire, request, prompt, vocab_size):
    """Rank 0's request, on every rank; or its ValueError, on every rank."""
    try:
        request["prompt"] = check_prompt(prompt, vocab_size).tolist()
        if request["logits"] not in ("gathered", "sliced"):
            raise ValueError('logits must be "gathered" or "sliced", not '
                             f"{request['logits']!r}.")
        check_count("max_new_tokens", request["max_new_tokens"])
        check_count("seed", request["seed"])
        if request["k"] is not None:
            check_count("k", request["k"])
    except ValueError as error:
        request = {"error": str(error)}
    request = wire.share(request)
    if "error" in request:
        raise ValueError(request["error"])
    return request


class Silent:
    """The drafter of a rank that waits for rank 0's draft."""

    def reset(self):
        """Nothing is kept."""

    def propose(self, sequence, k, sampling, generator):
        """Nothing is proposed."""
        return Draft(sequence[:0])


class Step:
    """One round on every rank: rank 0's draft, a sharded forward, one verdict.

    Args:
        wire: Wire.
        model: the sharded target.
        request: what `agree` returned.
        k: rank 0's own K, an int or a policy; the others' doesn't count.
        everyone: whether every rank drafts.

    Attributes:
        began, drafted: when the round began, and when its draft was there.
    """

    def __init__(self, wire, model, request, k, everyone):
        self.wire, self.group, self.everyone = wire, wire.group, everyone
        self.sliced = request["logits"] == "sliced"
        self.follows_policy = request["k"] is None
        self.decide = as_policy(k if self.follows_policy else request["k"])
        widths = torch.tensor([len(model.vocabulary)], device=wire.device)
        self.sizes = self.group.all_gather(widths).tolist()

    def policy(self, trace):
        """Rank 0's K for this round. Its trace has its own times, so it decides."""
        self.began = time.perf_counter()
        if self.follows_policy:
            own = self.decide(trace) if self.wire.leads else 0
            self.k = int(self.wire.floats([own], 1)[0])
        else:
            self.k = self.decide(trace)
        return self.k

    def __call__(self, model, cache, ids, draft, sampling, generator, verify):
        """As `verified`: (draft, Verdict, p at the drafted tokens, q there)."""
        self.drafted = time.perf_counter()
        draft, at_q, source = self.relay(draft, ids, sampling)
        if not self.wire.leads:  # a drafter here sees the same numbers as rank 0's
            uniforms(len(draft.tokens) + 1, generator)
        before = cache.length
        window = torch.cat([ids[-1:], draft.tokens])
        try:
            x = model.hidden(window[None], cache)
            local = model.local_logits(x)[0]  # [k+1, W]
            judge = self.by_slices if self.sliced else self.on_rank_0
            verdict, at_p = judge(local, draft, at_q, source, sampling, generator,
                                  verify)
        except BaseException:
            cache.truncate(before)
            raise
        return draft, verdict, at_p, at_q

    def relay(self, draft, ids, sampling):
        """The message of a round: rank 0's draft, on every rank.

        Returns:
            (Draft, q at its tokens, where its probabilities are: one of SOURCES). On
            the other ranks the draft has probabilities only if they drafted the same.
        """
        count, source, at_q = len(draft.tokens), "rank 0", [1.0] * len(draft.tokens)
        if draft.probs is None or sampling.temperature == 0:
            source = "tokens"  # at temperature 0 only the likeliest token can follow
        if draft.probs is not None:
            at_q = draft.probs.gather(1, draft.tokens[:, None])[:, 0].tolist()
        message = [count, SOURCES.index(source), *draft.tokens.tolist(), *at_q]
        message = self.wire.floats(message, 2 + 2 * self.k)
        count, source = int(message[0]), SOURCES[int(message[1])]
        tokens = torch.tensor(message[2:2 + count]).to(ids)
        if source == "rank 0" and self.everyone:
            alike = draft.probs is not None and torch.equal(tokens, draft.tokens)
            if self.wire.count(alike) == self.group.size:
                source = "here"
        return Draft(tokens, draft.probs), message[2 + count:2 + 2 * count], source

    def on_rank_0(self, local, draft, at_q, source, sampling, generator, verify):
        """Logits gathered to rank 0, which verifies and tells the others."""
        logits = self.group.gather(local, dim=-1, sizes=self.sizes)
        answer = []
        if self.wire.leads:
            p = probabilities(logits, sampling)
            verdict = verify(p, draft, generator)
            answer = [verdict.accepted, verdict.next_token, KINDS.index(verdict.kind),
                      *at_drafted(p, draft)[0].tolist()]
        accepted, token, kind, *at_p = self.wire.floats(answer, 3 + len(draft.tokens))
        return Verdict(int(accepted), int(token), KINDS[int(kind)]), at_p

    def by_slices(self, local, draft, at_q, source, sampling, generator, verify):
        """Logits stay in slices; rank 0 decides, the others do their part."""
        start = sum(self.sizes[:self.group.rank])
        p = sliced_probabilities(local, sampling, self.group, start)
        at_q = torch.tensor(at_q, dtype=torch.float64, device=p.device)
        slices = Slices(p, draft, at_q, source, self.group, self.sizes)
        verdict = verify(slices, draft, generator) if self.wire.leads else (
            slices.follow())
        return verdict, slices.at_p.tolist()


def reported(rounds, me):
    """Reports each round's tokens: they are in the RankError if a rank dies."""
    for r in rounds:
        if me.rank == 0:
            me.report(r.tokens)
        yield r


def timed(rounds, step, model):
    """Moves a round's seconds in collectives to `synchronising`, counts its bytes.

    A target in a group of its own has other collectives than the round. What rank 0
    drafts ahead happens while the others verify: it moves to `drafting`.
    """
    groups = {step.group, getattr(model, "group", step.group)}
    while True:
        first = {group: len(group.calls) for group in groups}
        r = next(rounds, None)
        if r is None:
            return
        for call in (call for group in groups for call in group.calls[first[group]:]):
            if call.started < step.began:  # the prompt's, before the first round
                continue
            r.bytes_sent += call.bytes
            r.synchronising += call.seconds
            if call.started < step.drafted:
                r.drafting -= call.seconds
            else:
                r.verifying -= call.seconds
        if isinstance(model, Elsewhere):
            r.drafting += model.seconds
            r.verifying -= model.seconds
        yield r
