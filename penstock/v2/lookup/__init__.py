"""Tables from keys to values."""

from penstock.face.missing import guard as _guard
from penstock.ops.lookup.static import KeyValueTensorInitializer, StaticHashTable, TextFileIndex, TextFileInitializer
from penstock.ops.lookup.vocabulary import StaticVocabularyTable

__getattr__ = _guard(__name__)
