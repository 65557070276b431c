"""TensorFlow's internal modules that programs import, and the penstock modules that have their names.

Data only. Each entry lists the modules to look a name up in, first one first; one that does not exist is skipped.
The public face comes first wherever it has the name, because its functions take TensorFlow's parameters.
"""

from __future__ import annotations

from typing import Final

_FACE = "penstock.v1"
_TRAIN = f"{_FACE}.train"
_CONTRIB = f"{_FACE}.contrib"

# What TensorFlow has in one module of array ops and in one of mathematical ops.
_ARRAY = (
    "penstock.ops.array.creation", "penstock.ops.array.passthrough", "penstock.ops.array.reshaping",
    "penstock.ops.array.joining", "penstock.ops.array.arranging", "penstock.ops.array.slicing",
    "penstock.ops.array.gathering", "penstock.ops.array.selection", "penstock.ops.linalg.diag",
    "penstock.ops.array.indexing", "penstock.ops.math.segments", "penstock.ops.sparse.segments",
)  # fmt: skip
_MATH = (
    "penstock.ops.math.arithmetic", "penstock.ops.math.unary", "penstock.ops.math.compare", "penstock.ops.math.casting",
    "penstock.ops.math.reduce", "penstock.ops.array.ranges", "penstock.ops.linalg.matmul", "penstock.ops.math.clip",
    "penstock.ops.math.special", "penstock.ops.math.bitwise", "penstock.ops.math.cumulative",
    "penstock.ops.array.indexed_slices", "penstock.ops.math.histogram",
)  # fmt: skip

# A whole folder of TensorFlow that is a folder of another package.
FOLDERS: Final[dict[str, str]] = {
    # TensorBoard carries TensorFlow's own messages.
    "core.framework": "tensorboard.compat.proto",
    "core.protobuf": "tensorboard.compat.proto",
    "core.util": "tensorboard.compat.proto",
}

