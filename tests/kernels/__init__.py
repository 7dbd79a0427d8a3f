"""The Triton kernels and what is built of them, interpreted on any machine and compiled on a GPU."""
