"""Readable, vectorised, eager torch: the reference that runs anywhere torch does."""

if __name__ == "torch":
    raise ImportError("import fibration.backends.torch: the folder is linked into the package")
