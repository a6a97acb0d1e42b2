"""Small messages between ranks."""
import json

import torch


class Wire:
    """Small messages from one rank to the others; mostly it is rank 0."""

    def __init__(self, group, device):
        self.group, self.device = group, device

    @property
    def leads(self):
        """Whether this is rank 0."""
        return self.group.rank == 0

    def floats(self, values, count, source=0):
        """A rank's numbers, at most `count`, on all: list of `count` floats."""
        message = torch.zeros(count, dtype=torch.float64)
        if self.group.rank == source:
            message[:len(values)] = torch.tensor(values, dtype=torch.float64)
        return self.group.broadcast(message.to(self.device), source).tolist()

    def count(self, yes):
        """On how many ranks `yes` is true."""
        return int(self.group.all_reduce(torch.tensor(int(yes), device=self.device)))

    def share(self, thing, source=0):
        """What a rank has, anything that JSON can hold, on every rank."""
        text = torch.tensor(list(json.dumps(thing).encode()), dtype=torch.uint8)
        length = int(self.floats([len(text)], 1, source)[0])
        if self.group.rank != source:
            text = torch.zeros(length, dtype=torch.uint8)
        text = self.group.broadcast(text.to(self.device), source)
        return json.loads(bytes(text.tolist()))
