"""Keys of `gives_up`: a law, `"inward"`, or a law and its subject, `"inward of trajectory"`.

A subject is written as the report shows it, or shorter: `"inward of gate on trajectory"` is `"inward of trajectory"`,
and `"kl_gradient of penalty 'kl'"` is `"kl_gradient of kl"`.
"""

from __future__ import annotations

import re

LEFT = "what is left of "  # prefix of the subject of a verdict on the rest of a law that is given up
_PREFIX = re.compile(rf"({LEFT})?(?:gate on (\w+)|residual on (\w+)|penalty '([^']*)')$")


def parts(key: str) -> tuple[str, str]:
    """Returns the law and the subject of a key; the subject is '' if the key is a law alone."""
    law, _, subject = key.partition(" of ")
    return law, subject


def short(subject: str) -> str:
    """Returns the name of a subject: `trajectory` for `gate on trajectory`."""
    found = _PREFIX.match(subject)
    return subject if found is None else (found[1] or "") + next(name for name in found.groups()[1:] if name)


def key_of(law: str, subject: str) -> str:
    """Returns the key that gives up a law for one subject."""
    return law if subject == "hierarchy" else f"{law} of {short(subject)}"


def names(key: str, law: str, subject: str) -> bool:
    """Whether a key names this subject of this law."""
    return parts(key)[0] == law and parts(key)[1] in (subject, short(subject))


def example(key: str) -> str:
    """Returns the argument that gives up a law, as text to type."""
    return f"gives_up={{{key!r}: 'why'}}"
