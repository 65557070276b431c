"""Files."""

from penstock.face.missing import guard as _guard
from penstock.gfile import (
    GFile,
    copy,
    exists,
    get_registered_schemes,
    glob,
    isdir,
    join,
    listdir,
    makedirs,
    mkdir,
    remove,
    rename,
    rmtree,
    stat,
    walk,
)

__getattr__ = _guard(__name__)
