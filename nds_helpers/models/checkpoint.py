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
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(map(str, DTYPES))}, "
                         f"not {dtype!r}.")
    folder = Path(folder)
    config = read_config(folder)
    with torch.device("meta"):  # shapes only: memory is taken tensor by tensor
        model = Decoder(config)
    fill(model, tensors(folder, device), dtype)
    return model.eval().requires_grad_(False)


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


def tensors(folder, device="cpu"):
    """Yields (name, tensor) for every tensor in a folder, one at a time."""
    for path in weight_files(folder):
        try:
            with safe_open(path, framework="pt", device=str(device)) as file:
                for name in file.keys():
                    yield name, file.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{path} is damaged ({error}); restore it or fetch "
                             "it again.") from None


def fill(model, named_tensors, dtype):
    """Puts every tensor where its name says; nothing unread, nothing unfilled."""
    unfilled = dict(places(model))
    head = None
    for name, tensor in named_tensors:
        ours = name.removeprefix("model.")
        if ours.endswith("rotary_emb.inv_freq"):  # older files carry the table
            continue
        if ours == "lm_head.weight" and model.config.tied:
            head = tensor.to(dtype)  # often comes before the embedding
            continue
        if ours not in unfilled:
            raise ValueError(f"nothing in the model reads the weight {name!r}: "
                             "its config.json doesn't describe this checkpoint.")
        place(ours, tensor.to(dtype), *unfilled.pop(ours))
    if unfilled:
        raise ValueError(f"no file fills the weight {sorted(unfilled)[0]!r} "
                         f"({len(unfilled)} in all): the checkpoint is incomplete.")
    if model.config.tied:
        check_tied(model, head)
        model.lm_head.weight = model.embed_tokens.weight


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


def place(name, tensor, module, parameter, rows):
    """Makes a tensor the parameter of a module, or some rows of it."""
    there = getattr(module, parameter)
    expected = tuple(there.shape if rows is None else there[rows].shape)
    if tuple(tensor.shape) != expected:
        raise ValueError(f"the weight {name!r} has shape {tuple(tensor.shape)}, "
                         f"and config.json asks for {expected}.")
    if rows is not None:
        whole = there.data
        if whole.is_meta:  # the first part that comes makes room for all
            whole = torch.empty_like(whole, dtype=tensor.dtype, device=tensor.device)
        whole[rows] = tensor
        tensor = whole
    setattr(module, parameter, torch.nn.Parameter(tensor, requires_grad=False))


def check_tied(model, head):
    """A tied model may ship a head as well (None if not), if it is the embedding."""
    if head is not None and not torch.equal(model.embed_tokens.weight, head):
        raise ValueError("tie_word_embeddings is true, but the file has another "
                         "'lm_head.weight'.")
