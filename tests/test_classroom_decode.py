"""Chapter 01: checks catch the plausible mistakes, cells agree with the package."""
from types import SimpleNamespace

import pytest
import torch
from helpers import chapter_cells, generator, load_chapter

from nds_helpers.classroom.decode import (
    ToyModel,
    check_draw_token,
    check_generate_greedily,
    check_speed_limit,
    shape,
)
from nds_helpers.decoding import Sampling, autoregressive, draw, probabilities, uniforms
from nds_helpers.models import load_pair
from nds_helpers.models.rope import Rotary, rotate

CHAPTER = "01_decode_one_token_at_a_time"


@pytest.fixture(scope="module")
def target():
    """The tiny target in float64, so that no near-tie decides a token."""
    return load_pair("tiny", dtype=torch.float64).target


@pytest.fixture(scope="module")
def chapter(target):
    """What the chapter's cells and solutions define."""
    c = target.config
    return load_chapter(
        CHAPTER, F=torch.nn.functional, draw=draw, probabilities=probabilities,
        uniforms=uniforms, target=target, config=c, H=c.heads, G=c.kv_heads,
        d=c.head_width)


def ids(count, seed=0):
    """LongTensor[count] of arbitrary tokens."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(1, 4096, (count,), generator=g)


def test_norm_and_turn_agree_with_the_package(chapter, target):
    x = torch.randn(9, target.config.width, dtype=torch.float64)
    torch.testing.assert_close(chapter.norm(x, target.norm.weight), target.norm(x))
    q = torch.randn(4, 9, target.config.head_width, dtype=torch.float64)
    cos, sin = Rotary(target.config).rows(0, 9, q)
    came = chapter.turn(q, torch.arange(9))
    torch.testing.assert_close(came, rotate(q[None], cos, sin)[0], atol=1e-5, rtol=0)


def test_attend_shares_kv_heads_in_order(chapter):
    q, k = torch.randn(4, 5, chapter.d), torch.randn(2, 5, chapter.d)
    v = torch.randn(2, 5, chapter.d)
    weights, fetched = chapter.attend(q, k, v)
    whole = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(fetched, whole.transpose(0, 1).flatten(1))
    assert weights.triu(1).abs().max() == 0


def test_forward_by_hand_agrees_with_the_decoder(chapter, target):
    tokens = ids(21)
    came, expected = chapter.forward_by_hand(tokens), target.forward(tokens)
    torch.testing.assert_close(came, expected, atol=1e-3, rtol=0)


@pytest.mark.parametrize("temperature", [0, 0.7, 1.0, 1.5])
def test_to_probabilities_agrees_with_the_package(chapter, temperature):
    logits = torch.randn(3, 50, generator=generator(0))
    came = chapter.to_probabilities(logits, temperature)
    torch.testing.assert_close(came, probabilities(logits, Sampling(temperature)))


@pytest.mark.parametrize("temperature, seed", [(0, 0), (0.8, 1), (1.0, 2), (1.5, 3)])
def test_three_ways_of_decoding_agree(chapter, target, temperature, seed):
    sampling, prompt = Sampling(temperature), ids(7, seed)
    expected = autoregressive(target, prompt, max_new_tokens=20, sampling=sampling,
                              generator=generator(seed)).tokens
    for way in (chapter.decode_without_cache, chapter.decode_with_cache):
        assert way(target, prompt, 20, sampling, generator(seed)).equal(expected)


def test_decoding_stops_at_an_end_token(chapter, target):
    whole = autoregressive(target, ids(7), max_new_tokens=12,
                           generator=generator(5)).tokens
    end = int(whole[4])
    model = SimpleNamespace(forward=target.forward, new_cache=target.new_cache,
                            vocab_size=target.vocab_size, end_token_ids=(end,))
    expected = whole[:whole.tolist().index(end) + 1]
    for way in (chapter.decode_without_cache, chapter.decode_with_cache):
        assert way(model, ids(7), 12, Sampling(), generator(5)).equal(expected)


def test_cached_decoding_feeds_every_token_once(chapter, target):
    fed, caches = [], []

    def forward(tokens, cache):
        fed.append(tokens.tolist())
        caches.append(cache)
        return target.forward(tokens, cache)

    model = SimpleNamespace(forward=forward, new_cache=target.new_cache,
                            end_token_ids=())
    prompt = ids(7)
    new = chapter.decode_with_cache(model, prompt, 5, Sampling(0), generator(0))
    text = prompt.tolist() + new.tolist()
    assert fed == [text[:6]] + [[token] for token in text[6:-1]]
    assert caches[-1].length == len(text) - 1


def test_speed_limit_counts_what_a_cache_takes(chapter, target):
    cache = target.new_cache(100)
    size = cache.store.element_size()
    limit = chapter.speed_limit(target.config, 12345, 100, 1e6, size)
    assert limit == pytest.approx(1e6 / (12345 + cache.store.nbytes))


def test_toy_model_remembers_everything():
    model = ToyModel()
    cache = model.new_cache()
    whole = model.forward(torch.tensor([3, 1, 4, 1, 5]), cache)
    cache.truncate(2)
    again = model.forward(torch.tensor([4, 1, 5]), cache)
    assert again.equal(whole[2:]) and cache.length == 5 and model.positions == 8
    cache.truncate(0)
    assert not model.forward(torch.tensor([1, 3]), cache)[-1].equal(whole[1])


CHECKS = {"draw_token": check_draw_token, "speed_limit": check_speed_limit,
          "generate_greedily": check_generate_greedily}


@pytest.mark.parametrize("name", CHECKS)
def test_solutions_pass(chapter, name, capsys):
    assert CHECKS[name](getattr(chapter, name))
    assert capsys.readouterr().out.startswith(f"Passed: {name}")


@pytest.mark.parametrize("name", CHECKS)
def test_stubs_are_told_not_yet(name, capsys):
    stub = next(c.source for c in chapter_cells(CHAPTER) if f"def {name}(" in c.source
                and "NotImplementedError" in c.source)
    space = {"torch": torch}
    exec(stub, space)
    assert not CHECKS[name](space[name])
    assert capsys.readouterr().out == f"Not yet: {name} is still to be written.\n"


def draw_likeliest(weights, u):
    return int(weights.argmax())


def draw_elsewhere(weights, u):
    return int(torch.multinomial(weights, 1))


def draw_at_least(weights, u):
    sums = weights.double().cumsum(0)
    return int((sums >= u * sums[-1]).nonzero()[0])


def draw_without_total(weights, u):
    return int((weights.double().cumsum(0) > u).nonzero()[0])


def draw_in_float32(weights, u):
    sums = weights.cumsum(0)
    return int((sums > u * sums[-1]).nonzero()[0])


def draw_searching_left(weights, u):
    return int(torch.searchsorted(weights.double().cumsum(0), u))


def draw_one_too_far(weights, u):
    sums = weights.double().cumsum(0)
    return int((sums <= u * sums[-1]).sum()) + 1


def draw_from_sorted(weights, u):
    ordered, order = weights.double().sort(descending=True)
    sums = ordered.cumsum(0)
    return int(order[(sums > u * sums[-1]).nonzero()[0]])


def draw_nothing(weights, u):
    pass


@pytest.mark.parametrize("wrong", [
    draw_likeliest, draw_elsewhere, draw_at_least, draw_without_total,
    draw_in_float32, draw_searching_left, draw_one_too_far, draw_from_sorted,
    draw_nothing])
def test_check_draw_token_refuses(wrong, capsys):
    assert not check_draw_token(wrong)
    assert "Hint:" in capsys.readouterr().out


def next_of(model, cache, tokens):
    """The likeliest token after feeding a list of ids."""
    return int(model.forward(torch.tensor(tokens), cache)[-1].argmax())


def feeds_the_last_token_too(model, cache, prompt, count):
    new = [next_of(model, cache, prompt)]
    while len(new) < count:
        new.append(next_of(model, cache, new[-1:]))
    next_of(model, cache, new[-1:])
    return new


def feeds_the_prompt_end_twice(model, cache, prompt, count):
    model.forward(torch.tensor(prompt), cache)
    text = list(prompt)
    for _ in range(count):
        text.append(next_of(model, cache, text[-1:]))
    return text[len(prompt):]


def feeds_everything_again(model, cache, prompt, count):
    text = list(prompt)
    for _ in range(count):
        text.append(next_of(model, cache, text))
    return text[len(prompt):]


def starts_afresh_each_time(model, cache, prompt, count):
    text = list(prompt)
    for _ in range(count):
        cache.truncate(0)
        text.append(next_of(model, cache, text))
    return text[len(prompt):]


def forgets_the_prompt(model, cache, prompt, count):
    text = list(prompt)
    for _ in range(count):
        text.append(next_of(model, cache, text[-1:]))
    return text[len(prompt):]


def returns_the_prompt_too(model, cache, prompt, count):
    model.forward(torch.tensor(prompt[:-1]), cache)
    text = list(prompt)
    for _ in range(count):
        text.append(next_of(model, cache, text[-1:]))
    return text


def reads_the_first_row(model, cache, prompt, count):
    new, feed = [], prompt
    for _ in range(count):
        logits = model.forward(torch.tensor(feed), cache)
        new.append(int(logits[0].argmax()))
        feed = new[-1:]
    return new


@pytest.mark.parametrize("wrong", [
    feeds_the_last_token_too, feeds_the_prompt_end_twice, feeds_everything_again,
    starts_afresh_each_time, forgets_the_prompt, returns_the_prompt_too,
    reads_the_first_row])
def test_check_generate_greedily_refuses(wrong, capsys):
    assert not check_generate_greedily(wrong)
    assert "Hint:" in capsys.readouterr().out


def test_check_generate_greedily_lets_the_prompt_go_in_whole(capsys):
    """Feeding the prompt at once keeps the invariant too, if the loop ends in time."""
    def whole_prompt(model, cache, prompt, count):
        new = [next_of(model, cache, prompt)]
        while len(new) < count:
            new.append(next_of(model, cache, new[-1:]))
        return new

    assert check_generate_greedily(whole_prompt)


def limit(cache_numbers):
    """A speed_limit whose cache holds so many numbers a token."""
    def wrong(config, weights, length, bandwidth, size=2):
        return bandwidth / (weights + cache_numbers(config) * length * size)

    return wrong


@pytest.mark.parametrize("wrong", [
    limit(lambda c: 0),
    limit(lambda c: c.layers * c.kv_heads * c.head_width),
    limit(lambda c: 2 * c.kv_heads * c.head_width),
    limit(lambda c: 2 * c.layers * c.heads * c.head_width),
    limit(lambda c: 2 * c.layers * c.width),
    limit(lambda c: 2 * c.layers * c.kv_heads * c.width // c.heads),
    lambda c, weights, length, bandwidth, size: bandwidth / weights,
    lambda c, weights, length, bandwidth, size: bandwidth / (
        weights + 2 * c.layers * c.kv_heads * c.head_width * length * 2)])
def test_check_speed_limit_refuses(wrong, capsys):
    assert not check_speed_limit(wrong)
    assert "Hint:" in capsys.readouterr().out


def test_a_shape_shows_itself_in_one_line():
    assert repr(shape(5, 8, 2, 16, 32)) == "<5 layers, H=8, G=2>"
