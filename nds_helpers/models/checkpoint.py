"""Reads Hugging Face folders: config.json and one or many safetensors files."""
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open

from .config import read_config, read_json
from .decoder import Decoder
from .linear import Stacked

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def load_model(folder, dtype=torch.float32, device="cpu"):
    """Builds a Decoder and fills it from a Hugging Face folder.

    Args:
        folder: path with config.json and *.safetensors.
        dtype: of the weights in memory; the file's own dtype doesn't matter.
        device: where the weights go.

    Returns:
        Decoder in evaluation mode, without gradients.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, a field or the dtype isn't supported, or
            a weight is left unread or unfilled; it is named.
    """
    check_dtype(dtype)
    folder = Path(folder)
    config = read_config(folder)
    with torch.device("meta"):  # shapes only: memory is taken tensor by tensor
        model = Decoder(config)
    fill(model, tensors(folder, device), dtype)
    return model.eval().requires_grad_(False)


def check_dtype(dtype):
    """Requires a type that weights can have in memory."""
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}, "
                         f"not {dtype!r}.")


def weight_files(folder):
    """The safetensors files of a folder, as its index or its only file says."""
    if (folder / INDEX).exists():
        listed = read_json(folder / INDEX).get("weight_map")
        if not isinstance(listed, dict) or not listed:
            raise ValueError(f"{folder / INDEX} has no weight_map, which says where "
                             "each weight is; fetch it again.")
        names = sorted(set(listed.values()))
    else:
        names = [SINGLE]
    for name in names:
        if not (folder / name).exists():
            raise FileNotFoundError(
                f"{folder} has no {name}: weights are read from safetensors "
                "files only; fetch the folder again.")
    return [folder / name for name in names]


def tensors(folder, device="cpu", read=safe_open.get_tensor):
    """Yields (name, tensor) for every tensor in a folder, one at a time.

    Args:
        folder: Path.
        device: where the tensors go.
        read: function of an open file and a name; what it returns is yielded.
    """
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt") as file:
                names = list(file.keys())
            for name in names:
                # A file is mapped into memory: what has been read of it is let go
                # of when it is closed.
                with safe_open(path, framework="pt", device=str(device)) as file:
                    yield name, read(file, name)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}); restore it or fetch "
                             "it again.") from None


def fill(model, named_tensors, dtype):
    """Puts every tensor where its name says; nothing unread, nothing unfilled."""
    unfilled = dict(places(model))
    head = None
    for name, tensor in named_tensors:
        ours = our_name(name)
        if ours.endswith("rotary_emb.inv_freq"):  # older files carry the table
            continue
        if ours == "lm_head.weight" and model.config.tied:
            head = tensor.to(dtype)  # often comes before the embedding
            continue
        if ours not in unfilled:
            raise ValueError(f"nothing in the model reads the weight {name!r}: "
                             "its config.json doesn't describe this checkpoint.")
        place(ours, tensor, dtype, *unfilled.pop(ours))
    if unfilled:
        raise ValueError(f"no file fills the weight {sorted(unfilled)[0]!r} "
                         f"({len(unfilled)} in all): the checkpoint is incomplete.")
    if model.config.tied:
        check_tied(model, head)
        model.lm_head.weight = model.embed_tokens.weight


def our_name(name):
    """A weight's name in a file, without the prefix that our modules don't have."""
    return name.removeprefix("model.")


def whole_shapes(config):
    """Our name of each weight in a file -> its shape there, as the config asks."""
    with torch.device("meta"):
        model = Decoder(config)
    shapes = {name: getattr(module, parameter)[rows or slice(None)].shape
              for name, (module, parameter, rows) in places(model)}
    if config.tied:  # a file may hold the head all the same
        shapes["lm_head.weight"] = shapes["embed_tokens.weight"]
    return shapes


def places(model):
    """Yields (name in a file, (module, parameter's name, its rows)) for each weight.

    Files hold the parts of a `Stacked` linear one by one; rows is None where a
    weight is whole.
    """
    for path, _ in model.named_parameters():
        owner, _, last = path.rpartition(".")
        module = model.get_submodule(owner)
        if isinstance(module, Stacked):
            above = owner.rpartition(".")[0]
            for part in module.parts:
                yield f"{above}.{part}.{last}", (module, last, module.rows(part))
        else:
            yield path, (module, last, None)


def place(name, tensor, dtype, module, parameter, rows):
    """Copies a tensor into the parameter of a module, or into some rows of it."""
    there = getattr(module, parameter).data
    where = slice(None) if rows is None else rows
    check_shape(name, tensor.shape, there[where].shape)
    if there.is_meta:  # the first part that comes makes room for all
        there = torch.empty_like(there, dtype=dtype, device=tensor.device)
        setattr(module, parameter, torch.nn.Parameter(there, requires_grad=False))
    there[where] = tensor  # no copy in between, whatever the dtypes


def check_shape(name, shape, expected):
    """Requires that a weight in a file has the shape that the config asks for."""
    if tuple(shape) != tuple(expected):
        raise ValueError(f"the weight {name!r} has shape {tuple(shape)}, "
                         f"and config.json asks for {tuple(expected)}.")


def check_tied(model, head):
    """A tied model may ship a head as well (None if not), if it is the embedding."""
    if head is not None and not torch.equal(model.embed_tokens.weight, head):
        raise ValueError("tie_word_embeddings is true, but the file has another "
                         "'lm_head.weight'.")
