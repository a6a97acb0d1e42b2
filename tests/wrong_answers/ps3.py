"""Wrong answers to problem set 3: each is a mistake that a real system shipped, or one
that students make. The number of the reported case stands beside it where it is known.
"""
from grading import wrong

NAME = "ps3_distributed_verification"

WRONG = {question: wrong(NAME, question, *answers) for question, answers in {
    "q1_argmax": [
        ("no offset of the slice", "places.double() + start", "places.double()"),
        ("each rank decides alone", "group.all_gather(best[None], dim=0)",
         "best[None]"),
        ("only rank 0 knows", ".all_gather(", ".gather("),
        ("brings whole slices together", "    best = torch.full(",
         "    sizes = group.all_gather(torch.tensor([logits.shape[1]])).tolist()\n"
         "    return group.all_gather(logits, -1, sizes).argmax(-1)\n"
         "    best = torch.full("),
        ("no words count as the logit 0", "-torch.inf", "0.0"),
        ("a rank without words stays away", "    best = torch.full(",
         "    if not logits.shape[1]:\n"
         "        return torch.zeros(len(logits), dtype=torch.long)\n"
         "    best = torch.full("),
        ("a rank without words isn't foreseen", "if logits.shape[1]:", "if True:"),
        ("of equal logits the highest rank", "everyone[..., 0].argmax(0)",
         "len(everyone) - 1 - everyone[..., 0].flip(0).argmax(0)"),
        ("of equal logits the last of a slice", "values, places = logits.max(-1)",
         "values, last = logits.max(-1).values, logits.shape[1] - 1\n"
         "        places = last - logits.flip(-1).argmax(-1)"),
        ("gathered in the wrong order", "dim=0)  #", "dim=0).flip(0)  #"),
        ("ids in 16 bits", "best[None]", "best[None].bfloat16()"),
    ],
    "q2_loop": [
        ("K isn't clamped near the end", "min(k, full - len(ids) - 1)", "k"),
        ("K is clamped one too late", "full - len(ids) - 1", "full - len(ids)"),
        ("end tokens are ignored", "if token in shard.end_token_ids", "if False"),
        ("an end token inside the run is ignored", "if token in shard.end_token_ids",
         "if len(ids) and token == choices[accepted] in shard.end_token_ids"),
        ("only the first end token counts", "token in shard.end_token_ids",
         "token in shard.end_token_ids[:1]"),
        ("the end token is left out", "            ids.append(token)\n"
         "            if token in shard.end_token_ids:\n"
         "                return ids[len(prompt):]\n",
         "            if token in shard.end_token_ids:\n"
         "                return ids[len(prompt):]\n            ids.append(token)\n"),
        ("the cache keeps one too many", "truncate(len(ids) - 1)",
         "truncate(len(ids))"),
        ("the cache keeps one too few", "truncate(len(ids) - 1)",
         "truncate(len(ids) - 2)"),
        ("only rank 0 goes back", "        cache.truncate",
         "        if me.rank == 0:\n            cache.truncate"),
        ("nobody goes back", "        cache.truncate(len(ids) - 1)\n", ""),
        ("the bonus row, wherever the run ends", "choices[:accepted + 1]",
         "guesses[:accepted] + choices[-1:]"),
        ("the row before", "choices[:accepted + 1]",
         "guesses[:accepted] + choices[max(accepted - 1, 0):][:1]"),
        ("no bonus", "choices[:accepted + 1]",
         "choices[:max(1, min(accepted + 1, count))]"),
        ("agreeing guesses behind a wrong one count", "        accepted = 0\n",
         "        accepted = sum(a == b for a, b in zip(guesses, choices))\n"),
        ("rank 1 skips the message", "        count, *guesses = me",
         "        if me.rank > 0:\n            return []\n"
         "        count, *guesses = me"),
        ("rank 1 isn't told how many", "message[0] = len(guesses)", "message[0] = k"),
        ("the last prompt token is read twice", "prompt[:-1]", "prompt"),
        ("each rank takes its own slice's choice", "argmax_over(me.group, "
         "shard.local_logits(x)[0],\n                              "
         "shard.vocabulary.start)", "shard.local_logits(x)[0].argmax(-1)"),
        ("no offset of the slice", "shard.vocabulary.start", "0"),
        ("never speculates", "min(k, full - len(ids) - 1)", "0"),
        ("only rank 0 returns the text", "ids[len(prompt):]\n    ### END",
         "ids[len(prompt):] if me.rank == 0 else None\n    ### END"),
    ],
    "q3_settle": [
        ("each rank draws", "    if me.rank == 0:\n", "    if True:\n",
         "me.group.broadcast(message)", "message"),
        ("each rank draws, with the same seed", "    if me.rank == 0:\n",
         "    generator.manual_seed(me.group.broadcast(\n"
         "        torch.tensor([generator.initial_seed()])).item())\n    if True:\n",
         "me.group.broadcast(message)", "message"),
        ("each rank draws the last token", "    text = list(ids)",
         "    if me.rank > 0:\n"
         "        token = verify_tokens(p[accepted:accepted + 1],\n"
         "                              Draft(draft.tokens[:0]),\n"
         "                              generator).next_token\n"
         "    text = list(ids)"),
        ("the last rank decides", "me.rank == 0", "me.rank == me.size - 1"),
        ("rank 1 skips the message", "    accepted, token = me",
         "    if me.rank == 1:\n        return list(ids)\n    accepted, token = me"),
        ("messages of different sizes", "torch.zeros(2,", "torch.zeros(3,"),
        ("the sum of verdicts", ".broadcast(", ".all_reduce(", "    if me.rank == 0:",
         "    if True:"),
        ("only rank 0 goes back", "    cache.truncate",
         "    if me.rank == 0:\n        cache.truncate"),
        ("the cache keeps one too many", "len(text) - 1", "len(text)"),
        ("the cache forgets the accepted run", "truncate(len(text) - 1)",
         "truncate(len(ids) - 1)"),
        ("the cache goes on behind an end token", "truncate(len(text) - 1)",
         "truncate(len(ids) + accepted)"),
        ("end tokens are ignored", "            break", "            pass"),
        ("the end token is left out", "        text.append(new)\n"
         "        if new in end_token_ids:\n            break\n",
         "        if new in end_token_ids:\n            break\n"
         "        text.append(new)\n"),
        ("an accepted guess is lost", "[:accepted]", "[:max(accepted - 1, 0)]"),
    ],
    "q4_state": [
        ("the whole target on every rank", "shard_model(pair.target, me.group)",
         "pair.target"),
        ("the draft is the target", "shard_model(pair.target",
         "shard_model(pair.draft"),
        ("the target drafts for itself", "ModelDrafter(pair.draft)",
         "ModelDrafter(pair.target)"),
        ("every rank drafts", " if me.rank == 0 else None", ""),
        ("rank 1 keeps nothing", "    pair = load",
         "    if me.rank > 0:\n        return\n    pair = load"),
        ("rank 1 lacks a key", "    me.state[\"drafter\"] =",
         "    if me.rank == 0:\n        me.state[\"drafter\"] ="),
        ("kept where it doesn't last", "me.state[\"shard\"] =", "me.shard ="),
    ],
    "q4_text": [
        ("the package's loop", "write_greedily(me, me.state[\"shard\"], "
         "me.state[\"drafter\"], prompt,\n                          k, max_new_tokens)",
         "__import__(\"nds_helpers.distributed\").distributed."
         "speculative_on_ranks(\n"
         "        me, me.state[\"shard\"], me.state[\"drafter\"], prompt, k=k,\n"
         "        max_new_tokens=max_new_tokens,\n"
         "        sampling=Sampling(0)).tokens.tolist()"),
        ("rank 1 doesn't come", "    return",
         "    if me.rank == 1:\n        return []\n    return"),
        ("rank 1 dies", "    return", "    if me.rank == 1:\n"
         "        __import__(\"os\")._exit(3)\n    return"),
        ("rank 1 returns nothing", "    return write_greedily(",
         "    text = write_greedily(", "    ### END",
         "    return text if me.rank == 0 else None\n    ### END"),
        ("returns the prompt, too", "return write", "return prompt + write"),
        ("k and the length are mixed up", "k, max_new_tokens)\n    ###",
         "max_new_tokens, k)\n    ###"),
        ("loads the models again", "me.state[\"shard\"], me.state[\"drafter\"]",
         "shard_model(load_pair(\"tiny\").target, me.group),\n"
         "                          me.state[\"drafter\"]"),
        ("all ranks draft", "me.state[\"drafter\"]",
         "checks.ScriptedDrafter([])"),
    ],
    "q5_drafter": [
        ("guesses more than k", "while len(guesses) < k", "while len(guesses) <= k"),
        ("always guesses four, k or not", "while len(guesses) < k",
         "while len(guesses) < 4"),
        ("ids as floats", "torch.tensor(guesses, dtype=torch.long)",
         "torch.tensor(guesses, dtype=torch.float)"),
        ("wants two tokens at least", "sequence.tolist(), []",
         "sequence.tolist(), []\n        assert text[-2] >= 0"),
        ("drawn, without probs", "text, guesses = sequence.tolist(), []",
         "self.chance, text, guesses = generator, sequence.tolist(), []",
         ".most_common(1)[0][0]",
         "\\\n                    .most_common(9)[::-1][int(torch.randint(\n"
         "                        9, (1,), generator=self.chance))"
         " % len(self.followers[tuple(text[-n:])].most_common(9))][0]"),
        ("chance of its own", ".most_common(1)[0][0]",
         "\\\n                    .most_common(2)[-int(torch.rand(1) < 0.5)][0]"),
        ("the same q for all words", "dtype=torch.long))", "dtype=torch.long),\n"
         "                     torch.full((len(guesses), 4096), 1 / 4096))"),
        ("the likeliest word, with a q that says half", "dtype=torch.long))",
         "dtype=torch.long),\n                     "
         "0.5 * torch.eye(4096)[guesses] + 0.5 / 4096)"),
        ("q isn't a distribution", "dtype=torch.long))", "dtype=torch.long),\n"
         "                     torch.zeros(len(guesses), 4096))"),
        ("q for the first guess only", "dtype=torch.long))", "dtype=torch.long),\n"
         "                     torch.eye(4096)[guesses[:1]])"),
        ("remembers other texts", "sequence.tolist(), []", "sequence.tolist(), []\n"
         "        for end in range(3, len(text)):\n"
         "            self.followers.setdefault(\n"
         "                tuple(text[end - 3:end]), Counter())[text[end]] += 999"),
        ("asks the target", "guess = self.in_text(text)",
         "target = own_drafter.tiny().target\n"
         "            row = target.forward(\n"
         "                torch.tensor(text), target.new_cache(len(text)))[-1]\n"
         "            guess = int(row.argmax())"),
        ("asks the draft model", "text, guesses = sequence.tolist(), []",
         "return ModelDrafter(own_drafter.tiny().draft).propose(\n"
         "            sequence, k, sampling, generator)"),
        ("never guesses", "while len(guesses) < k", "while False"),
        ("looks in the text only", "guess = self.in_corpus(text)", "break"),
    ],
}.items()}
