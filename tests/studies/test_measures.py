"""Tasks and measures equal their definitions in plain Python."""

import math

import measures
import pytest
import torch
from measures import EVERY, QUESTIONS, Series, of_step
from model import Shape
from oracles.transformer import of_response
from tasks import DIGITS, DOMAINS, END, EQUALS, FIRST_SIGN, PROMPT, RESPONSE, VOCABULARY, answer, ask, lengths, stream


def by_hand(domain, digits):
    if domain == "addition":
        total = int("".join(map(str, digits[:3]))) + int("".join(map(str, digits[3:])))
        return [int(c) for c in f"{total:04d}"[::-1]]
    if domain == "sums":
        return [sum(digits[: k + 1]) % 10 for k in range(DIGITS)]
    return sorted(digits) if domain == "sorting" else digits[::-1]


def test_answers_equal_plain_python():
    prompts = torch.cat([ask(d, 50, stream(1, d)) for d in range(len(DOMAINS))])
    found, long = answer(prompts), lengths(answer(prompts))
    for prompt, text, length in zip(prompts.tolist(), found.tolist(), long.tolist(), strict=True):
        sign, *digits, equals = prompt
        right = by_hand(DOMAINS[sign - FIRST_SIGN], digits)
        assert equals == EQUALS and len(prompt) == PROMPT and text == [*right, *[END] * (RESPONSE - len(right))]
        assert length == len(right) + 1
    assert lengths(torch.tensor([[1] * RESPONSE, [END] * RESPONSE, [1, END, 1, END, 1, 1, 1, 1]])).tolist() == [8, 1, 2]
    assert max(FIRST_SIGN + len(DOMAINS), EQUALS, END) == VOCABULARY
    assert answer(prompts[None, :, None].expand(2, -1, 3, -1)).shape == (2, 200, 3, RESPONSE)


def test_streams_differ_in_every_part_of_their_key():
    """The generator reads the lowest 32 bits alone: all keys of a study have different ones."""
    keys = [(s, kind, m) for s in (0, 1, 19, 39) for kind in range(13) for m in (-1000, -999, 0, 1, 149, 1599)]
    assert len({float(torch.rand((), generator=stream(*key), dtype=torch.float64)) for key in keys}) == len(keys)
    assert torch.equal(torch.rand(3, generator=stream(1, 2, 3)), torch.rand(3, generator=stream(1, 2, 3)))


