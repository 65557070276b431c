"""Arguments by scope, and variables by name."""

from penstock.contrib.arg_scope import (
    add_arg_scope,
    arg_scope,
    arg_scope_func_key,
    arg_scoped_arguments,
    current_arg_scope,
    has_arg_scope,
)
from penstock.contrib.variables import (
    VariableDeviceChooser,
    add_model_variable,
    assign_from_checkpoint,
    assign_from_checkpoint_fn,
    assign_from_values,
    assign_from_values_fn,
    filter_variables,
    get_local_variables,
    get_model_variables,
    get_name_scope,
    get_trainable_variables,
    get_unique_variable,
    get_variable_full_name,
    get_variables,
    get_variables_by_name,
    get_variables_by_suffix,
    get_variables_to_restore,
    global_variable,
    local_variable,
    model_variable,
    variable,
)
from penstock.face.missing import guard as _guard
from penstock.graph import nest
from penstock.ops.debugging.check_ops import assert_scalar, assert_type, is_numeric_tensor, is_tensor
from penstock.ops.nn.weights import remove_squeezable_dimensions
from penstock.train.checkpoint_utils import init_from_checkpoint, list_variables, load_checkpoint, load_variable
from penstock.variables.global_step import (
    assert_global_step,
    create_global_step,
    get_global_step,
    get_or_create_global_step,
)

__getattr__ = _guard(__name__)
