"""Fourier transforms."""

from penstock.face.missing import guard as _guard
from penstock.ops.math.fourier import (
    fft,
    fft2d,
    fft3d,
    ifft,
    ifft2d,
    ifft3d,
    irfft,
    irfft2d,
    irfft3d,
    rfft,
    rfft2d,
    rfft3d,
)
from penstock.ops.math.signal import dct, idct

__getattr__ = _guard(__name__)
