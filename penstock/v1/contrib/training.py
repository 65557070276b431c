"""Hyperparameters and training ops."""

from penstock.contrib.hparams import HParams, parse_values
from penstock.contrib.layers.optimizers import multiply_gradients
from penstock.contrib.layers.summaries import add_gradients_summaries
from penstock.contrib.training import clip_gradient_norms, clip_gradient_norms_fn, create_train_op
from penstock.face.missing import guard as _guard
from penstock.train.device_setter import GreedyLoadBalancingStrategy, byte_size_load_fn
from penstock.train.evaluation import (
    StopAfterNEvalsHook,
    SummaryAtEndHook,
    checkpoints_iterator,
    evaluate_once,
    evaluate_repeatedly,
    get_or_create_eval_step,
    wait_for_new_checkpoint,
)

__getattr__ = _guard(__name__)
