"""Wrong answers to problem set 1: each is a mistake that a real system shipped, or one
that students make. The number of the reported case stands beside it where it is known.
"""
from grading import altered

NAME = "ps1_speculative_sampling"


def wrong(question, *answers):
    """[(what is wrong, source)], from (what is wrong, old, new, old, new, ...)."""
    return [(what, altered(NAME, question, *zip(pieces[::2], pieces[1::2])))
            for what, *pieces in answers]


WRONG = {
    "q1_probabilities": wrong(
        "q1_probabilities",
        ("top-k leaves a row that isn't scaled to 1 again",
         "    ordered /= ordered.sum(-1, keepdim=True)\n    before", "    before",
         "    ordered /= ordered.sum(-1, keepdim=True)\n    return", "    return"),
        ("top-p before top-k's row is a distribution",
         "    ordered /= ordered.sum(-1, keepdim=True)\n    before", "    before"),
        ("no top-k", "if top_k > 0", "if False"),
        ("no top-p", "if top_p < 1", "if False"),
        ("the token that reaches top_p falls",
         "ordered[before >= top_p] = 0", "ordered[before + ordered > top_p] = 0"),
        ("the temperature multiplies", "logits / temperature", "logits * temperature"),
        ("no temperature", "logits / temperature", "logits"),
        ("temperature 0 divides", "if temperature == 0", "if False"),
        ("softmax over the positions", ".softmax(-1)", ".softmax(0)"),
        ("one argmax for all rows", "logits.argmax(-1, keepdim=True)",
         "torch.full((len(logits), 1), int(logits[0].argmax()))"),
    ),
    "q2_draft": wrong(
        "q2_draft",
        ("argmax tokens with the softmax as q, 1",
         "draw(rows[-1], u[i].item())", "int(rows[-1].argmax())"),
        ("q without the top-k that was drawn with, 2",
         "draw(rows[-1], u[i].item())",
         "draw(probabilities(logits, sampling), u[i].item())",
         "rows.append(probabilities(logits, sampling))",
         "rows.append((logits / max(sampling.temperature, 1e-6)).softmax(-1))"),
        ("the draft ignores the temperature, 3",
         "rows.append(probabilities(logits, sampling))",
         "rows.append(logits.softmax(-1))"),
        ("the cache never gets the draft's own last guess, 8",
         "sequence[cache.length:]", "sequence[-1:]"),
        ("the whole text is fed again", "sequence[cache.length:]", "sequence"),
        ("the last guess is fed, too: cache off by one",
         "    return Draft", "    model.forward(feed, cache)\n    return Draft"),
        ("one u for all", "u[i].item()", "u[0].item()"),
    ),
    "q3_leftover": wrong(
        "q3_leftover",
        ("not scaled to 1", "left / left.sum() if", "left if"),
        ("p instead of the leftover", "(p - q).clamp(min=0)", "p"),
        ("absolute values", ".clamp(min=0)", ".abs()"),
        ("q minus p", "(p - q)", "(q - p)"),
        ("nan where nothing is left, 5", " if left.sum() > 0 else p", ""),
        ("looks for p == q only", "left.sum() > 0", "not p.equal(q)"),
        ("softmax over the differences", "left / left.sum() if", "left.softmax(-1) if"),
    ),
    "q4_verdict": wrong(
        "q4_verdict",
        ("u = 0 accepts what p never says", ">= p[i, x]", "> p[i, x]"),
        ("accepts where u lies above", ">= p[i, x]", "<= p[i, x]"),
        ("the bonus from the row before", "draw(p[-1]", "draw(p[max(len(q) - 1, 0)]"),
        ("the replacement from p", "draw(leftover(p[i], q[i])", "draw(p[i]"),
        ("the replacement from the row behind", "leftover(p[i], q[i])",
         "leftover(p[i + 1], q[i])"),
        ("the replacement by the u that was used up", "q[i]), u[-1]", "q[i]), u[i]"),
        ("goes on behind a rejection",
         "            return i, draw(leftover(p[i], q[i]), u[-1].item())",
         "            continue"),
        ("rejects by p alone", "u[i] * q[i, x]", "u[i]"),
        ("always row 0", "u[i] * q[i, x] >= p[i, x]", "u[i] * q[0, x] >= p[0, x]"),
    ),
    "q5_loop": wrong(
        "q5_loop",
        ("an end token inside a run is passed over, 15",
         "            if token in target.end_token_ids:\n"
         "                return sequence[len(prompt):]\n",
         "        if token in target.end_token_ids:\n"
         "            return sequence[len(prompt):]\n"),
        ("only the first end token counts",
         "token in target.end_token_ids", "token in target.end_token_ids[:1]"),
        ("the end token is left out", "            sequence.append(token)\n", "",
         "                return sequence[len(prompt):]\n",
         "                return sequence[len(prompt):]\n"
         "            sequence.append(token)\n"),
        ("the cache keeps one token too many", "len(sequence) - 1)\n    return",
         "len(sequence))\n    return"),
        ("the cache keeps one token too few", "len(sequence) - 1)\n    return",
         "len(sequence) - 2)\n    return"),
        ("no rollback", "        cache.truncate(len(sequence) - 1)\n", ""),
        ("K isn't clamped near the end, 12",
         "min(k, limit - len(sequence) - 1)", "k"),
        ("K isn't clamped, and the text is cut",
         "min(k, limit - len(sequence) - 1)", "k",
         "cache.truncate(len(sequence) - 1)\n    return sequence[len(prompt):]",
         "cache.truncate(len(sequence) - 1)\n    return sequence[len(prompt):limit]"),
        ("K one too large at the end", "len(sequence) - 1)\n        text",
         "len(sequence))\n        text"),
        ("the last token of the prompt is fed twice, 9",
         "prompt[:-1]), cache", "prompt), cache"),
        ("the first token is committed twice, 9",
         "    drafter.reset()\n",
         "    drafter.reset()\n"
         "    sequence.append(prompt[-1])\n"),
        ("the bonus or corrected token is dropped",
         "in run + [ruling.next_token]", "in run or [ruling.next_token]"),
        ("a second forward to finish a round",
         "        cache.truncate(len(sequence) - 1)\n",
         "        cache.truncate(len(sequence) - 2)\n"
         "        target.forward(torch.tensor(sequence[-2:-1]), cache)\n"),
        ("verify sees probabilities without the sampling, 7",
         "p = probabilities(target.forward(window, cache), sampling)",
         "p = target.forward(window, cache).softmax(-1)"),
        ("the drafter isn't reset, 19", "    drafter.reset()\n", ""),
        ("plain decoding, no guess used",
         "run = draft.tokens[:ruling.accepted].tolist()", "run = []"),
        ("takes K guesses for granted", "torch.cat([text[-1:], draft.tokens])",
         "torch.cat([text[-1:], draft.tokens[:asked], draft.tokens.new_zeros(\n"
         "            asked - len(draft.tokens))])"),
        ("returns the prompt, too",
         "cache.truncate(len(sequence) - 1)\n    return sequence[len(prompt):]",
         "cache.truncate(len(sequence) - 1)\n    return sequence"),
    ),
    "q6_tokens": wrong(
        "q6_tokens",
        ("no bonus", "range(k + 1)", "range(k)"),
        ("one guess too many", "range(k + 1)", "range(k + 2)"),
        ("divides by zero at alpha = 1",
         "float(sum(alpha ** i for i in range(k + 1)))",
         "(1 - alpha ** (k + 1)) / (1 - alpha)"),
        ("every guess counts by itself",
         "float(sum(alpha ** i for i in range(k + 1)))", "1 + k * alpha"),
    ),
    "q7_fastest": wrong(
        "q7_fastest",
        ("the draft costs nothing", "(k * c + 1)", "1"),
        ("the target costs nothing", "(k * c + 1)", "(k * c + 1e-9)"),
        ("K = 0 isn't tried", "range(limit + 1)", "range(1, limit + 1)"),
        ("the limit isn't tried", "range(limit + 1)", "range(limit)"),
        ("one draft step too many", "(k * c + 1)", "((k + 1) * c + 1)"),
    ),
}
