"""The functions around a user's JAX function: autocast, grad, value_and_grad, cast_params."""
