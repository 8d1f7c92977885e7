"""Fused Triton kernels: just in time on CUDA and ROCm devices, or ahead of time on a machine without any."""

if __name__ == "triton":
    raise ImportError("import fibration.backends.triton: the folder is linked into the package")
