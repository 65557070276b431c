"""Every name that TensorFlow 1 programs are known to use exists under the alias.

The table was counted over public programs: by namespace, the names that they use there. Those of `LATER` wait for
work that is not done yet; a test fails when one of them appears, so that the list stays true.
"""

import importlib

import pytest

from penstock.compat import alias

NAMES = {
    "": (
        "AUTO_REUSE ConfigProto FIFOQueue FixedLenFeature FixedLenSequenceFeature FixedLengthRecordReader "
        "GPUOptions GradientTape Graph IndexedSlices InteractiveSession NodeDef RunMetadata RunOptions Session "
        "Summary TFRecordReader Tensor TensorShape VarLenFeature Variable __git_version__ __version__ abs add "
        "add_n add_to_collection arg_min argmax argsort assert_positive assign assign_add bool boolean_mask cast "
        "clip_by_global_norm clip_by_value colocate_with concat cond constant constant_initializer "
        "control_dependencies convert_to_tensor decode_raw device disable_v2_behavior div divide equal expand_dims "
        "flags float16 float32 floor floordiv function gather get_collection get_collection_ref get_default_graph "
        "get_variable get_variable_scope global_variables global_variables_initializer glorot_uniform_initializer "
        "gradients greater group identity initialize_all_variables int16 int32 int64 is_finite less "
        "local_variables local_variables_initializer log logging logical_and logical_not matmul maximum minimum "
        "multiply name_scope negative newaxis no_op not_equal ones ones_initializer pad parallel_stack "
        "parse_single_example parse_single_sequence_example placeholder pow print random_crop random_normal "
        "random_normal_initializer random_shuffle random_uniform random_uniform_initializer range reduce_all "
        "reduce_any reduce_max reduce_mean reduce_min reduce_sum report_uninitialized_variables "
        "reset_default_graph reshape scalar_mul set_random_seed shape size slice sparse_tensor_to_dense split sqrt "
        "square squeeze stack strided_slice string string_to_number subtract tables_initializer tile timestamp "
        "to_float to_int32 trainable_variables transpose truncated_normal truncated_normal_initializer uint8 "
        "unstack variable_creator_scope variable_scope variables_initializer variance_scaling_initializer where "
        "while_loop zeros zeros_initializer"
    ),
    "AggregationMethod": "DEFAULT",
    "GraphKeys": (
        "GLOBAL_STEP GLOBAL_VARIABLES LOCAL_VARIABLES QUEUE_RUNNERS SAVEABLE_OBJECTS TABLE_INITIALIZERS "
        "TRAINABLE_VARIABLES UPDATE_OPS"
    ),
    "OptimizerOptions": "L0 ON_1",
    "RunOptions": "FULL_TRACE",
    "Variable": "from_proto",
    "__version__": "split",
    "app": "flags run",
    "app.flags": "DEFINE_bool DEFINE_boolean DEFINE_float DEFINE_integer DEFINE_string FLAGS",
    "contrib": "framework layers rnn slim training",
    "contrib.cudnn_rnn": "CudnnLSTM RNNParamsSaveable",
    "contrib.data": "TextLineDataset shuffle_and_repeat",
    "contrib.data.Dataset": "from_tensor_slices",
    "contrib.distribute": "CollectiveAllReduceStrategy DistributeConfig MirroredStrategy",
    "contrib.framework": "add_arg_scope arg_scope get_or_create_global_step",
    "contrib.image.python.ops": "distort_image_ops",
    "contrib.image.python.ops.distort_image_ops": "random_hsv_in_yiq",
    "contrib.layers": "flatten l2_regularizer variance_scaling_initializer xavier_initializer",
    "contrib.learn.datasets": "load_dataset",
    "contrib.opt": "ElasticAverageCustomGetter ElasticAverageOptimizer",
    "contrib.rnn": (
        "BasicLSTMCell DropoutWrapper LSTMBlockCell LSTMStateTuple MultiRNNCell static_bidirectional_rnn static_rnn"
    ),
    "contrib.seq2seq": "sequence_loss",
    "contrib.slim": (
        "add_arg_scope arg_scope avg_pool2d batch_norm conv2d dropout fully_connected max_pool2d separable_conv2d"
    ),
    "contrib.slim.layers": "conv2d flatten fully_connected max_pool2d",
    "contrib.training": "HParams",
    "core.framework.variable_pb2": "VariableDef",
    "core.protobuf.rewriter_config_pb2": "RewriterConfig",
    "core.protobuf.rewriter_config_pb2.RewriterConfig": "OFF ON",
    "data": "Options TFRecordDataset make_initializable_iterator make_one_shot_iterator",
    "data.Dataset": "apply from_tensor_slices range zip",
    "data.Iterator": "from_string_handle from_structure",
    "data.TFRecordDataset": "list_files",
    "data.experimental": "map_and_batch parallel_interleave shuffle_and_repeat",
    "distribute": "MultiWorkerMirroredStrategy ParameterServerStrategy Server Strategy get_strategy",
    "distribute.ReduceOp": "SUM",
    "distribute.cluster_resolver": "ClusterResolver SimpleClusterResolver TFConfigClusterResolver",
    "distribute.coordinator": "ClusterCoordinator",
    "distribute.experimental": "ParameterServerStrategy",
    "distribute.experimental.partitioners": "MinSizePartitioner",
    "errors": "OutOfRangeError",
    "estimator": "Estimator EstimatorSpec EvalSpec RunConfig TrainSpec train_and_evaluate",
    "estimator.ModeKeys": "PREDICT TRAIN",
    "estimator.inputs": "numpy_input_fn",
    "examples.tutorials.mnist": "input_data mnist",
    "examples.tutorials.mnist.input_data": "read_data_sets",
    "examples.tutorials.mnist.mnist": "IMAGE_PIXELS evaluation inference loss training",
    "flags": "DEFINE_bool DEFINE_integer DEFINE_string FLAGS",
    "gfile": "Copy DeleteRecursively Exists GFile MakeDirs Remove",
    "image": (
        "convert_image_dtype decode_and_crop_jpeg decode_jpeg draw_bounding_boxes extract_jpeg_shape "
        "per_image_standardization random_brightness random_contrast random_flip_left_right random_hue "
        "random_saturation resize resize_image_with_crop_or_pad resize_images sample_distorted_bounding_box"
    ),
    "image.ResizeMethod": "AREA BICUBIC BILINEAR NEAREST_NEIGHBOR",
    "io": "FixedLenFeature decode_png parse_single_example",
    "io.gfile": "exists glob makedirs rmtree",
    "keras": "Input Model Sequential",
    "keras.backend": "ctc_label_dense_to_sparse epsilon floatx set_floatx set_learning_phase",
    "keras.callbacks": "BackupAndRestore ModelCheckpoint TensorBoard",
    "keras.estimator": "model_to_estimator",
    "keras.layers": "Conv2D Dense Embedding Flatten Input MaxPooling2D StringLookup",
    "keras.losses": "BinaryCrossentropy",
    "keras.losses.Reduction": "NONE",
    "keras.metrics": "Accuracy",
    "keras.models": "Sequential",
    "keras.optimizers": "SGD",
    "keras.optimizers.legacy": "Adagrad RMSprop SGD",
    "keras.regularizers": "L2",
    "layers": "BatchNormalization Dense batch_normalization conv2d dense dropout max_pooling2d",
    "logging": "DEBUG INFO debug fatal info set_verbosity warn",
    "losses": "huber_loss mean_squared_error softmax_cross_entropy sparse_softmax_cross_entropy",
    "losses.Reduction": "NONE",
    "metrics": "accuracy",
    "nn": (
        "avg_pool bias_add bidirectional_dynamic_rnn compute_average_loss conv2d ctc_loss dropout dynamic_rnn "
        "embedding_lookup fused_batch_norm in_top_k l2_loss lrn max_pool nce_loss relu relu6 "
        "scale_regularization_loss sigmoid softmax softmax_cross_entropy_with_logits "
        "softmax_cross_entropy_with_logits_v2 sparse_softmax_cross_entropy_with_logits tanh xw_plus_b "
        "zero_fraction"
    ),
    "nn.rnn_cell": "BasicLSTMCell BasicRNNCell DropoutWrapper GRUCell LSTMCell MultiRNNCell RNNCell",
    "profiler": "Profiler",
    "profiler.ProfileOptionBuilder": "time_and_memory",
    "python": "debug",
    "python.client": "device_lib timeline",
    "python.client.device_lib": "list_local_devices",
    "python.client.timeline": "Timeline",
    "python.compiler.tensorrt": "trt_convert",
    "python.compiler.tensorrt.trt_convert": "create_inference_graph",
    "python.data.ops": "multi_device_iterator_ops",
    "python.data.ops.multi_device_iterator_ops": "MultiDeviceIterator",
    "python.debug": "LocalCLIDebugWrapperSession TensorBoardDebugWrapperSession",
    "python.distribute": "all_reduce",
    "python.distribute.all_reduce": (
        "build_nccl_all_reduce build_nccl_then_recursive_hd build_nccl_then_ring build_nccl_then_shuffle "
        "build_ring_all_reduce build_shuffle_all_reduce build_shuffle_then_shuffle"
    ),
    "python.framework": (
        "convert_to_constants device function graph_util_impl importer indexed_slices ops "
        "tensor_conversion_registry tensor_shape"
    ),
    "python.framework.convert_to_constants": "convert_variables_to_constants",
    "python.framework.device.DeviceSpec": "from_string",
    "python.framework.function": "Defun",
    "python.framework.graph_util_impl": "_bfs_for_reachable_nodes _extract_graph_summary",
    "python.framework.importer": "import_graph_def",
    "python.framework.indexed_slices": "IndexedSlices",
    "python.framework.ops": "colocate_with device",
    "python.framework.tensor_conversion_registry": "register_tensor_conversion_function",
    "python.framework.tensor_shape": "TensorShape",
    "python.grappler": "tf_optimizer",
    "python.grappler.tf_optimizer": "OptimizeGraph",
    "python.layers": "convolutional core pooling utils",
    "python.layers.convolutional": "conv2d",
    "python.layers.core": "dropout",
    "python.layers.pooling": "average_pooling2d max_pooling2d",
    "python.layers.utils": "smart_cond",
    "python.ops": "array_ops collective_ops control_flow_ops data_flow_ops math_ops variable_v1",
    "python.ops.array_ops": "concat gather",
    "python.ops.collective_ops": "all_reduce broadcast_recv broadcast_send",
    "python.ops.control_flow_ops": "with_dependencies",
    "python.ops.data_flow_ops": "RecordInput StagingArea",
    "python.ops.math_ops": "_as_indexed_slices_list add_n",
    "python.ops.variable_v1": "VariableV1",
    "python.platform": "gfile",
    "python.platform.gfile": "Exists Glob MakeDirs Open",
    "python.training": "moving_averages",
    "python.training.moving_averages": "assign_moving_average",
    "python.util": "nest",
    "python.util.nest": "flatten map_structure",
    "random": "truncated_normal uniform",
    "summary": "FileWriter histogram image merge_all scalar",
    "test": "is_gpu_available",
    "train": (
        "AdagradOptimizer AdamOptimizer ClusterSpec Coordinator ExponentialMovingAverage GradientDescentOptimizer "
        "LoggingTensorHook MomentumOptimizer MonitoredTrainingSession NanTensorHook RMSPropOptimizer Saver "
        "Scaffold Server ServerDef SessionRunArgs SessionRunHook StopAtStepHook SummarySaverHook Supervisor "
        "SyncReplicasOptimizer batch checkpoint_exists exponential_decay export_meta_graph get_checkpoint_state "
        "get_global_step get_or_create_global_step global_step import_meta_graph latest_checkpoint "
        "piecewise_constant range_input_producer replica_device_setter shuffle_batch slice_input_producer "
        "start_queue_runners string_input_producer write_graph"
    ),
    "xla.experimental": "compile",
}

