"""Triton kernels: untyped, because Triton reads their source; everything that calls them is typed."""
