"""Inputs for the numerical check of gradients, for ops whose declaration does not suffice, and ops that it leaves out.

An input or attr that a case does not give is made from the declaration: floats of shape [2, 3] between 0.2 and 0.9, the
default of the attr. `R(shape, low, high)` are floats to differentiate by; anything else is a constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

import penstock
import penstock.v1 as tf


@dataclass(frozen=True)
class R:
    """Random floats of a shape, no two equal; `make` turns them into others, such as a symmetric matrix."""

    shape: tuple[int, ...] = (2, 3)
    low: float = 0.2
    high: float = 0.9
    make: Callable[[np.ndarray], np.ndarray] | None = None


def fixed(*shape: int) -> np.ndarray:
    return np.linspace(0.3, 1.7, int(np.prod(shape))).reshape(shape)


def spd(x: np.ndarray) -> np.ndarray:
    return x @ np.swapaxes(x, -1, -2) + np.eye(x.shape[-1])


def lower(x: np.ndarray) -> np.ndarray:
    return np.tril(x) + np.eye(x.shape[-1])


IMAGE, FILTER = R((1, 4, 5, 2)), R((2, 3, 2, 2))
VOLUME, FILTER3D = R((1, 3, 4, 3, 2)), R((2, 2, 2, 2, 2))
CONV = {"strides": [1, 2, 1, 1], "padding": "SAME"}
CONV1 = {"strides": [1, 1, 1, 1], "padding": "VALID"}
CONV3D = {"strides": [1, 1, 1, 1, 1], "padding": "VALID"}
POOL = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}
POOL3D = {"ksize": [1, 2, 2, 2, 1], "strides": [1, 1, 1, 1, 1], "padding": "VALID"}
SPARSE = np.array([[0, 1], [1, 0], [1, 2]], np.int64)
SEGMENTS = {"data": R((4, 3)), "segment_ids": np.array([0, 0, 1, 2], np.int32)}
SPARSE_SEGMENTS = {**SEGMENTS, "indices": np.array([3, 1, 1], np.int32), "segment_ids": np.array([0, 0, 1], np.int32)}
UNSORTED = {"data": R((4, 3)), "segment_ids": np.array([2, 0, 2, 1], np.int32), "num_segments": np.int32(3)}
BOXES = np.array([[0.12, 0.15, 0.77, 0.71], [0.14, 0.13, 0.75, 0.73]])  # no sample near the middle of a pixel
POOLED = {"orig_input": fixed(1, 4, 5, 2), "orig_output": fixed(1, 4, 5, 2)[:, 1::2, 1:4:2]}
POOLED3D = {"orig_input": fixed(1, 3, 4, 3, 2), "orig_output": fixed(1, 3, 4, 3, 2)[:, 1:, 1:, 1:]}
AT = np.arange(40).reshape(1, 4, 5, 2)[:, 1::2, 1:4:2]  # places of the maxima of a growing image
POOL_INPUTS = {"ksize": np.array([1, 2, 2, 1], np.int32), "strides": np.array([1, 2, 2, 1], np.int32)}
MATRIX = R((2, 3, 3), make=spd)
COMPLEX = {"Tcomplex": tf.complex128}
FUSED = {
    "x": R((2, 2, 2, 3)),
    "scale": R((3,)),
    "offset": R((3,)),
    "mean": np.zeros(0, np.float32),
    "variance": np.zeros(0, np.float32),
    "T": tf.float32,
    "_wrt": ["x", "scale", "offset"],
    "_outputs": [0],
    "_tolerance": 2e-2,
}

# Op type: inputs and attrs by name. "_wrt": the inputs to differentiate by, where there is no gradient for others.
# "_outputs": the outputs to differentiate. "_symmetric": the inputs stay symmetric. "_step" and "_tolerance".
CASES: dict[str, dict[str, Any]] = {
    # Unary: where the domain is not (0.2, 0.9)
    "Acosh": {"x": R(low=1.2, high=2.0)},
    "Sign": {"x": R(low=0.2)},
    "Complex": {"Tout": tf.complex128},
    "ComplexAbs": {"T": tf.complex128, "Tout": tf.float64},
    "Angle": {"T": tf.complex128, "Tout": tf.float64},
    "Real": {"T": tf.complex128, "Tout": tf.float64},
    "Imag": {"T": tf.complex128, "Tout": tf.float64},
    "Conj": {"T": tf.complex128},
    "Cast": {"SrcT": tf.float64, "DstT": tf.float32, "_tolerance": 1e-2},
    "CheckNumerics": {"message": "m"},
    "ConjugateTranspose": {"T": tf.complex128, "perm": np.array([1, 0], np.int32)},
    # Binary
    "Betainc": {"a": fixed(2, 3), "b": fixed(2, 3)},
    "BetaincGrad": {"a": fixed(2, 3), "b": fixed(2, 3)},
    "Polygamma": {"a": np.ones((2, 3))},
    "Zeta": {"x": 2 + fixed(2, 3)},
    "Igamma": {"_tolerance": 1e-4},
    "FloorMod": {"x": R(low=2.1, high=2.4), "y": R(low=0.9, high=0.95)},
    "Mod": {"x": R(low=2.1, high=2.4), "y": R(low=0.9, high=0.95)},
    "TruncateMod": {"x": R(low=2.1, high=2.4), "y": R(low=0.9, high=0.95)},
    "ClipByValue": {"clip_value_min": 0.4, "clip_value_max": 0.7, "_wrt": ["t"]},
    "MatMul": {"b": R((3, 4))},
    "BatchMatMul": {"x": R((2, 2, 3)), "y": R((2, 3, 2))},
    "BatchMatMulV2": {"x": R((2, 2, 3)), "y": R((3, 2))},
    "SparseMatMul": {"a": R((2, 3)), "b": R((3, 2)), "Ta": tf.float32, "Tb": tf.float32},
    "Einsum": {"inputs": [R((2, 3)), R((3, 4))], "equation": "ab,bc->ca"},
    "BiasAdd": {"bias": R((3,))},
    "BiasAddV1": {"bias": R((3,))},
    # Arranging
    "Transpose": {"perm": np.array([1, 0], np.int32)},
    "ReverseV2": {"axis": np.array([1], np.int32)},
    "Roll": {"shift": np.int32(1), "axis": np.int32(1)},
    "ReverseSequence": {"seq_lengths": np.array([2, 3], np.int32), "seq_dim": 1},
    "Reshape": {"shape": np.array([3, 2], np.int32)},
    "ExpandDims": {"dim": np.int32(1)},
    "Squeeze": {"input": R((2, 1, 3))},
    "EnsureShape": {"shape": [2, 3]},
    "PlaceholderWithDefault": {"shape": [2, 3], "_wrt": ["input"]},
    "ConcatV2": {"axis": np.int32(1)},
    "Pad": {"paddings": np.array([[1, 0], [0, 2]], np.int32)},
    "PadV2": {"paddings": np.array([[1, 0], [0, 2]], np.int32), "constant_values": np.float64(0.5)},
    "MirrorPad": {"paddings": np.array([[1, 0], [0, 2]], np.int32), "mode": "REFLECT"},
    "Split": {"split_dim": np.int32(1), "num_split": 3},
    "SplitV": {"size_splits": np.array([1, 2], np.int32), "split_dim": np.int32(1), "num_split": 2},
    "Unpack": {"num": 2},
    "Tile": {"multiples": np.array([2, 1], np.int32)},
    "BroadcastTo": {"shape": np.array([4, 2, 3], np.int32)},
    "Fill": {"dims": np.array([2, 2], np.int32), "value": R(())},
    "Slice": {"begin": np.array([0, 1], np.int32), "size": np.array([2, 2], np.int32)},
    "StridedSlice": {
        "begin": np.array([0, 0], np.int32),
        "end": np.array([2, 3], np.int32),
        "strides": np.array([1, 2], np.int32),
    },
    "StridedSliceGrad": {
        "shape": np.array([2, 3], np.int32),
        "begin": np.array([0, 0], np.int32),
        "end": np.array([2, 3], np.int32),
        "strides": np.array([1, 2], np.int32),
        "dy": R((2, 2)),
    },
    "MatrixBandPart": {"input": R((3, 3)), "num_lower": np.int64(1), "num_upper": np.int64(0)},
    "Diag": {"diagonal": R((3,))},
    "DiagPart": {"input": R((3, 3))},
    "MatrixSetDiag": {"diagonal": R((2,))},
    "BatchToSpaceND": {
        "input": R((4, 2, 2, 1)),
        "block_shape": np.array([2, 2], np.int32),
        "crops": np.array([[0, 1], [0, 0]], np.int32),
    },
    "SpaceToBatchND": {
        "input": R((1, 3, 4, 1)),
        "block_shape": np.array([2, 2], np.int32),
        "paddings": np.array([[0, 1], [0, 0]], np.int32),
    },
    "DepthToSpace": {"input": R((1, 2, 2, 4)), "block_size": 2},
    "SpaceToDepth": {"input": R((1, 2, 4, 1)), "block_size": 2},
    "ExtractImagePatches": {
        "images": IMAGE,
        "ksizes": [1, 2, 2, 1],
        "strides": [1, 1, 2, 1],
        "rates": [1, 1, 1, 1],
        "padding": "SAME",
    },
    "ExtractVolumePatches": {
        "input": VOLUME,
        "ksizes": [1, 2, 2, 1, 1],
        "strides": [1, 1, 2, 1, 1],
        "padding": "VALID",
    },
    # Gathering
    "Gather": {"indices": np.array([1, 1, 0], np.int32)},
    "GatherV2": {"indices": np.array([1, 1, 0], np.int32), "axis": np.int32(1)},
    "GatherNd": {"indices": np.array([[1, 1], [0, 2]], np.int32)},
    "ScatterNd": {"indices": np.array([[1], [3], [1]], np.int32), "updates": R((3,)), "shape": np.array([4], np.int32)},
    "TensorScatterAdd": {"indices": np.array([[1]], np.int32), "updates": R((1, 3))},
    "TensorScatterSub": {"indices": np.array([[1]], np.int32), "updates": R((1, 3))},
    "TensorScatterMax": {"indices": np.array([[1]], np.int32), "updates": R((1, 3), 0.3, 1.0)},
    "TensorScatterMin": {"indices": np.array([[1]], np.int32), "updates": R((1, 3), 0.3, 1.0)},
    "TensorScatterUpdate": {"indices": np.array([[1]], np.int32), "updates": R((1, 3))},
    "DynamicPartition": {"partitions": np.array([1, 0], np.int32), "num_partitions": 2},
    "DynamicStitch": {"indices": [np.array([0, 2], np.int32), np.array([1, 3], np.int32)], "N": 2},
    "ParallelDynamicStitch": {"indices": [np.array([0, 2], np.int32), np.array([1, 3], np.int32)], "N": 2},
    "Select": {"condition": np.array([[True, False, True], [False, False, True]])},
    "SelectV2": {"condition": np.array([True, False, True])},
    "TopK": {"k": 2},
    "TopKV2": {"k": np.int32(2)},
    "TopKGrad": {"indices": np.array([[0, 2], [1, 0]], np.int32), "dy": R((2, 2))},
    "NthElement": {"n": np.int32(1)},
    # Reductions
    **{
        name: {"reduction_indices": np.array([1], np.int32)}
        for name in ("Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm")
    },
    **{name: {"axis": np.int32(1)} for name in ("Cumsum", "Cumprod", "CumulativeLogsumexp")},
    **{name: SEGMENTS for name in ("SegmentSum", "SegmentMean", "SegmentProd", "SegmentMax", "SegmentMin")},
    "SegmentExtremeGrad": {
        **SEGMENTS,
        "data": np.arange(12.0).reshape(4, 3),
        "dy": R((3, 3)),
        "extreme": np.arange(12.0).reshape(4, 3)[[1, 2, 3]],
        "_wrt": ["dy"],
    },
    "SegmentProdGrad": {**SEGMENTS, "dy": R((3, 3))},
    **{f"SparseSegment{kind}": SPARSE_SEGMENTS for kind in ("Sum", "Mean", "SqrtN")},
    **{
        f"SparseSegment{kind}WithNumSegments": {**SPARSE_SEGMENTS, "num_segments": np.int32(3)}
        for kind in ("Sum", "Mean", "SqrtN")
    },
    **{
        f"SparseSegment{kind}Grad": {
            "grad": R((2, 3)),
            "indices": np.array([3, 1, 1], np.int32),
            "segment_ids": np.array([0, 0, 1], np.int32),
            "output_dim0": np.int32(4),
        }
        for kind in ("Sum", "Mean", "SqrtN")
    },
    **{f"UnsortedSegment{kind}": UNSORTED for kind in ("Sum", "Prod", "Max", "Min")},
    # Losses
    "SparseSoftmaxCrossEntropyWithLogits": {"labels": np.array([2, 0], np.int32), "_outputs": [0]},
    "SoftmaxCrossEntropyWithLogits": {"labels": R(make=lambda x: x / x.sum(-1, keepdims=True)), "_outputs": [0]},
    "CTCLoss": {
        "inputs": R((4, 1, 3)),
        "labels_indices": np.array([[0, 0], [0, 1]], np.int64),
        "labels_values": np.array([0, 1], np.int32),
        "sequence_length": np.array([4], np.int32),
        "T": tf.float64,
        "_outputs": [0],
    },
    # Convolutions and pools
    "Conv2D": {"input": IMAGE, "filter": FILTER, **CONV},
    "Conv2DBackpropInput": {
        "input_sizes": np.array([1, 4, 5, 2], np.int32),
        "filter": FILTER,
        "out_backprop": R((1, 2, 5, 2)),
        **CONV,
    },
    "Conv2DBackpropFilter": {
        "input": IMAGE,
        "filter_sizes": np.array([2, 3, 2, 2], np.int32),
        "out_backprop": R((1, 2, 5, 2)),
        **CONV,
    },
    "Conv2DBackpropInputV2": {"input": fixed(1, 4, 5, 2), "filter": FILTER, "out_backprop": R((1, 2, 5, 2)), **CONV},
    "Conv2DBackpropFilterV2": {"input": IMAGE, "filter": fixed(2, 3, 2, 2), "out_backprop": R((1, 2, 5, 2)), **CONV},
    "DepthwiseConv2dNative": {"input": IMAGE, "filter": FILTER, **CONV1},
    "DepthwiseConv2dNativeBackpropInput": {
        "input_sizes": np.array([1, 4, 5, 2], np.int32),
        "filter": FILTER,
        "out_backprop": R((1, 3, 3, 4)),
        **CONV1,
    },
    "DepthwiseConv2dNativeBackpropFilter": {
        "input": IMAGE,
        "filter_sizes": np.array([2, 3, 2, 2], np.int32),
        "out_backprop": R((1, 3, 3, 4)),
        **CONV1,
    },
    "Conv3D": {"input": VOLUME, "filter": FILTER3D, **CONV3D},
    "Conv3DBackpropInput": {
        "input": fixed(1, 3, 4, 3, 2),
        "filter": FILTER3D,
        "out_backprop": R((1, 2, 3, 2, 2)),
        **CONV3D,
    },
    "Conv3DBackpropFilter": {
        "input": VOLUME,
        "filter": fixed(2, 2, 2, 2, 2),
        "out_backprop": R((1, 2, 3, 2, 2)),
        **CONV3D,
    },
    "Conv3DBackpropInputV2": {
        "input_sizes": np.array([1, 3, 4, 3, 2], np.int32),
        "filter": FILTER3D,
        "out_backprop": R((1, 2, 3, 2, 2)),
        **CONV3D,
    },
    "Conv3DBackpropFilterV2": {
        "input": VOLUME,
        "filter_sizes": np.array([2, 2, 2, 2, 2], np.int32),
        "out_backprop": R((1, 2, 3, 2, 2)),
        **CONV3D,
    },
    "Dilation2D": {"input": IMAGE, "filter": R((2, 2, 2)), **CONV1, "rates": [1, 1, 1, 1]},
    "Dilation2DBackpropInput": {
        "input": fixed(1, 4, 5, 2),
        "filter": fixed(2, 2, 2),
        "out_backprop": R((1, 3, 4, 2)),
        **CONV1,
        "rates": [1, 1, 1, 1],
    },
    "Dilation2DBackpropFilter": {
        "input": fixed(1, 4, 5, 2),
        "filter": fixed(2, 2, 2),
        "out_backprop": R((1, 3, 4, 2)),
        **CONV1,
        "rates": [1, 1, 1, 1],
    },
    "AvgPool": {"value": IMAGE, **POOL},
    "AvgPoolGrad": {"orig_input_shape": np.array([1, 4, 5, 2], np.int32), "grad": R((1, 2, 2, 2)), **POOL},
    "AvgPool3D": {"input": VOLUME, **POOL3D},
    "AvgPool3DGrad": {"orig_input_shape": np.array([1, 3, 4, 3, 2], np.int32), "grad": R((1, 2, 3, 2, 2)), **POOL3D},
    "MaxPool": {"input": IMAGE, **POOL},
    "MaxPoolV2": {
        "input": IMAGE,
        "ksize": np.array([1, 2, 2, 1], np.int32),
        "strides": np.array([1, 2, 2, 1], np.int32),
        "padding": "VALID",
    },
    "MaxPool3D": {"input": R((1, 3, 4, 3, 2), 1.0, 40.0), **POOL3D},
    "MaxPoolGrad": {**POOLED, "grad": R((1, 2, 2, 2)), **POOL, "_wrt": ["grad"]},
    "MaxPoolGradV2": {**POOLED, "grad": R((1, 2, 2, 2)), **POOL_INPUTS, "padding": "VALID"},
    "MaxPoolGradGrad": {**POOLED, "grad": R((1, 4, 5, 2)), **POOL},
    "MaxPoolGradGradV2": {**POOLED, "grad": R((1, 4, 5, 2)), **POOL_INPUTS, "padding": "VALID"},
    "MaxPool3DGrad": {**POOLED3D, "grad": R((1, 2, 3, 2, 2)), **POOL3D},
    "MaxPool3DGradGrad": {**POOLED3D, "grad": R((1, 3, 4, 3, 2)), **POOL3D},
    "MaxPoolGradWithArgmax": {"input": fixed(1, 4, 5, 2), "grad": R((1, 2, 2, 2)), "argmax": AT, **POOL},
    "MaxPoolGradGradWithArgmax": {"input": fixed(1, 4, 5, 2), "grad": R((1, 4, 5, 2)), "argmax": AT, **POOL},
    "MaxPoolWithArgmax": {"input": IMAGE, **POOL},
    **{
        f"Fractional{kind}Pool": {
            "value": R((1, 5, 5, 2)),
            "pooling_ratio": [1.0, 1.5, 1.4, 1.0],
            "deterministic": True,
            "seed": 3,
            "seed2": 4,
        }
        for kind in ("Avg", "Max")
    },
    # Norms
    "LRN": {"input": R((1, 2, 2, 4)), "depth_radius": 1, "T": tf.float32},
    "FusedBatchNorm": FUSED,
    **{f"FusedBatchNormGrad{version}": {"_step": 2e-3, "_tolerance": 2e-2} for version in ("", "V2", "V3")},
    "FusedBatchNormV2": {**FUSED, "U": tf.float32},
    "FusedBatchNormV3": {**FUSED, "U": tf.float32},
    "BatchNormWithGlobalNormalization": {
        "t": R((1, 2, 2, 3)),
        "m": R((3,)),
        "v": R((3,)),
        "beta": R((3,)),
        "gamma": R((3,)),
        "variance_epsilon": 0.01,
        "scale_after_normalization": True,
    },
    # Images
    "ResizeBilinear": {"images": IMAGE, "size": np.array([3, 7], np.int32), "T": tf.float32},
    "ResizeBicubic": {"images": IMAGE, "size": np.array([3, 7], np.int32), "T": tf.float32},
    "ResizeNearestNeighbor": {"images": IMAGE, "size": np.array([3, 7], np.int32)},
    "ResizeNearestNeighborGrad": {"grads": IMAGE, "size": np.array([3, 7], np.int32)},
    "ResizeBilinearGrad": {"grads": R((1, 3, 7, 2)), "original_image": fixed(1, 4, 5, 2)},
    "ResizeBicubicGrad": {"grads": R((1, 3, 7, 2)), "original_image": fixed(1, 4, 5, 2)},
    "CropAndResize": {
        "image": IMAGE,
        "boxes": R((2, 4), 0, 0.01, lambda x: x + BOXES),
        "T": tf.float32,
        "box_ind": np.array([0, 0], np.int32),
        "crop_size": np.array([3, 3], np.int32),
    },
    "CropAndResizeGradBoxes": {
        "grads": R((2, 3, 3, 2)),
        "image": fixed(1, 4, 5, 2),
        "T": tf.float32,
        "boxes": BOXES,
        "box_ind": np.array([0, 0], np.int32),
    },
    "CropAndResizeGradImage": {
        "grads": R((2, 3, 3, 2)),
        "boxes": BOXES,
        "box_ind": np.array([0, 0], np.int32),
        "image_size": np.array([1, 4, 5, 2], np.int32),
        "T": tf.float32,
    },
    "RGBToHSV": {"images": R((2, 3))},
    # Fourier transforms
    **{name: {"input": R((2, 3, 4)), **COMPLEX} for name in ("FFT", "FFT2D", "FFT3D", "IFFT", "IFFT2D", "IFFT3D")},
    **{
        f"RFFT{d}": {"input": R((2, 3, 4)), "fft_length": np.array(n, np.int32), "Treal": tf.float64, **COMPLEX}
        for d, n in (("", [4]), ("2D", [3, 4]), ("3D", [2, 3, 4]))
    },
    **{
        f"IRFFT{d}": {"input": R((2, 3, 3)), "fft_length": np.array(n, np.int32), "Treal": tf.float64, **COMPLEX}
        for d, n in (("", [4]), ("2D", [3, 4]), ("3D", [2, 3, 4]))
    },
    # Linear algebra
    **{
        name: {"input": MATRIX}
        for name in (
            "MatrixInverse",
            "MatrixDeterminant",
            "LogMatrixDeterminant",
            "MatrixExponential",
            "MatrixSquareRoot",
            "Qr",
        )
    },
    "MatrixDiagV3": {
        "diagonal": R((2, 3)),
        "k": np.int32(0),
        "num_rows": np.int32(-1),
        "num_cols": np.int32(-1),
        "padding_value": np.float64(0),
    },
    "MatrixDiagPartV3": {"input": R((2, 3, 3)), "k": np.array([-1, 0], np.int32), "padding_value": np.float64(0)},
    "MatrixSetDiagV3": {"input": R((2, 3, 3)), "diagonal": R((2, 3)), "k": np.int32(0)},
    "Cholesky": {"input": MATRIX, "_symmetric": True},
    "SelfAdjointEigV2": {"input": MATRIX, "_symmetric": True, "_outputs": [0]},
    "Svd": {"input": R((3, 2)), "_outputs": [0]},
    "MatrixSolve": {"matrix": MATRIX, "rhs": R((2, 3, 2))},
    "MatrixTriangularSolve": {"matrix": R((3, 3), make=lower), "rhs": R((3, 2))},
    "MatrixSolveLs": {
        "matrix": R((4, 2)),
        "rhs": R((4, 1)),
        "l2_regularizer": np.float64(0.1),
        "_wrt": ["matrix", "rhs"],
    },
    "TridiagonalSolve": {"diagonals": R((3, 4), make=lambda x: x + [[0], [2], [0]]), "rhs": R((4, 2))},
    # Sparse tensors
    "SparseReorder": {"input_indices": SPARSE[[2, 0, 1]], "input_values": R((3,)), "input_shape": np.array([2, 3])},
    "SparseSlice": {
        "indices": SPARSE,
        "values": R((3,)),
        "shape": np.array([2, 3]),
        "start": np.array([1, 0]),
        "size": np.array([1, 3]),
    },
    **{
        f"SparseDenseCwise{kind}": {
            "sp_indices": SPARSE,
            "sp_values": R((3,)),
            "sp_shape": np.array([2, 3]),
            "dense": R((2, 3)),
        }
        for kind in ("Add", "Mul", "Div")
    },
    "SparseTensorDenseAdd": {"a_indices": SPARSE, "a_values": R((3,)), "a_shape": np.array([2, 3]), "b": R((2, 3))},
    "SparseTensorDenseMatMul": {"a_indices": SPARSE, "a_values": R((3,)), "a_shape": np.array([2, 3]), "b": R((3, 2))},
    "SparseToDense": {
        "sparse_indices": SPARSE,
        "output_shape": np.array([2, 3]),
        "sparse_values": R((3,)),
        "default_value": R(()),
    },
    "SparseAdd": {
        "a_indices": SPARSE,
        "a_values": R((3,)),
        "a_shape": np.array([2, 3]),
        "b_indices": SPARSE[1:],
        "b_values": R((2,)),
        "b_shape": np.array([2, 3]),
        "thresh": np.float64(0),
    },
    "SparseReduceSum": {
        "input_indices": SPARSE,
        "input_values": R((3,)),
        "input_shape": np.array([2, 3]),
        "reduction_axes": np.array([0], np.int32),
    },
    "SparseSoftmax": {"sp_indices": SPARSE, "sp_values": R((3,)), "sp_shape": np.array([2, 3])},
    "SparseFillEmptyRows": {
        "indices": SPARSE[:1],
        "values": R((1,)),
        "dense_shape": np.array([2, 3]),
        "default_value": R(()),
    },
}


def _branches(x: Any) -> Any:
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x) * x, lambda: -x)


def _loop(x: Any) -> Any:
    return tf.while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * a + x), [0, x])[1]


def _array(x: Any) -> Any:
    array = tf.TensorArray(x.dtype, 2).unstack(x)
    return array.write(1, array.read(0) * 2.0)


def _split(x: Any) -> Any:
    array = tf.TensorArray(x.dtype, 2, infer_shape=False).split(tf.reshape(x, [-1]), [1, tf.size(x) - 1])
    return tf.square(array.concat())


def _lookups(x: Any) -> Any:
    return tf.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a + tf.gather(x, i % 2) ** 3), [0, x[0]])[1]


def _derivative(function: Callable[..., Any], *args: Any) -> Any:
    return tf.convert_to_tensor(tf.gradients(function(*args), args[-1])[0])


def _gram(x: Any) -> Any:
    return tf.matmul(x, x, transpose_b=True) + tf.eye(2, dtype=x.dtype)


def _norm_gradient(x: Any, name: str) -> Any:
    image = tf.cast(tf.concat([tf.reshape(x, [1, 1, 2, 3]), tf.reshape(x * x, [1, 1, 2, 3])], 1), tf.float32)
    empty = tf.zeros([0])
    y = getattr(tf.raw_ops, name)(x=image, scale=[1.0, 2.0, 0.5], offset=[0.0] * 3, mean=empty, variance=empty)[0]
    return tf.gradients(tf.sin(y) * fixed(2, 1, 2).reshape(1, 2, 2, 1), x)[0]


# Op types that only other ops make: a function of one tensor that contains such a node.
BUILT: dict[str, Callable[[Any], Any]] = {
    "If": _branches,
    "While": _loop,
    **dict.fromkeys(("Remember", "Recall"), lambda x: _derivative(_loop, x)),
    **dict.fromkeys(("AddToMemory", "RecallGradient"), lambda x: _derivative(_derivative, _loop, x)),
    "RowsOfMemory": lambda x: _derivative(_lookups, x),
    "MemoryOfRows": lambda x: _derivative(_derivative, _lookups, x),
    "JaxCall": penstock.from_jax(lambda x: jnp.sinh(x) * x[::-1]),
    "Vjp": lambda x: tf.gradients(tf.sinh(x), x)[0],
    "CholeskyGrad": lambda x: tf.gradients(tf.cholesky(_gram(x)) * fixed(2, 2), x)[0],
    "SelfAdjointEigGrad": lambda x: tf.gradients(tf.self_adjoint_eig(_gram(x))[0] * fixed(2), x)[0],
    "MatrixSquareRootGrad": lambda x: tf.gradients(tf.raw_ops.MatrixSquareRoot(input=_gram(x)) * fixed(2, 2), x)[0],
    "FusedBatchNormGrad": lambda x: _norm_gradient(x, "FusedBatchNorm"),
    "FusedBatchNormGradV2": lambda x: _norm_gradient(x, "FusedBatchNormV2"),
    "FusedBatchNormGradV3": lambda x: _norm_gradient(x, "FusedBatchNormV3"),
    "TensorListFromTensor": lambda x: _array(x).stack(),
    "TensorListGetItem": lambda x: _array(x).read(1),
    "TensorListSetItem": lambda x: _array(x).stack(),
    "TensorListStack": lambda x: _array(x).stack(),
    "TensorListAddItem": lambda x: _derivative(lambda x: _array(x).read(1) ** 3, x),
    "TensorListTakeItem": lambda x: _derivative(lambda x: _array(x).stack() ** 3, x),
    "TensorListAddRows": lambda x: _derivative(lambda x: _array(x).gather([1, 0, 1]) ** 3, x),
    **dict.fromkeys(("TensorListSplit", "TensorListConcatV2"), _split),
    "TensorListGather": lambda x: _array(x).gather([1, 0, 1]),
    "TensorListScatterIntoExistingList": lambda x: tf.TensorArray(x.dtype, 2).scatter([1, 0], x).stack(),
    "Print": lambda x: tf.Print(x * x, [], summarize=0),
}


# Op types that cannot be checked this way, and the reason.
EXCUSED: dict[str, str] = {
    "FusedBatchNormGradGrad": "makes second derivatives; TensorFlow has no third",
    "PreventGradient": "its gradient is an error",
    "RandomGamma": "draws other numbers each time: tests/test_gradients_refused.py",
    "StatelessRandomGammaV3": "the draw of a key is no smooth function of its parameter: it may be rejected",
    "EagerPyFunc": "calls a Python function that must be named: tests/v2/test_golden_tape.py",
    "FakeQuantWithMinMaxArgs": "a staircase: its gradient is not its derivative",
    "FakeQuantWithMinMaxVars": "a staircase: its gradient is not its derivative",
    "FakeQuantWithMinMaxVarsPerChannel": "a staircase: its gradient is not its derivative",
    "QuantizeAndDequantizeV2": "a staircase: its gradient is not its derivative",
    "QuantizeAndDequantizeV3": "a staircase: its gradient is not its derivative",
    "QuantizeAndDequantizeV4": "a staircase: its gradient is not its derivative",
}
