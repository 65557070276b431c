"""Tests of programs."""

from penstock.face.missing import guard as _guard
from penstock.testing import TestCase, gpu_device_name, is_built_with_cuda, is_gpu_available, main
from penstock.testing_v2 import (
    assert_equal_graph_def,
    compute_gradient,
    is_built_with_gpu_support,
    is_built_with_rocm,
    is_built_with_xla,
)

__getattr__ = _guard(__name__)
