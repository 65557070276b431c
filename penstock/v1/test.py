"""Testing graphs."""

from unittest import mock

from penstock.face.missing import guard as _guard
from penstock.testing import (
    TestCase,
    assert_equal_graph_def,
    compute_gradient,
    compute_gradient_error,
    get_temp_dir,
    gpu_device_name,
    is_built_with_cuda,
    is_gpu_available,
    main,
)

__getattr__ = _guard(__name__)
