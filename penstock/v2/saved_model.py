"""SavedModels: saving and loading models with their functions."""

from penstock.face.missing import guard as _guard
from penstock.saved_model.asset import Asset
from penstock.saved_model.load import LoadOptions, load
from penstock.saved_model.messages import contains_saved_model
from penstock.saved_model.save import SaveOptions, save

__getattr__ = _guard(__name__)
