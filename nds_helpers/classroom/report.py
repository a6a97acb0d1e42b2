"""How a check speaks: one verdict a call, with expected, came, and a hint."""
import inspect
import linecache
import re
import traceback

import torch

# Python's own words for a call that doesn't fit the function.
CALL = re.compile(r"\(\) (takes|missing|got) ")


def check(function, cases):
    """Runs a student's function on cases and prints one verdict.

    Args:
        function: what the student wrote.
        cases: list of (arguments, expected, hint). `expected` is compared with
            the result as numbers to 1e-6; `hint` points at the idea behind the
            case without giving the answer, or is a function that picks one for
            what came (None after an error). The student's function gets copies of
            the arguments, and has to leave them as they are.

    An error, or an answer of the wrong type, isn't about the case if it comes in
    the first one. Then its place is told instead of the hint, where it has one.

    Returns:
        bool, True where every case passed.
    """
    written = inspect.unwrap(function)
    name = name_of(written)
    if not callable(written):
        print(f"Not yet: the check wants your function, and got {brief(written)}.")
        return False
    for number, (arguments, expected, hint) in enumerate(cases):
        call = f"{name}({', '.join(brief(a) for a in arguments)})"
        given = fresh(arguments)
        try:
            came = function(*given)
            right = same(came, expected)
            changed = not same(given, arguments)
        except NotImplementedError:
            print(f"Not yet: {name} is still to be written.")
            return False
        except Exception as error:
            print(f"Not yet: {call} raised {type(error).__name__}: {error}")
            where = place(error, written)
            if where:
                print(f"  Hint: {where}")
            if number > 0 or not where:  # simpler cases went well, or nothing to show
                print(f"  Hint: {hint(None) if callable(hint) else hint}")
            return False
        if not right:
            print(f"Not yet: {call}\n  {difference(came, expected)}")
            if number == 0 and wrong_type(came, expected):
                hint = wanted(came, expected)
            print(f"  Hint: {hint(came) if callable(hint) else hint}")
            return False
        if changed:
            print(f"Not yet: {call} changed its arguments\n"
                  "  Hint: the caller still needs them; compute something new.")
            return False
    print(f"Passed: {name} does what was asked in {len(cases)} cases.")
    return True


def fresh(value):
    """The same value, with copies of all tensors, lists, sets and dicts in it."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if type(value) in (tuple, list):
        return type(value)(fresh(part) for part in value)
    return value.copy() if isinstance(value, (set, dict)) else value


def same(came, expected):
    """Equal, or equal numbers to 1e-6; tuples and lists element by element."""
    if isinstance(expected, (tuple, list)):
        return (isinstance(came, (tuple, list)) and len(came) == len(expected)
                and all(same(a, b) for a, b in zip(came, expected)))
    try:
        if torch.as_tensor(came).is_complex():
            return False
        a, b = (torch.as_tensor(v, dtype=torch.float64) for v in (came, expected))
    except Exception:  # no numbers; an equality of the student's own has no say
        return type(came) is type(expected) and bool(came == expected)
    return a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=1e-6)


def wrong_type(came, expected):
    """Whether an answer isn't of the kind that was asked for, whatever its value."""
    if isinstance(expected, (tuple, list)):
        return not isinstance(came, (tuple, list))
    try:
        return torch.as_tensor(came).shape != torch.as_tensor(expected).shape
    except Exception:  # no numbers
        return type(came) is not type(expected)


def difference(came, expected):
    """What was expected and what came; of a wrong container, its type only."""
    if isinstance(expected, (tuple, list)) and hasattr(came, "tolist"):
        kind = "tensor" if isinstance(came, torch.Tensor) else "NumPy value"
        wanted = f"{type(expected).__name__} {brief(expected)}"
        return f"expected the {wanted}, came a {kind}"
    return f"expected {brief(expected)}\n  came     {brief(came)}"


def wanted(came, expected):
    """What kind of answer is asked for, where another kind came."""
    if came is None:
        return "nothing came back. Does every path end in a return?"
    kind = type(expected)
    if kind in (tuple, list):
        return f"the answer has to be a {kind.__name__} of {len(expected)} here."
    if isinstance(expected, torch.Tensor):
        return f"the answer has to be a tensor of shape {tuple(expected.shape)} here."
    return f"the answer has to be a plain {kind.__name__}."


def place(error, function):
    """The student's own line that an error came through, or what the function takes.

    Args:
        error: the exception; what it was raised from is looked at too.
        function: what the student wrote, a function or a class.

    Returns:
        str; "" where it came through no line of theirs, and the call was right.
    """
    methods = vars(function).values() if isinstance(function, type) else ()
    code = next((f.__code__ for f in (function, *methods) if hasattr(f, "__code__")),
                None)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__)
             if code and frame.f_code.co_filename == code.co_filename]
    if lines:
        text = linecache.getline(code.co_filename, lines[-1]).strip()
        return f"it happened in your line {lines[-1]}: {text}"
    if error.__cause__ is not None:
        return place(error.__cause__, function)
    if not (isinstance(error, TypeError) and CALL.search(str(error))):
        return ""
    try:
        takes = name_of(function) + str(inspect.signature(function))
    except (TypeError, ValueError):  # built in, without a signature
        return ""
    return (f"the check passes other arguments than yours takes, {takes}; keep the "
            "first line as it was given.")


def name_of(function):
    """A function's name; for a callable without one, its type's."""
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else type(function).__name__


def brief(value):
    """A value in at most 70 characters."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, float):
        value = round(value, 6)
    if isinstance(value, list) and value and isinstance(value[0], float):
        value = [round(v, 4) if isinstance(v, float) else v for v in value]
    try:
        text = getattr(value, "__name__", None) or repr(value)
        return text if len(text) <= 70 else text[:67] + "..."
    except Exception:
        return f"a {type(value).__name__} that can't be shown"