# Reason -> prefixes of names.
LATER = {
    "strategies of tf.distribute": (
        "distribute. contrib.distribute. nn.compute_average_loss nn.scale_regularization_loss "
        "python.data.ops.multi_device_iterator_ops"
    ),
    "sums over devices by NCCL and collectives": "python.distribute. python.ops.collective_ops",
    "estimators": "estimator.",
    "Keras": "keras.",
    "NVIDIA's own: cuDNN's packed weights, TensorRT and what prepares graphs for it": (
        "contrib.cudnn_rnn. python.compiler. python.grappler."
    ),
    "TensorFlow's profiler and debugger": "profiler. python.debug",
}
WAITING = tuple(name for names in LATER.values() for name in names.split())

# Methods, by their class.
METHODS = {
    "FIFOQueue": "enqueue dequeue enqueue_many dequeue_many close size",
    "Graph": "as_default get_operations get_tensor_by_name finalize",
    "Session": "run as_default close",
    "Tensor": "eval set_shape get_shape",
    "Variable": "eval initializer assign assign_add assign_sub get_shape initialized_value load",
    "VariableScope": "reuse_variables",
    "data.Dataset": (
        "apply batch make_initializable_iterator make_one_shot_iterator map prefetch repeat shard shuffle zip"
    ),
    "data.Iterator": "get_next initializer make_initializer",
    "nn.rnn_cell.BasicLSTMCell": "zero_state",
    "summary.FileWriter": "add_summary add_run_metadata add_graph flush close",
    "train.Coordinator": "join request_stop should_stop",
    "train.ExponentialMovingAverage": "apply average variables_to_restore",
    "train.GradientDescentOptimizer": "minimize compute_gradients apply_gradients",
    "train.QueueRunner": "create_threads",
    "train.Saver": "save restore",
    "train.Supervisor": (
        "managed_session prepare_or_wait_for_session should_stop start_queue_runners stop request_stop "
        "summary_computed loop"
    ),
}


