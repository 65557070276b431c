"""Cluster resolvers: which tasks a cluster has, and which of them this is."""

from penstock.distribute.kubernetes import KubernetesClusterResolver
from penstock.distribute.resolvers import ClusterResolver, SimpleClusterResolver
from penstock.distribute.resolvers import UnionClusterResolver as UnionResolver
from penstock.distribute.slurm import SlurmClusterResolver
from penstock.distribute.tf_config import TFConfigClusterResolver
from penstock.face.missing import guard as _guard
from penstock.face.missing import listing as _listing

__getattr__ = _guard(__name__)
__dir__ = _listing(__name__)
