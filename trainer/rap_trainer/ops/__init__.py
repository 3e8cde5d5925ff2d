"""Eager twins of the contract's ops: vectorised PyTorch for CPU and CUDA, and the reference of the fused kernels."""
