"""The project's Triton kernels. Each file is one operation: the kernel, then the function that launches it.

They run on a GPU, and on any machine under Triton's interpreter (TRITON_INTERPRET=1), which is how they are tested
without one. Values are widened to float32 where they are computed with.
"""
