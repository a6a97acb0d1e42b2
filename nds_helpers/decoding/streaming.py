"""Text as it comes: rounds in, pieces of text out."""


def stream_text(tokenizer, rounds):
    """Turns an iterator of rounds into an iterator of text pieces.

    Args:
        tokenizer: with `decode(list of ids)`.
        rounds: from `speculative_rounds` or `autoregressive_rounds`.

    Yields:
        str, the new text of each round. A character whose bytes are split
        between tokens is held back until it is whole.
    """
    ids, shown = [], 0
    for r in rounds:
        ids += r.tokens
        text = tokenizer.decode(ids)
        whole = text.rstrip("\ufffd")
        if len(whole) > shown:
            yield whole[shown:]
            shown = len(whole)
    rest = tokenizer.decode(ids)[shown:] if ids else ""
    if rest:
        yield rest
