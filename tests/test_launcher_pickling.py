"""Calls and results as bytes: source lines travel, tensors arrive small, on the CPU."""
import linecache
import pickle
import threading

import cloudpickle
import pytest
import torch

from nds_helpers.distributed import pickling
from nds_helpers.parallel import SoloGroup

CELL = ["def work(me):\n", "    def inner():\n", "        raise ValueError(me)\n",
        "    return inner\n"]


@pytest.fixture
def work():
    """A function as IPython makes one: its source is in the line cache only."""
    name = "/tmp/ipykernel_1/1.py"
    linecache.cache[name] = sum(map(len, CELL)), None, CELL, name
    names = {"__name__": "__main__"}
    exec(compile("".join(CELL), name, "exec"), names)
    yield names["work"]
    del linecache.cache[name]


def test_source_lines_travel_with_nested_functions(work):
    header, payload = pickling.dump_call(work, (1,), {"a": 2})
    name = work.__code__.co_filename
    del linecache.cache[name]
    fn, args, kwargs = pickling.load_call(header, bytes(payload))
    assert (args, kwargs) == ((1,), {"a": 2})
    assert fn(5).__code__.co_filename == fn.__code__.co_filename == name
    assert linecache.getline(name, 3) == CELL[2]
    linecache.checkcache(name)  # what a traceback does first
    assert linecache.getline(name, 3) == CELL[2]


def test_what_cannot_be_sent_is_said_in_one_sentence(work):
    with pytest.raises(TypeError, match="work can't be sent to the ranks: .*lock"):
        pickling.dump_call(work, (threading.Lock(),), {})


def test_heavy_calls_name_their_heaviest_part(monkeypatch, work):
    monkeypatch.setattr(pickling, "HEAVY", 2**20)
    heavy = torch.ones(2**19)

    def indirect(me):
        return indirect, heavy

    with pytest.warns(UserWarning, match="2 MB of it the global 'heavy'; load it on"):
        pickling.dump_call(lambda me: (lambda: heavy)(), (), {})
    with pytest.warns(UserWarning, match="2 MB of it the global 'heavy'"):
        pickling.dump_call(lambda me: indirect(me), (), {})
    with pytest.warns(UserWarning, match="2 MB of it the argument 2"):
        pickling.dump_call(work, (1, heavy), {})
    with pytest.warns(UserWarning, match="2 MB of it the argument 'x'"):
        pickling.dump_call(work, (), {"x": heavy})


def test_a_group_stays_on_its_rank():
    with pytest.raises(TypeError, match="a group can't leave its rank"):
        pickling.dump_result([SoloGroup()])


def back(value):
    """A result after its way to the kernel."""
    return pickle.loads(pickling.dump_result(value))


def test_results_lose_history_and_what_they_are_views_of():
    big = torch.ones(1000, 1000, requires_grad=True)
    assert len(pickling.dump_result(big[3, :5])) < 1000
    found = back({"y": [(2 * big)[3, :5]]})["y"][0]
    assert torch.equal(found, torch.full((5,), 2.0)) and not found.requires_grad


@pytest.mark.parametrize("value", [
    torch.tensor(3), torch.empty(0, 4), torch.ones(3, 2).T, torch.ones(2).bfloat16(),
    torch.tensor([True, False]), torch.ones(4)[::2], torch.eye(2).to_sparse(),
    torch.tensor(3, dtype=torch.uint16), torch.empty(0, 2).to(torch.float8_e5m2),
    torch.ones(3, 2).T.to(torch.float8_e4m3fn), torch.ones(2, dtype=torch.uint64)])
def test_any_tensor_goes_there_and_comes_back_as_it_was(value):
    header, payload = pickling.dump_call(print, (value,), {})
    for found in (back(value), pickling.load_call(header, payload)[1][0]):
        assert (found.dtype, found.layout) == (value.dtype, value.layout)
        assert torch.equal(found.to_dense().double(), value.to_dense().double())


def test_modules_keep_their_parameters():
    layer = torch.nn.Linear(2, 3)
    found = back(layer)
    assert isinstance(found.weight, torch.nn.Parameter) and found.weight.requires_grad
    assert torch.equal(found.weight, layer.weight)


def test_gpu_tensors_are_copied(monkeypatch):
    copied = []

    def on_cpu(tensor):
        copied.append(tensor)
        return torch.zeros(1)

    monkeypatch.setattr(pickling, "on_cpu", on_cpu)
    value = torch.ones(1)
    assert back([value]) == [torch.zeros(1)] and copied[0] is value


def test_cloudpickle_alone_would_lose_the_cells_name(work):
    """Why CallPickler renames code: drop that once this fails."""
    assert cloudpickle.loads(cloudpickle.dumps(work)).__code__.co_filename != (
        work.__code__.co_filename)
