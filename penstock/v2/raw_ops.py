"""Every op type as a function of keywords: `tf.raw_ops.MatMul(a=x, b=y)`."""

from penstock.graph.raw_ops import names as __dir__
from penstock.graph.raw_ops import raw_op as __getattr__
