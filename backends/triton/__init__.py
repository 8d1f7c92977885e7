"""Fused Triton kernels, compiled just in time on CUDA and ROCm devices, or ahead of time without a device."""

if __name__ == "triton":
    raise ImportError("import fibration.backends.triton: the folder is linked into the package")
