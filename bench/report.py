"""The bench's figures as a page: what was wanted, then every row."""

LIMIT = 0.15  # how far the formula may lie from the measurement


def wanted(results, threads):
    """The wanted figures beside the real ones.

    Args:
        results: dict with `rows` and `best_k`.
        threads: torch's default number, at which they are judged.

    Returns:
        list of dicts: what, wanted, figure, shown, met.
    """
    k = results["best_k"]
    lines = [
        reached("plain decoding over transformers generate, greedy", 2.0, results,
                threads, "plain", "transformers generate"),
        reached(f"speculative decoding, K {k}, over our plain decoding, greedy", 1.4,
                results, threads, "speculative", "plain"),
        reached(f"speculative decoding over transformers assisted, both K {k}, greedy",
                2.0, results, threads, "speculative", f"assisted, K {k}"),
    ]
    worst = max((r for r in results["rows"] if "off" in r), key=lambda r: abs(r["off"]))
    lines.append({
        "what": "the formula's speedup against the measured one, every K",
        "wanted": f"within {LIMIT:.0%}", "figure": worst["off"],
        "shown": f"{worst['off']:+.0%} at worst ({first(worst)}, temperature "
                 f"{worst['temperature']:g})", "met": abs(worst["off"]) <= LIMIT})
    return lines


def reached(what, least, results, threads, first_side, second_side):
    """One wanted ratio of a duel, judged at torch's default number of threads."""
    found = {r["threads"]: r["ratio"] for r in results["rows"]
             if r["table"] == "duel" and r["temperature"] == 0
             and first(r).startswith(first_side) and second(r).endswith(second_side)}
    shown = "; ".join(f"{times(ratio)} with {plural(n, 'thread')}"
                      for n, ratio in found.items())
    figure = found[threads]["median"]
    return {"what": what, "wanted": f"at least {least}x", "figure": figure,
            "shown": shown, "met": figure >= least}


def page(results, more):
    """The whole page, in Markdown; `more`: title -> table, what comes at its end."""
    size, facts = results["size"], results["machine"]
    parts = [
        "# Speeds of this machine",
        "Written by `make bench`; `bench/README.md` says how to read it. "
        + ("**A quick run: it shows that the bench works, not how fast anything is.** "
           if results["quick"] else "")
        + f"Medians over {size['prompts']} prompts of {size['given']} tokens, middle "
        f"half in brackets; {results['minutes']} minutes in all.",
        table(["", ""], facts.items()),
        "## Wanted",
        table(["what", "wanted", "measured", ""],
              [(w["what"], w["wanted"], w["shown"],
                "met" if w["met"] else "**not met**") for w in results["wanted"]]),
        threads(results),
        f"## Side by side, {size['duel_tokens']} tokens, K {results['best_k']}",
        table(["temperature", "threads", "this", "ms a token", "against", "ms a token",
               "faster by", "same text"], map(duel, rows(results, "duel"))),
        f"## Every K against plain decoding, {size['sweep_tokens']} tokens",
        table(["temperature", "drafter and verifier, K", "ms a token", "plain",
               "speedup", "formula", "off by", "acceptance rate", "committed a round",
               "t(1)", "t(K+1)", "t_draft"], map(sweep, rows(results, "sweep"))),
        "Step times are in milliseconds. Where the speedup is below 1, speculation "
        "loses on this machine.",
        *(part for title, text in more.items() for part in (f"## {title}", text)),
    ]
    return "\n\n".join(parts) + "\n"


def threads(results):
    """Which number of threads is faster for our own decoding, in one line."""
    known = {}  # decoding -> {threads: milliseconds a token}
    for r in rows(results, "duel"):
        if r["temperature"] == 0:
            speed = r["sides"][first(r)]["median"]
            known.setdefault(first(r).split(",")[0], {})[r["threads"]] = speed
    said = []
    for name, speeds in known.items():
        figures = ", ".join(f"{ms:.2f} ms with {plural(n, 'thread')}"
                            for n, ms in speeds.items())
        best = min(speeds, key=speeds.get)
        said.append(f"{name} decoding takes {figures}: {plural(best, 'thread')}"
                    + (" only" if len(speeds) == 1 else f" {verb(best)} faster"))
    return "Threads, a token: " + "; ".join(said) + "."


def duel(r):
    """One line of the table that compares with transformers."""
    alike = f"{r['same_texts']} of {r['texts']}" if r["temperature"] == 0 else ""
    return (f"{r['temperature']:g}", r["threads"], first(r), spread(r, first(r)),
            second(r), spread(r, second(r)), times(r["ratio"]), alike)


def sweep(r):
    """One line of the table over K."""
    costs = r.get("costs", {})
    return (f"{r['temperature']:g}", first(r), spread(r, first(r)),
            spread(r, second(r)), times(r["ratio"]),
            f"{r['predicted']['median']:.2f}x" if costs else "",
            f"{r['off']:+.0%}" if costs else "", f"{r['acceptance_rate']:.2f}",
            f"{r['committed_per_round']:.2f}",
            *(f"{costs[name]:.2f}" if costs else ""
              for name in ("t_one", "t_wide", "t_draft")))


def rows(results, name):
    """The rows of one table."""
    return [r for r in results["rows"] if r["table"] == name]


def first(r):
    """Name of a row's first side."""
    return list(r["sides"])[0]


def second(r):
    """Name of the side that the first one is compared with."""
    return list(r["sides"])[1]


def spread(r, name):
    """A side's milliseconds a token: median (middle half)."""
    found = r["sides"][name]
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def times(ratio):
    """A ratio: median (middle half)."""
    return f"{ratio['median']:.2f}x ({ratio['low']:.2f} to {ratio['high']:.2f})"


def plural(count, name):
    """1 thread, 2 threads."""
    return f"{count} {name}" + "s" * (count != 1)


def verb(count):
    """1 thread is, 2 threads are."""
    return "is" if count == 1 else "are"


def table(head, lines):
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
