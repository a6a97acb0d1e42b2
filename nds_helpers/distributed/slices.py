"""Probabilities that lie in slices of the vocabulary, one slice a rank.

Every rank holds the logits of its own ids. What a row needs as a whole (the
normaliser, the likeliest tokens, sums) is exchanged as a few numbers; the slices
themselves stay where they are.

Shapes: R rows, W words of this rank's slice, n ranks.
"""
import math

import torch

from ..decoding.sampling import keep_top_k, keep_top_p

FIRST_GUESS = 64  # candidates a rank, where the nucleus has an unknown size


def sliced_probabilities(logits, sampling, group, start):
    """This rank's slice of `probabilities(whole logits, sampling)`.

    Args:
        logits: FloatTensor[R, W], this rank's slice; W may be 0.
        sampling: Sampling.
        group: Group of the ranks that hold the slices, in the order of the ids.
        start: the first id of this slice.

    Returns:
        FloatTensor[R, W], float32 (float64 stays float64). Over all ranks every row
        sums to 1.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if sampling.temperature == 0:
        return one_hot_slice(logits, group, start)
    logits = scaled(logits, sampling.temperature, group)
    if sampling.top_k > 0:
        values, ids = candidates(logits, sampling.top_k, group, start)
        # A row of candidates is a small vocabulary: the same rules apply to it.
        p = keep_top_k(values, sampling.top_k).softmax(-1)
        p = keep_top_p(p, sampling.top_p) if sampling.top_p < 1 else p
        return place(p, ids, logits, start)
    p = logits.exp()
    sums = group.all_gather(p.sum(-1, keepdim=True))  # [R, n]
    p = p / sums.sum(-1, keepdim=True)
    return nucleus_slice(p, sampling.top_p, group, start) if sampling.top_p < 1 else p


def scaled(logits, temperature, group):
    """(logits - the row's largest) / temperature, as `probabilities` does it."""
    if logits.shape[1]:
        top = logits.amax(-1, keepdim=True)
    else:
        top = logits.new_full((len(logits), 1), -math.inf)
    top = group.all_gather(top).amax(-1, keepdim=True)
    return (logits - top) / max(temperature, torch.finfo(logits.dtype).tiny)


def one_hot_slice(logits, group, start):
    """Greedy: 1 where the likeliest of all ids is in this slice, 0 elsewhere."""
    values, ids = candidates(logits, 1, group, start)  # [R, n], in the order of ids
    best = values.max(-1, keepdim=True)  # of equal ones the first, the lowest id
    one = 1 + 0 * best.values  # nan where the logits aren't finite
    return place(one, ids.gather(1, best.indices), logits, start)


def candidates(p, count, group, start):
    """The `count` largest entries of each rank's slice, on every rank.

    Returns:
        (values: FloatTensor[R, n * count], ids: LongTensor[R, n * count]), rank by
        rank, largest first, of equal ones the lowest id first. Places that a short
        slice can't fill have the value -inf and the id -1.
    """
    order = p.sort(dim=-1, descending=True, stable=True)
    missing = max(count - p.shape[1], 0)
    values = torch.nn.functional.pad(order.values[:, :count], (0, missing),
                                     value=-math.inf)
    ids = torch.nn.functional.pad(order.indices[:, :count] + start, (0, missing),
                                  value=-1)
    return group.all_gather(values), group.all_gather(ids)


def nucleus_slice(p, top_p, group, start):
    """This rank's slice of `keep_top_p(whole p, top_p)`.

    Each rank sends its likeliest tokens; where they don't reach far enough to be
    sure, four times as many. All ranks see the same numbers, so all ask again or none.
    """
    count = FIRST_GUESS
    while True:
        values, ids = candidates(p, count, group, start)
        kept = keep_top_p(values.clamp(min=0), top_p)
        # What a rank has not sent is at most its last value: no such token may matter.
        last = values.view(len(p), group.size, count)[..., -1]
        if not ((kept > 0) & (values <= last.amax(-1, keepdim=True))).any():
            return place(kept, ids, p, start)
        count *= 4


def place(values, ids, like, start):
    """Writes values at those of the ids that are in this slice: FloatTensor[R, W]."""
    width = like.shape[1]
    local = ids - start
    mine = (local >= 0) & (local < width) & (ids >= 0)
    out = like.new_zeros(len(like), width + 1)  # the last column takes the others
    out.scatter_(1, torch.where(mine, local, width), values.to(out.dtype))
    return out[:, :width]
