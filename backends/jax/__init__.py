"""Standalone modules for JAX. `fibration compile` writes them; no operator of this library runs them."""

if __name__ == "jax":
    raise ImportError("import fibration.backends.jax: the folder is linked into the package")
