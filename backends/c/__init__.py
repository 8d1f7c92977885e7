"""Fused C11 and OpenMP for CPUs, built with the system's compiler."""

if __name__ == "c":
    raise ImportError("import fibration.backends.c: the folder is linked into the package")
