"""How a check speaks: one verdict a call, with expected, came, and a hint."""
import torch


def check(function, cases):
    """Runs a student's function on cases and prints one verdict.

    Args:
        function: what the student wrote.
        cases: list of (arguments, expected, hint). `expected` is compared with
            the result as numbers to 1e-6; `hint` points at the idea behind the
            case without giving the answer.

    Returns:
        bool, True where every case passed.
    """
    name = function.__name__
    for arguments, expected, hint in cases:
        shown = ", ".join(brief(a) for a in arguments)
        try:
            came = function(*arguments)
        except NotImplementedError:
            print(f"Not yet: {name} is still to be written.")
            return False
        except Exception as error:
            print(f"Not yet: {name}({shown}) raised {type(error).__name__}: {error}")
            print(f"  Hint: {hint}")
            return False
        if not same(came, expected):
            print(f"Not yet: {name}({shown})")
            print(f"  expected {brief(expected)}\n  came     {brief(came)}")
            print(f"  Hint: {hint}")
            return False
    print(f"Passed: {name} does what was asked in {len(cases)} cases.")
    return True


def same(came, expected):
    """Equal, or equal numbers to 1e-6; tuples and lists element by element."""
    if isinstance(expected, (tuple, list)):
        return (isinstance(came, (tuple, list)) and len(came) == len(expected)
                and all(same(a, b) for a, b in zip(came, expected)))
    try:
        a, b = torch.as_tensor(came), torch.as_tensor(expected)
    except (TypeError, ValueError, RuntimeError):
        return came == expected
    return a.shape == b.shape and torch.allclose(a.double(), b.double(), atol=1e-6)


def brief(value):
    """A value in at most 70 characters."""
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, float):
        value = round(value, 6)
    if isinstance(value, list) and value and isinstance(value[0], float):
        value = [round(v, 4) for v in value]
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 70 else text[:67] + "..."
