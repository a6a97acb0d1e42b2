"""How functions travel from a cell to the ranks, and results travel back.

cloudpickle sends whatever a notebook's cells define by value: functions, classes
and the globals that they name. It forgets where the code stood, though; here the
file's name and its lines go along, so that a rank's traceback shows the cell.
"""
import io
import linecache
import os
import pickle
import sys
import types
import warnings
from contextlib import suppress

import cloudpickle

HEAVY = 50 * 2**20  # bytes; a payload above this size deserves a warning


class CallPickler(cloudpickle.Pickler):
    """Pickles by value, and notes the source lines of all code on the way.

    `sources` maps a name for each file ("Cell In[5]") to its list of lines.
    """

    def __init__(self, file):
        super().__init__(file)
        self.sources = {}

    def reducer_override(self, value):
        """What pickle asks first, for every object."""
        import torch

        if isinstance(value, torch.Tensor):
            return reduced(value)
        if not isinstance(value, types.CodeType):
            return super().reducer_override(value)
        from nds_helpers.parallel.tracebacks import cell_name  # imports torch

        name = cell_name(value.co_filename)
        if name not in self.sources:
            self.sources[name] = linecache.getlines(value.co_filename)
        make, parts = self.dispatch_table[types.CodeType](value)[:2]
        return rebuild_code, (make, parts, name)


def rebuild_code(make, parts, name):
    """The code object of a cell's function, with its file's name put back."""
    return make(*parts).replace(co_filename=name)


def dump_call(fn, args, kwargs):
    """One call as bytes.

    Returns:
        (header, payload): the pickled source lines and search path, and the pickled
        call.

    Raises:
        TypeError: something in the call can't be pickled; the sentence names it.
    """
    buffer = io.BytesIO()
    pickler = CallPickler(buffer)
    try:
        pickler.dump((fn, args, kwargs))
    except Exception as error:
        raise TypeError(
            f"{name_of(fn)} can't be sent to the ranks: {error}. Make such objects "
            "inside the function instead of handing them over.") from error
    payload = buffer.getbuffer()
    if len(payload) > HEAVY:
        warn_of_weight(fn, args, kwargs, len(payload))
    return pickle.dumps((pickler.sources, search_path())), payload


def search_path():
    """Where this process looks for modules, such as the notebook's own folder."""
    return [os.path.abspath(folder) for folder in sys.path]  # "" is the current one


def load_call(header, payload):
    """The call that `dump_call` packed; its source lines go to the line cache."""
    sources, sys.path[:] = pickle.loads(header)
    for name, lines in sources.items():
        # Without a time of change (None) checkcache never looks for a file.
        linecache.cache[name] = sum(map(len, lines)), None, lines, name
    return pickle.loads(payload)


def warn_of_weight(fn, args, kwargs, size):
    """Warns about a heavy call and names its heaviest part."""
    parts = {f"argument {i}": value for i, value in enumerate(args, 1)}
    parts |= {f"argument {name!r}": value for name, value in kwargs.items()}
    text = f"this call sends {size / 2**20:.0f} MB to every rank"
    if found := heaviest(parts | globals_of(fn), seen={id(fn)}):
        name, part = found
        text += f", {part / 2**20:.0f} MB of it the {name}"
    warnings.warn(text + "; load it on the ranks once, and keep it in me.state.",
                  stacklevel=5)


def heaviest(parts, seen):
    """The heaviest of some values; where that is a function, the one that it names.

    Args:
        parts: dict, name -> value.
        seen: set of the ids of functions that have been looked into.

    Returns:
        (name, bytes), or None where there are no parts.
    """
    weights = {name: weight(value) for name, value in parts.items()
               if id(value) not in seen}
    if not weights:
        return None
    name = max(weights, key=weights.get)
    seen.add(id(parts[name]))
    inner = heaviest(globals_of(parts[name]), seen)
    return inner if inner and 2 * inner[1] > weights[name] else (name, weights[name])


def globals_of(fn):
    """The globals and closure variables that a function names itself.

    Returns:
        dict, "global 'x'" -> value; empty for what isn't a plain function.
    """
    if not isinstance(fn, types.FunctionType):
        return {}
    code, cells = fn.__code__, fn.__closure__ or ()
    named = {name: fn.__globals__[name] for name in names_in(code)
             if name in fn.__globals__}
    for name, cell in zip(code.co_freevars, cells):
        with suppress(ValueError):  # a variable that hasn't been assigned yet
            named[name] = cell.cell_contents
    return {f"global {name!r}": value for name, value in named.items()}


def names_in(code):
    """All global names in a code object and in the functions nested in it."""
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*map(names_in, inner))


def weight(value):
    """Bytes that a value takes when pickled; 0 where it can't be pickled alone."""
    try:
        return len(cloudpickle.dumps(value))
    except Exception:
        return 0


def name_of(fn):
    """A callable's name, for messages."""
    return getattr(fn, "__name__", type(fn).__name__)


class ResultPickler(cloudpickle.Pickler):
    """Pickles a result: tensors on the CPU, without history, nothing but themselves.

    A CUDA tensor would make the kernel open the GPU when it unpickles; a view would
    drag along everything that it is a view of.
    """

    def reducer_override(self, value):
        import torch

        if isinstance(value, torch.Tensor):
            return reduced(on_cpu(value))
        return super().reducer_override(value)


def reduced(tensor):
    """How pickle takes a tensor apart.

    torch 2.13 can't undo that for its newer dtypes: those travel as bytes.
    """
    import torch

    dtype = tensor.dtype
    float8 = dtype.is_floating_point and dtype.itemsize == 1
    if not float8 and dtype not in (torch.uint16, torch.uint32, torch.uint64):
        return tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return from_bytes, (flat, dtype, tensor.shape)


def from_bytes(flat, dtype, shape):
    """A tensor of a newer dtype, put together again."""
    return flat.view(dtype).view(shape)


def on_cpu(tensor):
    """A tensor's values on the CPU, in a storage of their own size."""
    import torch

    if tensor.layout != torch.strided:  # sparse ones have no storage to look at
        return tensor.detach().cpu()
    plain = tensor.detach().cpu()
    if plain.untyped_storage().nbytes() > plain.numel() * plain.element_size():
        plain = plain.clone()
    if isinstance(tensor, torch.nn.Parameter):
        plain = torch.nn.Parameter(plain, requires_grad=tensor.requires_grad)
    return plain


def dump_result(value):
    """A result as bytes (memoryview)."""
    buffer = io.BytesIO()
    ResultPickler(buffer).dump(value)
    return buffer.getbuffer()
