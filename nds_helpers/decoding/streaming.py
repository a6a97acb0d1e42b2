"""Text as it comes: rounds in, pieces of text out."""


def stream_text(tokenizer, rounds):
    """Turns an iterator of rounds into an iterator of text pieces.

    Args:
        tokenizer: with `decode(list of ids)`.
        rounds: from `speculative_rounds` or `autoregressive_rounds`.

    Yields:
        str, the new text of each round, as it continues the prompt. A
        character whose bytes are split between tokens is held back until it
        is whole.
    """
    ids, shown = [], 0
    for r in rounds:
        ids += r.tokens
        text = continuation(tokenizer, ids)
        whole = text.rstrip("\ufffd")
        if len(whole) > shown:
            yield whole[shown:]
            shown = len(whole)
    rest = continuation(tokenizer, ids)[shown:] if ids else ""
    if rest:
        yield rest


def continuation(tokenizer, ids):
    """The text of `ids` behind other text, its first space included.

    Decoders of the SentencePiece kind drop a space at the start of a text, so
    the first token is decoded once more in front, and that text cut off.
    """
    first = tokenizer.decode(ids[:1])
    if "\ufffd" in first:  # part of a character: not a space, nor a good neighbour
        return tokenizer.decode(ids)
    return tokenizer.decode(ids[:1] + ids)[len(first):]
