"""Where the draft runs: every place measured on the same ranks, and which one wins."""
import pandas

from . import sweep


def compare(workers, pair, k=4, temperature=0.7, prompts=sweep.PROMPTS,
            tokens=sweep.TOKENS):
    """Measures the draft at each of its places.

    Args:
        workers: Workers, two or more, that ran `watch.load`.
        pair: the same Pair, here.
        k, temperature: of all runs.
        prompts, tokens: as in `sweep.one`.

    Returns:
        list of records of `sweep.one`, one a place.
    """
    return [sweep.one(sweep.Setting(k, temperature, workers.size, place), workers,
                      pair, prompts, tokens) for place in sweep.PLACEMENTS]


def table(records):
    """The places side by side, plain decoding on the same ranks among them.

    Args:
        records: list of records of `sweep.one`, of the same ranks.

    Returns:
        pandas DataFrame, a row a place, the fastest first: tokens/s; acceptance,
        alpha-hat; ms a round; and what share of it each rank idles. Plain decoding
        has tokens/s only, the best that was measured.
    """
    rows = [{"draft on": "none: plain decoding",
             "tokens/s": 1 / min(r["plain"] for r in records)}]
    for r in records:
        accepted, reached = map(sum, zip(*r["by_position"]))
        rows.append({
            "draft on": r["placement"], "tokens/s": 1 / r["seconds"],
            "acceptance": accepted / reached,
            "ms a round": 1000 * sum(r["phases"][0].values())} | {
            f"rank {n} idles": part["idle"] / sum(part.values())
            for n, part in enumerate(r["phases"])})
    frame = pandas.DataFrame(rows).set_index("draft on")
    return frame.sort_values("tokens/s", ascending=False)
