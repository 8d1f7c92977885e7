"""The library says what is recorded of each hierarchy, and computes the recorded numbers."""

from functools import cache

import numpy as np
import pytest
from fuzz.operators import call
from thorough import some

from corpus.record import BATCHES, FILES, batch, differences, keys, record, recorded, values
from fibration.errors import FibrationError

keys, recorded = cache(keys), cache(recorded)
EVERY = some([(file, key) for file in FILES for key in recorded(file)], 6)
CLOSE = 1e-10  # relative to the largest coefficient: rounding of float64, and of sums in another order


@pytest.mark.sampled
@pytest.mark.parametrize(("file", "key"), EVERY)
def test_the_library_says_what_is_recorded(file, key):
    found = list(differences(recorded(file)[key], record(keys(file)[key])))
    assert not found, "\n".join([*found, "a change needs a reason; python -m corpus.record writes the records anew"])


@pytest.mark.parametrize("file", FILES)
def test_everything_is_recorded(file):
    assert recorded(file).keys() == keys(file).keys()


@pytest.mark.sampled
@pytest.mark.parametrize("key", recorded("shipped"))
def test_the_compiler_computes_the_recorded_numbers(key):
    h, told = keys("shipped")[key], recorded("shipped")[key]["values"]
    for seed in range(BATCHES):
        if isinstance(told[seed], str):
            continue
        try:
            found = call(h, batch(h, seed)).coefficients()
        except FibrationError:  # a batch that an index refuses
            continue
        c = found.values.numpy()
        weighed = float(np.arange(1, len(c) + 1) @ c)
        for mine, number in zip((float(found.objective), weighed), map(float, told[seed]), strict=True):
            assert abs(mine - number) <= CLOSE * len(c) * max(1.0, abs(number), np.abs(c).max()), (seed, mine, number)


def test_a_changed_number_is_a_difference():
    key, old = next(iter(recorded("shipped").items()))
    new = {**old, "values": [["1e0", "2e0"], *old["values"][1:]], "facts": {**old["facts"], "new: fact": ["1"]}}
    assert [d.split(" | ")[0] for d in differences(old, new)] == ["facts", "values"], key
    assert values(keys("shipped")[key], 0) == old["values"][0]
