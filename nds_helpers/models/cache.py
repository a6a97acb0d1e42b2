"""The KV cache: keys and values of every token that the model has seen."""
import torch


class KVCache:
    """Preallocated keys and values, with a length that can go back.

    A forward writes the new tokens' keys and values behind `length`, layer by
    layer, and moves `length` once, at its end: a forward that fails halfway
    leaves the cache as it was.
    """

    def __init__(self, layers, batch, kv_heads, max_length, head_width,
                 dtype=torch.float32, device="cpu"):
        shape = (layers, 2, batch, kv_heads, max_length, head_width)
        self.store = torch.empty(shape, dtype=dtype, device=device)
        self.max_length = max_length
        self.length = 0

    def open(self, count):
        """Makes ready for `count` more tokens: views of where they go, a layer each.

        Raises:
            ValueError: they don't fit.
        """
        stop = self.length + count
        if stop > self.max_length:
            raise ValueError(
                f"the cache holds at most {self.max_length} tokens, and "
                f"{self.length} + {count} were asked for; make a longer one.")
        flat = self.store.flatten(0, 1)  # keys and values of layer 0, of layer 1, ...
        self.new = flat.narrow(-2, self.length, count).unbind()
        self.seen = flat.narrow(-2, 0, stop).unbind()

    @torch.no_grad()  # what has been cached is a constant to later tokens
    def append(self, layer, keys, values):
        """Writes one layer's new keys and values, after `open`.

        Args:
            layer: index of the layer.
            keys, values: FloatTensor[B, G, T, d] of the new tokens.

        Returns:
            Keys and values of all tokens so far, [B, G, length + T, d] each
            (views, no copy).
        """
        k, v = 2 * layer, 2 * layer + 1
        self.new[k].copy_(keys)
        self.new[v].copy_(values)
        return self.seen[k], self.seen[v]

    def advance(self, count):
        """Counts `count` tokens in, once every layer has written them."""
        self.length += count

    def truncate(self, length):
        """Forgets every token from position `length` on.

        Args:
            length: tokens to keep, 0 <= length <= self.length.

        Raises:
            ValueError: the cache holds fewer tokens than that.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"can't truncate a cache of {self.length} tokens "
                             f"to {length}.")
        self.length = length
