"""Shipped hierarchies, a file per family, written as a user writes one; a name is one over all files."""

if __name__ == "specs":
    raise ImportError("import fibration.specs, not specs: the folder is linked into the package")
