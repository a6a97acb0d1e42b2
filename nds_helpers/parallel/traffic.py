"""How much the ranks of a sharded decoder send: the formula that their counts meet."""
from .layers import AllReduce
from .partitions import split_evenly


def traffic(config, size, tokens, scheme="all-reduce", itemsize=4):
    """Collectives and bytes of one forward, logits included, on every rank.

    A sum over ranks ends the embedding, every attention and every MLP: with L layers
    1 + 2 L sums of n = tokens * D numbers. A ring cuts them into one piece a rank, as
    evenly as it can, and rank r sends

        reduce_scatter   n - piece[r]
        all_gather       n - piece[r + 1]
        all_reduce       one after the other: 2 n - piece[r] - piece[r + 1]

    which is 2 (size - 1) / size * n for the pair. "all-reduce" cuts between any two
    numbers, "sequence" between the rows of D numbers. In "sequence" the last norm is
    followed by a gather too, so that there are as many gathers as sums. Both end with
    an all_gather of the logits, tokens * V numbers.

    Args:
        config: ModelConfig of the whole model; all its V words have logits.
        size: int, how many ranks.
        tokens: int, rows of the stream, B * T.
        scheme: "all-reduce" or "sequence".
        itemsize: int, bytes of a number.

    Returns:
        list, one dict a rank: operation -> (calls, bytes).
    """
    sums, numbers = 1 + 2 * config.layers, tokens * config.width
    words = [tokens * len(part) for part in split_evenly(config.vocab_size, size)]
    rows = [config.width * len(part) for part in split_evenly(tokens, size)]
    pieces = [len(part) for part in split_evenly(numbers, size)]
    found = []
    for rank in range(size):
        following = (rank + 1) % size
        logits = (sum(words) - words[following]) * itemsize
        if scheme == AllReduce.name:
            sent = 2 * numbers - pieces[rank] - pieces[following]
            found.append({"all_reduce": (sums, sums * sent * itemsize),
                          "all_gather": (1, logits)})
        else:
            scattered = sums * (numbers - rows[rank]) * itemsize
            gathered = sums * (numbers - rows[following]) * itemsize
            found.append({"reduce_scatter": (sums, scattered),
                          "all_gather": (sums + 1, gathered + logits)})
    return found
