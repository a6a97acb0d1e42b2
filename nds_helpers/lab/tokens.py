"""Generated text as a picture: every token coloured by its fate."""
import matplotlib.pyplot as plt
from matplotlib.patches import Rectangle

FONT = 10.5  # points
COLUMN = 0.602 * FONT / 72  # inches: how wide DejaVu Sans Mono sets a letter
LINE = 0.24  # inches

# (background, text colour, mark under the token): told apart without colour too.
FATES = {
    "prompt": ("#FFFFFF", "#555555", ""),
    "accepted": ("#CDE7F7", "#00334F", "–"),
    "corrected": ("#F9D3BF", "#6B2100", "×"),
    "bonus": ("#CDEBDD", "#00402B", "+"),
    "plain": ("#E0E0E0", "#000000", ""),
}


def token_fates(trace):
    """What became of each committed token.

    Args:
        trace: Trace.

    Returns:
        list of (token id, fate): "accepted", "corrected", "bonus", or "plain"
        where nothing was drafted.
    """
    fates = []
    for r in trace:
        fates += [(token, "accepted") for token in r.tokens[:r.accepted]]
        last = r.kind if r.drafted else "plain"
        fates += [(token, last) for token in r.tokens[r.accepted:]]
    return fates


def page(tokenizer, fates, columns):
    """Lays tokens out on lines of `columns` characters.

    Returns:
        list of (column, line, text, fate). A line break shows as a pilcrow; a
        token that is longer than a line is cut.
    """
    x = y = 0
    pieces = []
    for token, fate in fates:
        *broken, rest = tokenizer.decode([token]).split("\n")
        lines = [part + "¶" for part in broken] + [rest]
        for text in (part for line in lines for part in cut(line, columns)):
            if x + len(text) > columns:
                x, y = 0, y + 1
            pieces.append((x, y, text, fate))
            x, y = (0, y + 1) if text.endswith("¶") else (x + len(text), y)
    return pieces


def cut(text, columns):
    """Parts of at most `columns` characters; none of an empty text."""
    return [text[i:i + columns] for i in range(0, len(text), columns)]


def last_line(pieces):
    """The number of a page's last line, 0 for a page without text."""
    return max((y for _, y, _, _ in pieces), default=0)


def page_size(tokenizer, fates, columns=80):
    """(width, height) in inches that `draw_tokens` needs, legend included."""
    lines = 1 + last_line(page(tokenizer, fates, columns))
    return columns * COLUMN, (lines + 2) * LINE


def draw_tokens(ax, tokenizer, fates, columns=80):
    """Writes tokens one after the other, as a page of monospaced text.

    Args:
        ax: Axes of `page_size` inches (more is fine), taken over whole.
        tokenizer: with `decode(list of ids)`.
        fates: list of (token id, fate), from `token_fates`; prompt tokens may
            stand in front with the fate "prompt".
        columns: characters a line.
    """
    pieces = page(tokenizer, fates, columns)
    for x, y, text, fate in pieces:
        _write(ax, x, y, text, fate)
    legend = 1.5 + last_line(pieces)
    seen = {fate for _, fate in fates}
    for i, fate in enumerate(f for f in FATES if f in seen):
        _write(ax, 13 * i, legend, f" {fate} ", fate)
    size = ax.get_window_extent().size / ax.figure.dpi
    ax.set(xlim=(0, size[0] / COLUMN), ylim=(size[1] / LINE - 0.7, -0.7))
    ax.axis("off")


def tokens_figure(tokenizer, fates, columns=80):
    """A figure of its own for `draw_tokens`, just large enough."""
    figure = plt.figure(figsize=page_size(tokenizer, fates, columns), dpi=100)
    draw_tokens(figure.add_axes((0, 0, 1, 1)), tokenizer, fates, columns)
    return figure


def _write(ax, x, y, text, fate):
    background, colour, mark = FATES[fate]
    ax.add_patch(Rectangle((x + 0.05, y - 0.46), len(text) - 0.1, 0.92, zorder=0,
                           color=background, linewidth=0))
    ax.text(x, y, text.replace("$", r"\$"), family="DejaVu Sans Mono", va="center",
            fontsize=FONT, color=colour)
    ax.text(x + len(text) / 2, y + 0.4, mark, ha="center", va="center", fontsize=7,
            color=colour)