def test_the_measures_of_a_step_equal_their_definitions():
    draw = torch.Generator().manual_seed(2)
    rows, tokens, per = 16, RESPONSE, 4
    mask = torch.arange(tokens) < torch.randint(2, tokens + 1, (rows, 1), generator=draw)
    weight = torch.randn(rows, 1, generator=draw)
    weight[::5] = 0  # groups whose answers are all alike say nothing
    on_policy = (weight / mask.sum(1, keepdim=True)).expand(rows, tokens) * mask
    log_ratio = torch.randn(rows, tokens, generator=draw) / 2
    factor = torch.tensor([-2.0, 0, 0.5, 1, 3])[torch.randint(5, (rows, tokens), generator=draw)]
    metrics = {"token/passed": 0.5, "domain/+/passed": 0.25, "domain/-/passed": 0.75, "domain/+/passed[domain=0]": 9.0}
    found = of_step(on_policy * factor, on_policy, log_ratio, mask, {**metrics, "domain/+/drift": 3.0})
    pushed = against = zeroed = counted = 0
    largest, k3, means = 0.0, [[] for _ in DOMAINS], []
    for i in range(rows):
        kept = [j for j in range(tokens) if mask[i, j]]
        means.append(sum(float(log_ratio[i, j]) for j in kept) / len(kept))
        for j in kept:
            x, c = float(log_ratio[i, j]), float(factor[i, j]) * float(on_policy[i, j])
            k3[i // per].append(math.exp(x) - 1 - x)
            if weight[i] == 0:
                continue
            counted += 1
            outward = (c > 0 and x > 0) or (c < 0 and x < 0)
            pushed += outward
            against += outward and (c > 0) != (float(weight[i]) > 0)
            zeroed += c == 0
            largest = max(largest, abs(float(factor[i, j])))
    whole = sum(means) / rows
    of_domain = [sum(means[d * per : (d + 1) * per]) / per for d in range(len(DOMAINS))]
    between = sum((m - whole) ** 2 for m in of_domain) / len(of_domain) / (sum((m - whole) ** 2 for m in means) / rows)
    assert found["amplification"] == pytest.approx(largest) and 0 < against < pushed < counted and zeroed
    assert found["outward"] == pytest.approx(pushed / counted) and found["against"] == pytest.approx(against / counted)
    assert found["zeroed"] == pytest.approx(zeroed / counted) and found["between"] == pytest.approx(between, rel=1e-5)
    assert found["divergence"] == pytest.approx([sum(x) / len(x) for x in k3], rel=1e-5)
    assert {k: v for k, v in found.items() if k.startswith("gated")} == {"gated/token": 0.5, "gated/domain": 0.5}


def test_evaluations_are_exact_divergences_at_states_of_right_answers(monkeypatch):
    monkeypatch.setattr(measures, "QUESTIONS", 2)
    shape, models = Shape(width=8, layers=1, heads=2), 2
    draw = torch.Generator().manual_seed(5)
    base, now, last = torch.randn(3, models, shape.size, generator=draw, dtype=torch.float64) / 4
    series = Series(shape, models, shape.views(base))
    looked = [(0, base), (3, last), (EVERY, now), (2 * EVERY, last)]
    for number, flat in looked:
        series.look(number, shape.views(flat))
        grown = {"grad_norm": float(number), "reward": [float(number), 1.0, 1.0, 1.0]}
        series.add([grown, {**grown, "grad_norm": 2.0}])
        series.add([{**grown, "grad_norm": 1.0}] * models)
    found = series.results()
    every = lambda flat, q, text: of_response(shape, flat, q.tolist(), text.tolist())  # noqa: E731
    for m in range(models):
        for d in range(len(DOMAINS)):
            kl = {"moved": [], "from_base": [], "entropy": []}
            for q in range(2 * d, 2 * d + 2):
                prompt, right = series.asked[m, q], series.right[q]
                n = int(lengths(right))
                p, r, s = (every(flat[m], prompt, right)[:n] for flat in (base, now, last))
                kl["from_base"].append(float((p.exp() * (p - s)).sum(-1).mean()))
                kl["moved"].append(float((r.exp() * (r - s)).sum(-1).mean()))
                kl["entropy"].append(float(-(s.exp() * s).sum(-1).mean()))
            for name, values in kl.items():
                assert found[m][name][2][d] == pytest.approx(sum(values) / 2, rel=6e-3), name
        assert found[m]["moved"][1] == found[m]["from_base"][1] and found[m]["moved"][0] == [0] * len(DOMAINS)
    assert found[0]["grad_norm"] == [3.0, 10.0] and found[1]["grad_norm"] == [
        2.0,
        2.0,
    ]  # the largest since the last look
    assert found[0]["reward"][0] == [1.5, 1.0, 1.0, 1.0]  # the mean: of twice 0 and twice 3
    assert [len(found[0][name]) for name in ("right", "moved", "reward")] == [3, 3, 2]


def test_an_answer_counts_if_all_of_it_is_right(monkeypatch):
    shape = Shape(width=8, layers=1, heads=2)
    flat = torch.zeros(1, shape.size)
    series = Series(shape, 1, shape.views(flat))
    assert series.right.shape == (QUESTIONS * len(DOMAINS), RESPONSE)

    def said(shape, weights, prompts, samples, noise):
        assert noise is None and samples == 1
        text = answer(prompts)[:, :, None].clone()
        text[:, : QUESTIONS // 2, 0, -1] = 3  # nothing ends after its END but the last token of half of the additions
        text[:, QUESTIONS : QUESTIONS + 5, 0, 0] = 12
        return text, torch.zeros(text.shape)

    monkeypatch.setattr(measures, "sample", said)
    assert series.accuracy(shape.views(flat)).tolist() == [[QUESTIONS // 2, QUESTIONS - 5, QUESTIONS, QUESTIONS]]
