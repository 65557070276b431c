"""`tf.app`: runs a program's main, and its flags."""

from penstock.app import run
from penstock.face.missing import guard as _guard
from penstock.v1 import flags

__getattr__ = _guard(__name__)
