"""Layers that prepare data: they run as ops of penstock, on the worker that reads the data."""

from penstock.keras.preprocessing.lookup import IntegerLookup, StringLookup
from penstock.keras.preprocessing.normalization import Normalization
from penstock.keras.preprocessing.text import TextVectorization

__all__ = ["IntegerLookup", "Normalization", "StringLookup", "TextVectorization"]
