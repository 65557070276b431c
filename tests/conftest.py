"""Settings of jax that all tests share, in this process and in the ones that tests start.

**Precision.** Beside a GPU, jax multiplies float32 matrices in TF32 where cuBLAS or cuDNN has a kernel for the shapes:
10 bits instead of 23 after the point, and which kernel is taken is measured anew in each process. The tests ask
whether the right numbers are multiplied and added, and tolerances a thousand times wider would hide a missing term in
a long sum. So all run at jax's highest precision, which is float32 everywhere and changes nothing on a CPU. What users
get, jax's own default, has its tests in `ops/test_precision.py`.

**Memory.** Each process would take three quarters of the GPU's memory at once, and pytest runs two, which start others.
"""

import os

os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
