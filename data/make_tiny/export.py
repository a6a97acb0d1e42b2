"""Writes a trained pair as ordinary Hugging Face folders, with their sha256 sums."""
import hashlib
from copy import deepcopy

import torch
from train import WORK, new_pair

TINY = WORK.parent / "tiny"


def export(target, draft):
    """Saves both models in float16 beside their tokenizers, then SHA256SUMS."""
    for name, model in (("target", target), ("draft", draft)):
        deepcopy(model).half().save_pretrained(TINY / name)
    write_sums()


def write_sums():
    """data/tiny/SHA256SUMS, over every other file of the folder."""
    lines = []
    for path in sorted(p for p in TINY.rglob("*") if p.is_file()):
        if path.name != "SHA256SUMS":
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            lines.append(f"{digest}  {path.relative_to(TINY)}\n")
    (TINY / "SHA256SUMS").write_text("".join(lines))


def trained_pair(checkpoint):
    """Target and draft as a checkpoint in data/work holds them."""
    target, draft = new_pair()
    state = torch.load(WORK / checkpoint, weights_only=True)
    target.load_state_dict(state["target"])
    draft.load_state_dict(state["draft"])
    return target.eval(), draft


if __name__ == "__main__":
    export(*trained_pair("joint.pt"))
