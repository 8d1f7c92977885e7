"""The file that `fibration compile -o` writes for the jax backend: the generated module, which imports only jax."""

from functools import partial

from fibration.backends.standalone import alone

export = partial(alone, "jax")
