"""Distortions of images."""

from penstock.contrib.distort_image import adjust_hsv_in_yiq, random_hsv_in_yiq
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
