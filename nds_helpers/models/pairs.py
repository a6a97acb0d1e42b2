"""Draft/target pairs by name, by folder, or from the Hugging Face hub."""
from dataclasses import dataclass
from pathlib import Path

import torch

from .borrowed import early_exit, load_borrowing
from .checkpoint import load_model
from .decoder import Decoder
from .folders import first_wrong, folder_in
from .int8 import quantise

DATA = folder_in("NDS_DATA", Path(__file__).resolve().parents[2] / "data")
NAMES = ("tiny", "smollm2")
EXIT = 4  # layers of SmolLM2 that guess where its trained draft isn't there


@dataclass(frozen=True)
class Pair:
    """A target, a draft that guesses for it, and the tokenizer of both.

    `tokenizer` is None where the target's folder has none: prompts are ids then.
    """

    target: Decoder
    draft: Decoder
    tokenizer: object

    def encode(self, text):
        """Text to LongTensor[T], without special tokens."""
        self._needs_tokenizer()
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return torch.tensor(ids, dtype=torch.long)

    def chat(self, text):
        """A user's message, as the prompt that a chat model knows: LongTensor[T].

        Raises:
            ValueError: the tokenizer has no chat template.
        """
        self._needs_tokenizer()
        if not self.tokenizer.chat_template:
            raise ValueError("this pair isn't made for chat (its tokenizer has no "
                             "chat template): use pair.encode(text).")
        return self.encode(self.tokenizer.apply_chat_template(
            [dict(role="user", content=text)], add_generation_prompt=True,
            tokenize=False))

    def decode(self, tokens):
        """LongTensor[T] to text, special tokens shown."""
        self._needs_tokenizer()
        return self.tokenizer.decode(torch.as_tensor(tokens).tolist())

    def _needs_tokenizer(self):
        if self.tokenizer is None:
            raise ValueError("this pair has no tokenizer (the target's folder has no "
                             "tokenizer.json): give and read ids instead of text.")


def load_pair(name=None, *, target=None, draft=None, dtype=torch.float32,
              device="cpu"):
    """Loads a draft/target pair.

    Args:
        name: "tiny" (ships in data/, needs no network), "smollm2" (SmolLM2-135M-
            Instruct, fetched once; see `smollm2.fetch`), or None.
        target, draft: instead of a name, a folder or a hub id each.
        dtype: of the weights in memory. torch.int8 takes it for the linear layers
            and float32 for the rest; on the CPU only.
        device: where they go.

    Returns:
        Pair.

    Raises:
        ValueError: unknown name or dtype, damaged file, mismatched vocabularies.
        FileNotFoundError: a file is missing; how to restore it is said.
        ConnectionError: what isn't there yet can't be fetched.
    """
    if name is None and (target is None or draft is None):
        raise ValueError("load_pair needs a name, or both target= and draft=.")
    if name is not None and (name not in NAMES or target is not None
                             or draft is not None):
        raise ValueError(f"load_pair takes one of the names {', '.join(NAMES)}, "
                         f"or target= and draft=; got {name!r}.")
    if name == "smollm2":
        return smollm2_pair(dtype, device)
    if name == "tiny":
        verify_files(DATA / name)
        target, draft = DATA / name / "target", DATA / name / "draft"
    target, draft = find_folder(target), find_folder(draft)
    pair = Pair(load(target, dtype, device), load(draft, dtype, device),
                load_tokenizer(target))
    match_vocabularies(pair, load_tokenizer(draft))
    return pair


def load(folder, dtype, device):
    """`load_model`, with torch.int8 as one more dtype."""
    if dtype is not torch.int8:
        return load_model(folder, dtype, device)
    if torch.device(device).type != "cpu":
        raise ValueError(f"torch.int8 works on the CPU only, not on {device}; take "
                         "torch.bfloat16 there.")
    return quantise(load_model(folder))


def smollm2_pair(dtype, device):
    """SmolLM2 and its draft: the trained one, or without it an early exit."""
    from . import smollm2  # only this pair needs the hub's library and tqdm

    folder = smollm2.fetch()
    target, trained = load(folder, dtype, device), DATA / "smollm2"
    if not trained.exists():
        return Pair(target, early_exit(target, EXIT), load_tokenizer(folder))
    verify_files(trained)
    draft = load_borrowing(trained, target)
    if dtype is torch.int8:
        quantise(draft)
    return Pair(target, draft, load_tokenizer(folder))


def verify_files(folder):
    """Compares the shipped files with the sha256 sums beside them.

    Raises:
        FileNotFoundError, ValueError: the first file that is missing or altered,
            and how to restore it.
    """
    name = first_wrong(folder)
    if name is None:
        return
    remedy = f"restore it with: git checkout -- data/{folder.name}"
    if not folder.exists():
        remedy += " (or set NDS_DATA to the folder data/ of the course)."
    if not (folder / name).exists():
        raise FileNotFoundError(f"{folder / name} is missing; {remedy}")
    raise ValueError(f"{folder / name} is damaged or was altered; {remedy}")


def find_folder(where):
    """A local folder as it is; anything else is a hub id, fetched to the cache."""
    path = Path(where).expanduser()
    if path.is_dir():
        return path
    if path.is_absolute() or str(where).count("/") != 1:
        raise FileNotFoundError(f"there is no folder {where}, and it isn't a hub "
                                "id of the form org/name either.")
    from .hub import fetch  # only this path needs the hub library

    return fetch(str(where))


def load_tokenizer(folder):
    """The tokenizer in a folder, or None where it has no tokenizer.json."""
    if not (folder / "tokenizer.json").exists():
        return None
    from transformers import AutoTokenizer  # slow, and ranks often need no text

    return AutoTokenizer.from_pretrained(folder, local_files_only=True,
                                         trust_remote_code=False)


def match_vocabularies(pair, draft_tokenizer):
    """Requires that an id means the same to both models; masks padding ids.

    Raises:
        ValueError: with both sizes and the first id that differs.
    """
    ours, theirs = words(pair.tokenizer), words(draft_tokenizer)
    if ours and theirs and ours != theirs:
        differ = min(i for i in ours.keys() | theirs.keys()
                     if ours.get(i) != theirs.get(i))
        raise ValueError(
            f"target and draft don't share a vocabulary (sizes {len(ours)} and "
            f"{len(theirs)}): id {differ} is {ours.get(differ)!r} to the target "
            f"and {theirs.get(differ)!r} to the draft.")
    if ours or theirs:
        mask_padding(pair, max(ours or theirs) + 1)
    elif pair.target.vocab_size < pair.draft.vocab_size:
        raise ValueError(
            f"the draft has {pair.draft.vocab_size} ids and the target "
            f"{pair.target.vocab_size}: id {pair.target.vocab_size} is the "
            "first that the target doesn't know.")


def mask_padding(pair, count):
    """Ids from `count` on, beyond the tokenizer, get no logits from either model."""
    for model in (pair.target, pair.draft):
        if model.vocab_size < count:
            raise ValueError(f"the tokenizer has {count} ids, but a model has "
                             f"logits for {model.vocab_size} only.")
        model.vocab_size = count


def words(tokenizer):
    """id -> string, added tokens included; nothing without a tokenizer."""
    if tokenizer is None:
        return {}
    return {i: word for word, i in tokenizer.get_vocab().items()}
