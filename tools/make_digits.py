"""Regenerates penstock/data_files/digits.npz from scikit-learn, which only this script needs.

pip install scikit-learn && python tools/make_digits.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TARGET = Path(__file__).resolve().parent.parent / "penstock" / "data_files" / "digits.npz"


def main() -> None:
    """Write the images (0..16) and labels as bytes, in scikit-learn's order."""
    digits = load_digits()
    np.savez_compressed(TARGET, images=digits.images.astype(np.uint8), labels=digits.target.astype(np.uint8))
    print(f"{TARGET}: {len(digits.images)} digits, {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
