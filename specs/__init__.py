"""Shipped hierarchies, one file each, written as a user writes one."""

if __name__ == "specs":
    raise ImportError("import fibration.specs, not specs: the folder is linked into the package")
