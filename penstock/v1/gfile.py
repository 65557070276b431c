"""`tf.gfile`: files, with the names of TensorFlow 1.x."""

from penstock.face.missing import guard as _guard
from penstock.gfile import (
    Copy,
    DeleteRecursively,
    Exists,
    FastGFile,
    GFile,
    Glob,
    IsDirectory,
    ListDirectory,
    MakeDirs,
    MkDir,
    Open,
    Remove,
    Rename,
    Stat,
    Walk,
)

__getattr__ = _guard(__name__)
