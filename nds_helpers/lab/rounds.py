"""Rounds at temperature 0, and as pictures: who judges what, and what is committed."""
from ..decoding import Round
from .plots import PALETTE
from .tokens import FATES

# colour, hatch and label of each part of a round's column, from the bottom up
PARTS = {
    "accepted": (PALETTE[5], "", "accepted guess"),
    "corrected": (PALETTE[1], "//", "corrected"),
    "bonus": (PALETTE[3], "..", "bonus"),
    "thrown": ("#FFFFFF", "", "guess thrown away"),
}


def settle(guesses, choices, end_tokens):
    """What a round at temperature 0 commits.

    Args:
        guesses: list of K ids, from the draft.
        choices: list of K+1 ids, the target's choice in each row.
        end_tokens: ids that end a text; such a token is the last of its round.

    Returns:
        Round without p and q.
    """
    accepted, kind = 0, "bonus"
    for guessed, chosen in zip(guesses, choices):
        if guessed != chosen:
            kind = "corrected"
            break
        accepted += 1
        if guessed in end_tokens:
            kind = "ended"
            break
    last = [] if kind == "ended" else [choices[accepted]]
    return Round(k=len(guesses), guesses=guesses, accepted=accepted, kind=kind,
                 tokens=guesses[:accepted] + last, p=[], q=[])


def draw_rounds(ax, rounds):
    """One column a round: what it committed, with the lost guesses on top.

    Args:
        ax: Axes.
        rounds: list of Round, a Trace for example; without any, the page is empty.
    """
    if not rounds:
        ax.axis("off")
        return
    for name, (color, hatch, label) in PARTS.items():
        bottoms, heights = zip(*(_part(r, name) for r in rounds))
        edge = "#999999" if name == "thrown" else "#222222"
        ax.bar(range(1, len(rounds) + 1), heights, 0.8, bottoms, label=label,
               color=color, hatch=hatch, edgecolor=edge, linewidth=0.8,
               linestyle="--" if name == "thrown" else "-")
    ax.set(xlabel="round (one target forward each)", ylabel="tokens",
           xlim=(0.3, len(rounds) + 0.7))
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_major_locator().set_params(integer=True)
    ax.xaxis.grid(False)
    ax.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(0, 1),
              fontsize=11, handlelength=1.4, columnspacing=1.2)


def _part(r, name):
    """(bottom, height) of one part of a round's column."""
    committed = len(r.tokens)
    return {
        "accepted": (0, r.accepted),
        "corrected": (r.accepted, (committed - r.accepted) * (r.kind == "corrected")),
        "bonus": (r.accepted, (committed - r.accepted) * (r.kind == "bonus")),
        "thrown": (committed, r.drafted - r.accepted),
    }[name]


def draw_alignment(ax, fed, chosen):
    """The window that the target reads, and which of its rows judges which guess.

    Args:
        ax: Axes, taken over whole.
        fed: list of K+1 strings, the last committed token and then the guesses.
        chosen: list of K+1 strings, the target's own choice after each of them.
    """
    agreeing = [a == b for a, b in zip(fed[1:], chosen)] + [False]
    accepted = agreeing.index(False)
    last = "bonus" if accepted + 1 == len(fed) else "corrected"
    for i, (above, below) in enumerate(zip(fed, chosen)):
        live = i <= accepted  # a later row has read a guess that was wrong
        ink = "#222222" if live else "#AAAAAA"
        _box(ax, i, 1, above, ink, "#EEEEEE" if i == 0 else "#FFFFFF")
        used = "accepted" if i < accepted else last
        _box(ax, i, 0, below, ink, FATES[used][0] if live else "#FFFFFF")
        ax.annotate("", (i, 0.22), (i, 0.78),
                    arrowprops=dict(arrowstyle="->", color=ink, linewidth=1.8))
        ax.text(i - 0.05, 0.5, f"row {i}", color=ink, ha="right", va="center")
        if i + 1 < len(fed):
            mark = "" if not live else "=" if agreeing[i] else "≠"
            ax.plot([i + 0.3, i + 0.7], [0.24, 0.76], ":", color=ink, linewidth=1.4)
            ax.text(i + 0.52, 0.5, mark, color=ink, ha="center", va="center",
                    fontsize=20,
                    bbox=dict(facecolor="white", edgecolor="none", pad=0.5))
    ax.text(-0.55, 1, "fed", ha="right", va="center")
    ax.text(-0.55, 0, "target's\nchoice", ha="right", va="center")
    ax.set(xlim=(-1.05, len(fed) - 0.45), ylim=(-0.4, 1.4))
    ax.axis("off")


def _box(ax, x, y, text, ink, background):
    ax.text(x, y, text.replace("$", r"\$"), ha="center", va="center", color=ink,
            family="DejaVu Sans Mono", fontsize=12,
            bbox=dict(boxstyle="round,pad=0.5", facecolor=background, edgecolor=ink))
