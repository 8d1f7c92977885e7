"""The file that `fibration compile -o` writes for the torch backend: the generated module, which imports only torch."""

from functools import partial

from fibration.backends.standalone import alone

export = partial(alone, "torch")
