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
        self.layers = [pair.unbind() for pair in self.store]  # views: (keys, values)
        self.max_length = max_length
        self.length = 0

    def room_for(self, count):
        """Raises ValueError unless `count` more tokens fit."""
        if self.length + count > self.max_length:
            raise ValueError(
                f"the cache holds at most {self.max_length} tokens, and "
                f"{self.length} + {count} were asked for; make a longer one.")

    @torch.no_grad()  # what has been cached is a constant to later tokens
    def append(self, layer, keys, values):
        """Writes one layer's new keys and values.

        Args:
            layer: index of the layer.
            keys, values: FloatTensor[B, G, T, d] of the new tokens.

        Returns:
            Keys and values of all tokens so far, [B, G, length + T, d] each
            (views, no copy).
        """
        count = keys.shape[2]
        k, v = self.layers[layer]
        k.narrow(2, self.length, count).copy_(keys)
        v.narrow(2, self.length, count).copy_(values)
        stop = self.length + count
        return k.narrow(2, 0, stop), v.narrow(2, 0, stop)

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
