"""Backends: each turns scheduled IR into source for one target, and knows nothing of the front end."""

if __name__ == "backends":
    raise ImportError("import fibration.backends, not backends: the folder is linked into the package")
