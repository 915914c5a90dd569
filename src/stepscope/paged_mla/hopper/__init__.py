"""CUDA C++ kernels for sm_90a, compiled at first use with NVRTC and launched through the driver."""