# One module of TensorFlow: where its names are.
MODULES: Final[dict[str, tuple[str, ...]]] = {
    # Messages that TensorBoard lacks.
    "core.example.example_pb2": (_TRAIN,),
    "core.example.feature_pb2": (_TRAIN,),
    "core.protobuf.queue_runner_pb2": ("penstock.checkpoint.messages",),
    "core.protobuf.tensorflow_server_pb2": (_TRAIN,),
    # Client.
    "python.client.device_lib": ("penstock.client.device_lib",),
    "python.client.session": (_FACE, "penstock.session"),
    "python.client.timeline": ("penstock.worker.timeline",),
    # Contrib: modules inside its packages.
    "contrib.framework.python.framework": (f"{_CONTRIB}.framework",),
    "contrib.framework.python.framework.checkpoint_utils": (f"{_CONTRIB}.framework", _TRAIN),
    "contrib.framework.python.ops": (f"{_CONTRIB}.framework",),
    "contrib.framework.python.ops.arg_scope": (f"{_CONTRIB}.framework",),
    "contrib.framework.python.ops.variables": (f"{_CONTRIB}.framework",),
    "contrib.image.python.ops.distort_image_ops": (f"{_CONTRIB}.image",),
    "contrib.layers.python.layers": (f"{_CONTRIB}.layers",),
    "contrib.layers.python.layers.initializers": (f"{_CONTRIB}.layers",),
    "contrib.layers.python.layers.layers": (f"{_CONTRIB}.layers",),
    "contrib.layers.python.layers.optimizers": (f"{_CONTRIB}.layers",),
    "contrib.layers.python.layers.regularizers": (f"{_CONTRIB}.layers",),
    "contrib.layers.python.layers.summaries": (f"{_CONTRIB}.layers",),
    "contrib.layers.python.layers.utils": (f"{_CONTRIB}.slim.utils",),
    "contrib.learn.python.learn.datasets": (f"{_CONTRIB}.learn.datasets",),
    "contrib.learn.python.learn.datasets.mnist": (f"{_CONTRIB}.learn.datasets.mnist",),
    "contrib.slim.python.slim.data.prefetch_queue": (f"{_CONTRIB}.slim.prefetch_queue",),
    "contrib.slim.python.slim.evaluation": (f"{_CONTRIB}.slim.evaluation",),
    "contrib.slim.python.slim.learning": (f"{_CONTRIB}.slim.learning",),
    "contrib.training.python.training.evaluation": (f"{_CONTRIB}.training",),
    "contrib.training.python.training.hparam": (f"{_CONTRIB}.training",),
    "contrib.training.python.training.training": (f"{_CONTRIB}.training",),
    # Data.
    "python.data.ops.dataset_ops": (f"{_FACE}.data", "penstock.data.dataset", "penstock.data.iterator"),
    "python.data.ops.iterator_ops": (f"{_FACE}.data", "penstock.data.iterator"),
    "python.data.ops.readers": (f"{_FACE}.data", "penstock.data.readers"),
    # Framework.
    "python.framework.common_shapes": ("penstock.graph.shape",),
    "python.framework.constant_op": (_FACE,),
    "python.framework.convert_to_constants": (f"{_FACE}.graph_util",),
    "python.framework.device": (_FACE, "penstock.graph.device"),
    "python.framework.dtypes": (_FACE, "penstock.graph.dtype"),
    "python.framework.errors": (f"{_FACE}.errors",),
    "python.framework.errors_impl": (f"{_FACE}.errors",),
    "python.framework.function": (_FACE, "penstock.contrib.defun"),
    "python.framework.graph_util": (f"{_FACE}.graph_util",),
    "python.framework.graph_util_impl": (f"{_FACE}.graph_util", "penstock.graph.graph_util"),
    "python.framework.importer": (_FACE, "penstock.graph.importer"),
    "python.framework.indexed_slices": (_FACE, "penstock.graph.indexed_slices"),
    "python.framework.meta_graph": (_TRAIN,),
    "python.framework.ops": (
        _FACE, "penstock.graph.graph", "penstock.graph.collections", "penstock.graph.scopes", "penstock.graph.sessions",
        "penstock.graph.operation", "penstock.graph.indexed_slices", "penstock.autodiff",
    ),
    "python.framework.random_seed": (_FACE,),
    "python.framework.smart_cond": ("penstock.ops.control.flow",),
    "python.framework.sparse_tensor": (_FACE, "penstock.graph.sparse_tensor"),
    "python.framework.tensor_conversion_registry": (_FACE,),
    "python.framework.tensor_shape": (_FACE, "penstock.graph.shape"),
    "python.framework.tensor_util": (_FACE, "penstock.graph.constant", "penstock.graph.tensor_proto"),
    "python.framework.test_util": (f"{_FACE}.test",),
    # Layers.
    "python.layers.base": (f"{_FACE}.layers",),
    "python.layers.convolutional": (f"{_FACE}.layers",),
    "python.layers.core": (f"{_FACE}.layers",),
    "python.layers.layers": (f"{_FACE}.layers",),
    "python.layers.normalization": (f"{_FACE}.layers",),
    "python.layers.pooling": (f"{_FACE}.layers",),
    "python.layers.utils": (f"{_FACE}.layers", "penstock.ops.control.flow"),
    # Files.
    "python.lib.io.tf_record": (f"{_FACE}.python_io", f"{_FACE}.io"),
    # Ops.
    "python.ops.array_ops": (_FACE, *_ARRAY),
    "python.ops.check_ops": (_FACE, f"{_FACE}.debugging"),
    "python.ops.clip_ops": (_FACE,),
    "python.ops.control_flow_ops": (_FACE, "penstock.ops.control.grouping", "penstock.ops.control.flow"),
    "python.ops.data_flow_ops": (
        _FACE, "penstock.ops.queue.queues", "penstock.ops.queue.staging", "penstock.ops.io.record_input",
    ),
    "python.ops.distributions": (f"{_FACE}.distributions",),
    "python.ops.distributions.bernoulli": (f"{_FACE}.distributions",),
    "python.ops.distributions.beta": (f"{_FACE}.distributions",),
    "python.ops.distributions.categorical": (f"{_FACE}.distributions",),
    "python.ops.distributions.dirichlet": (f"{_FACE}.distributions",),
    "python.ops.distributions.distribution": (f"{_FACE}.distributions",),
    "python.ops.distributions.distributions": (f"{_FACE}.distributions",),
    "python.ops.distributions.exponential": (f"{_FACE}.distributions",),
    "python.ops.distributions.gamma": (f"{_FACE}.distributions",),
    "python.ops.distributions.kullback_leibler": (f"{_FACE}.distributions",),
    "python.ops.distributions.laplace": (f"{_FACE}.distributions",),
    "python.ops.distributions.multinomial": (f"{_FACE}.distributions",),
    "python.ops.distributions.normal": (f"{_FACE}.distributions",),
    "python.ops.distributions.student_t": (f"{_FACE}.distributions",),
    "python.ops.distributions.uniform": (f"{_FACE}.distributions",),
    "python.ops.embedding_ops": (f"{_FACE}.nn",),
    "python.ops.functional_ops": (_FACE, "penstock.ops.control.folds"),
    "python.ops.gen_array_ops": (*_ARRAY, _FACE),
    "python.ops.gen_math_ops": (*_MATH, _FACE),
    "python.ops.gradients": (_FACE, "penstock.autodiff"),
    "python.ops.gradients_impl": (_FACE, "penstock.autodiff"),
    "python.ops.image_ops": (f"{_FACE}.image",),
    "python.ops.init_ops": (_FACE, f"{_FACE}.initializers"),
    "python.ops.io_ops": (_FACE, f"{_FACE}.io"),
    "python.ops.linalg_ops": (_FACE, f"{_FACE}.linalg"),
    "python.ops.logging_ops": (_FACE, f"{_FACE}.summary"),
    "python.ops.lookup_ops": (
        _FACE, f"{_FACE}.lookup", "penstock.ops.lookup.static", "penstock.ops.lookup.vocabulary",
        "penstock.ops.lookup.mutable",
    ),
    "python.ops.losses.losses": (f"{_FACE}.losses",),
    "python.ops.math_ops": (_FACE, f"{_FACE}.math", *_MATH),
    "python.ops.metrics": (f"{_FACE}.metrics",),
    "python.ops.metrics_impl": (f"{_FACE}.metrics",),
    "python.ops.nn": (f"{_FACE}.nn",),
    "python.ops.nn_impl": (f"{_FACE}.nn", "penstock.ops.nn.layer_parts"),
    "python.ops.nn_ops": (f"{_FACE}.nn", "penstock.ops.nn.layer_parts"),
    "python.ops.parsing_ops": (_FACE, f"{_FACE}.io"),
    "python.ops.partitioned_variables": (_FACE,),
    "python.ops.random_ops": (_FACE, f"{_FACE}.random"),
    "python.ops.resource_variable_ops": (_FACE, "penstock.variables.resource"),
    "python.ops.rnn": (f"{_FACE}.nn", "penstock.rnn.dynamic", "penstock.rnn.static"),
    "python.ops.rnn_cell": (f"{_FACE}.rnn_cell", "penstock.rnn.base"),
    "python.ops.rnn_cell_impl": (f"{_FACE}.rnn_cell", "penstock.rnn.base"),
    "python.ops.script_ops": (_FACE,),
    "python.ops.session_ops": (_FACE, "penstock.client.tensor_handle"),
    "python.ops.sparse_ops": (_FACE, f"{_FACE}.sparse"),
    "python.ops.standard_ops": (_FACE,),
    "python.ops.state_ops": (_FACE, "penstock.ops.state.variable_ops"),
    "python.ops.string_ops": (_FACE, f"{_FACE}.strings", "penstock.ops.string.forms", "penstock.ops.string.join"),
    "python.ops.summary_ops": (f"{_FACE}.summary",),
    "python.ops.template": (_FACE,),
    "python.ops.variable_scope": (_FACE, "penstock.variables.scope"),
    "python.ops.variable_v1": (_FACE, "penstock.variables.variable"),
    "python.ops.variables": (_FACE, "penstock.variables.variable", "penstock.variables.partitioned"),
    # Platform.
    "python.platform.app": (f"{_FACE}.app",),
    "python.platform.flags": (f"{_FACE}.flags",),
    "python.platform.gfile": (f"{_FACE}.gfile",),
    "python.platform.test": (f"{_FACE}.test",),
    "python.platform.tf_logging": (f"{_FACE}.logging", "penstock.logging"),
    "python.pywrap_tensorflow": (_TRAIN,),
    # Summaries.
    "python.summary.summary": (f"{_FACE}.summary",),
    "python.summary.writer.writer": (f"{_FACE}.summary",),
    # Training.
    "python.training.adagrad": (_TRAIN,),
    "python.training.adam": (_TRAIN,),
    "python.training.basic_loops": (_TRAIN,),
    "python.training.basic_session_run_hooks": (_TRAIN,),
    "python.training.checkpoint_management": (_TRAIN,),
    "python.training.checkpoint_utils": (_TRAIN,),
    "python.training.coordinator": (_TRAIN,),
    "python.training.device_setter": (_TRAIN, "penstock.train.device_setter"),
    "python.training.evaluation": (f"{_CONTRIB}.training",),
    "python.training.ftrl": (_TRAIN,),
    "python.training.gradient_descent": (_TRAIN,),
    "python.training.input": (_TRAIN,),
    "python.training.learning_rate_decay": (_TRAIN,),
    "python.training.momentum": (_TRAIN,),
    "python.training.monitored_session": (_TRAIN, "penstock.train.monitored_session"),
    "python.training.moving_averages": (_TRAIN, "penstock.variables.moving_averages"),
    "python.training.optimizer": (_TRAIN, "penstock.optim.optimizer"),
    "python.training.queue_runner": (_TRAIN,),
    "python.training.queue_runner_impl": (_TRAIN,),
    "python.training.rmsprop": (_TRAIN,),
    "python.training.saver": (_TRAIN, "penstock.train.saver"),
    "python.training.server_lib": (_TRAIN, "penstock.server"),
    "python.training.session_manager": (_TRAIN,),
    "python.training.session_run_hook": (_TRAIN,),
    "python.training.slot_creator": ("penstock.optim.slots",),
    "python.training.summary_io": (f"{_FACE}.summary", _TRAIN),
    "python.training.supervisor": (_TRAIN, "penstock.train.supervisor"),
    "python.training.sync_replicas_optimizer": (_TRAIN, "penstock.train.sync_replicas"),
    "python.training.training": (_TRAIN,),
    "python.training.training_util": (_TRAIN,),
    # Helpers.
    "python.util.compat": (f"{_FACE}.compat",),
    "python.util.nest": ("penstock.graph.nest",),
}
