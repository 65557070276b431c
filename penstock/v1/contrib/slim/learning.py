"""Training ops and the training loop."""

from penstock.contrib.layers.optimizers import multiply_gradients
from penstock.contrib.layers.summaries import add_gradients_summaries
from penstock.contrib.learning import train, train_step
from penstock.contrib.training import clip_gradient_norms
from penstock.contrib.training import slim_train_op as create_train_op
from penstock.face.missing import guard as _guard

__getattr__ = _guard(__name__)
