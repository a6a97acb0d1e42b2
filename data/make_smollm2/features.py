"""What the draft for SmolLM2 has to imitate: the target's last stream at each token.

From the stream (width 576) the target's head makes the probabilities of any words
that the draft may say, at a small part of the cost of a whole forward: it is kept, so
that training can pass over the samples more than once.
"""
import numpy as np
import sample
import torch
from tqdm import tqdm

from nds_helpers.models import load_model, smollm2

TEXTS_AT_ONCE = 8


def padded(rows):
    """list of LongTensor[n] -> LongTensor[B, longest]; zeros behind the shorter ones.

    A token never looks ahead, so that what stands behind a text changes nothing in it.
    """
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def answer_places(given, lengths, count):
    """Where the next token belongs to an answer: BoolTensor[B, count].

    Args:
        given, lengths: LongTensor[B], where each answer starts and its text ends.
        count: tokens that are fed of each text.
    """
    place = torch.arange(count)
    return (place >= given[:, None] - 1) & (place < lengths[:, None] - 1)


@torch.inference_mode()
def streams(model, batch):
    """The target's stream where answers are predicted, text after text.

    Args:
        model: Decoder.
        batch: list of (ids, given).

    Returns:
        (FloatTensor[N, D], FloatTensor[N], the logsumexp of the target's logits).
    """
    given = torch.tensor([given for _, given in batch])
    lengths = torch.tensor([len(ids) for ids, _ in batch])
    rows = padded([ids for ids, _ in batch])[:, :-1]
    stream = model.hidden(rows)[answer_places(given, lengths, rows.shape[1])]
    total = torch.cat([model.logits(part[None])[0].float().logsumexp(-1)
                       for part in stream.split(128)])
    return stream, total


def features_path(path):
    """Where the features of a shard lie."""
    return sample.WORK / f"{path.stem}.features.npz"


def make_features(model, path):
    """Writes the features of a shard, all of them or nothing."""
    found = [streams(model, batch) for batch in batches(sample.texts(path))]
    stream, total = (torch.cat(part).float().numpy() for part in zip(*found))
    part = features_path(path).with_suffix(".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    with open(part, "wb") as stream_file:
        np.savez(stream_file, stream=stream.astype(np.float16), total=total)
    part.replace(features_path(path))


def batches(rows):
    """Lists of TEXTS_AT_ONCE rows, in order."""
    return [rows[i:i + TEXTS_AT_ONCE] for i in range(0, len(rows), TEXTS_AT_ONCE)]


def make_missing(shards):
    """Writes the features that aren't there yet."""
    missing = [path for path in shards if not features_path(path).exists()]
    if missing:
        model = load_model(smollm2.fetch())
        for path in tqdm(missing, desc="features", mininterval=10):
            make_features(model, path)
