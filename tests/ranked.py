"""A table of logits whose vocabulary lies in slices, one a rank."""
from helpers import TableModel, random_rule


class SlicedTable(TableModel):
    """A TableModel that shows each rank its slice of the logits only."""

    def __init__(self, rank, size, seed=1, vocab_size=5, **settings):
        super().__init__(random_rule(seed, vocab_size), vocab_size, **settings)
        edges = [vocab_size * r // size for r in range(size + 1)]
        self.vocabulary = range(edges[rank], edges[rank + 1])

    def hidden(self, tokens, cache):
        return self.forward(tokens[0], cache)[None]  # [1, T, V], nobody's business

    def local_logits(self, x):
        return x[..., self.vocabulary.start:self.vocabulary.stop]