def all_names():
    return [f"{space}.{name}".lstrip(".") for space, names in NAMES.items() for name in names.split()]


def waits(name):
    return any(name == each.rstrip(".") or name.startswith(each.rstrip(".") + ".") for each in WAITING)


@pytest.fixture(scope="module", autouse=True)
def installed():
    alias.install()
    yield
    alias.uninstall()


def found(name):
    """The value of `tf.<name>`, or of `from tensorflow.<...> import <...>`; raises an error if neither exists."""
    value = importlib.import_module("tensorflow")
    try:
        for part in name.split("."):
            value = getattr(value, part)
        return value
    except AttributeError:
        module, _, last = name.rpartition(".")
        return getattr(importlib.import_module(f"tensorflow.{module}"), last)


@pytest.mark.parametrize("space", NAMES)
def test_names_exist(space):
    absent = []
    for name in (f"{space}.{each}".lstrip(".") for each in NAMES[space].split()):
        if not waits(name):
            try:
                found(name)
            except (ImportError, AttributeError):
                absent.append(name)
    assert not absent


def test_what_waits_is_not_there_yet():
    there = []
    for name in filter(waits, all_names()):
        try:
            found(name)
        except (ImportError, AttributeError):
            continue
        there.append(name)
    assert not there, "remove them from LATER"


@pytest.mark.parametrize("owner", METHODS)
def test_methods_exist(owner):
    absent = [name for name in METHODS[owner].split() if not hasattr(found(owner), name)]
    assert not absent
