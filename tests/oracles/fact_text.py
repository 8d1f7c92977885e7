"""Reads the bounds and intervals of a certified fact from its text."""

import math
import re


def parameter_values(h, **given):
    """Every parameter's default, per channel where it has channels, by the name a fact calls it."""
    values = {}
    for p in h.parameters.values():
        for channel, value in p.default_items():
            for c in [channel] if channel else ["", "+", "-"]:
                values[p.name + (f"[{c}]" if c else "")] = float(value)
    return {**values, **given}


def number(text, values, counts=None):
    """The value of a bound as it is printed; `counts` has the values of `count(...)` and `total(...)`."""
    text = re.sub(r"(?:count|total)\([^()]*\)", lambda m: repr(float(counts[m.group()])), text)
    names = {
        "inf": math.inf,
        "minimum": min,
        "maximum": max,
        "min": min,
        "log": lambda x: math.log(x) if x > 0 else math.nan,  # in the branch of a choice that is not taken
        "sqrt": math.sqrt,
        "exp": math.exp,
        "where": lambda condition, a, b: a if condition else b,
    }
    for i, (name, value) in enumerate(sorted(values.items(), key=lambda item: -len(item[0]))):
        text = re.sub(rf"(?<![\w]){re.escape(name)}(?![\w\[])", f"v{i}_", text)
        names[f"v{i}_"] = value
    return float(eval(text, {"__builtins__": {}}, names))  # the report's own text, in tests only


def interval(text, values, counts=None):
    low, high = re.fullmatch(r"[\[(](.*), (.*)[\])]", text).groups()
    depth = 0  # the comma between the bounds is the one outside parentheses
    for i, c in enumerate(text[1:-1]):
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            low, high = text[1 : i + 1], text[i + 2 : -1]
    return number(low, values, counts), number(high, values, counts)
