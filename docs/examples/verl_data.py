"""Data with two domains for the run of docs/trainers/verl.md."""

import random

import pandas as pd

draw = random.Random(0)


def addition():
    a, b = draw.randint(100, 999), draw.randint(100, 999)
    return f"What is {a} + {b}?", str(a + b)


def sorting():
    words = draw.sample("apple bread chair dance eagle flame grape house igloo juice knife lemon".split(), 5)
    return f"Sort these words: {' '.join(words)}", " ".join(sorted(words))


def row(domain, make):
    question, answer = make()
    prompt = f"{question} Think, then give the answer alone in the last line."
    return {
        "data_source": domain,  # the label of its domain
        "prompt": [{"role": "user", "content": prompt}],
        "reward_model": {"ground_truth": answer},
    }


for name, size in (("train", 4096), ("test", 256)):
    rows = [row(make.__name__, make) for _ in range(size // 2) for make in (addition, sorting)]
    pd.DataFrame(rows).to_parquet(f"{name}.parquet")
