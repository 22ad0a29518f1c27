# SPDX-License-Identifier: Apache-2.0
"""meshgrad.h for ctypes. tests/python_interfaces.py compares structures, enumerations and functions with the header."""
from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_void_p
from typing import Any

VERSION = "0.1.0"
STATUS = ("ok", "invalid_argument", "config_error", "data_error", "out_of_memory", "device_error", "rank_error", "internal_error")
DTYPE = ("f32", "f64", "i32", "i64")
STRIDED = 256  # in Array.rank
Log = ctypes.CFUNCTYPE(None, c_void_p, c_int32, c_char_p)  # RuntimeOptions.log


def _structure(**members: Any) -> Any:
    return type("Structure", (ctypes.Structure,), {"_fields_": list(members.items())})


Array = _structure(data=c_void_p, dtype=c_int32, rank=c_int32, shape=c_int64 * 3, device=c_int32, row_bytes=c_int32)
RuntimeOptions = _structure(
    size=c_size_t, device=c_char_p, threads=c_int32, memory_limit=c_int64, cuda_stream=c_void_p, allocate=c_void_p, release=c_void_p,
    memory_context=c_void_p, memory_capacity=c_int64, log=c_void_p, log_context=c_void_p, communicator=POINTER(c_int), timeout=c_double)
Mesh = _structure(
    size=c_size_t, positions=Array, cells=Array, edges=Array, node_type=Array, first_node=c_int32, ghost_owner=Array, ghost_number=Array)
Field = _structure(name=c_char_p, components=c_int32, on_graph=c_int32, unit=c_char_p)
TrainerOptions = _structure(
    size=c_size_t, config=c_char_p, dim=c_int32, dt=c_double, fields=POINTER(Field), field_count=c_int32, most_recent=c_int32,
    capacity=c_int64, held_out_every=c_int64, held_out=c_int64)

# Names without meshgrad_, result, arguments. A handle is a c_void_p.
_ROWS: tuple[Any, ...] = (
    ("version last_error", c_char_p),
    ("runtime_options_init_sized", None, POINTER(RuntimeOptions), c_size_t),
    ("trainer_options_init_sized", None, POINTER(TrainerOptions), c_size_t),
    ("mesh_init_sized", None, POINTER(Mesh), c_size_t),
    ("runtime_create", c_int, POINTER(RuntimeOptions), POINTER(c_void_p)),
    ("trainer_create", c_int, c_void_p, POINTER(TrainerOptions), POINTER(c_void_p)),
    ("predictor_create trainer_load", c_int, c_void_p, c_char_p, POINTER(c_void_p)),
    ("predictor_create_from_trainer", c_int, c_void_p, POINTER(c_void_p)),
    ("runtime_destroy predictor_destroy trainer_destroy", None, c_void_p),
    ("predictor_dim", c_int, c_void_p, POINTER(c_int32)),
    ("predictor_dt trainer_held_out_loss", c_int, c_void_p, POINTER(c_double)),
    ("predictor_input", c_int, c_void_p, c_int32, POINTER(c_char_p), POINTER(c_int32), POINTER(c_int32)),
    ("predictor_target", c_int, c_void_p, c_int32, POINTER(c_char_p), POINTER(c_int32)),
    ("predictor_set_meshes", c_int, c_void_p, POINTER(Mesh), c_int32),
    ("trainer_set_mesh", c_int, c_void_p, POINTER(Mesh)),
    ("trainer_set_field", c_int, c_void_p, c_char_p, POINTER(Array)),
    ("predictor_set_field predictor_set_next_field predictor_set_boundary predictor_get_field predictor_set_gradient "
     "predictor_get_gradient", c_int, c_void_p, c_int32, c_char_p, POINTER(Array)),
    ("predictor_set_earlier_field predictor_get_earlier_gradient predictor_get_next_gradient "
     "predictor_get_boundary_gradient", c_int, c_void_p, c_int32, c_char_p, c_int64, POINTER(Array)),
    ("predictor_get_position_gradient", c_int, c_void_p, c_int32, POINTER(Array)),
    ("predictor_record_steps", c_int, c_void_p, c_int32),
    ("predictor_predict", c_int, c_void_p, c_int64),
    ("predictor_positions_changed predictor_backward trainer_append trainer_restart_trajectory", c_int, c_void_p),
    ("trainer_train", c_int, c_void_p, c_int64, c_double, POINTER(c_int64), POINTER(c_double)),
    ("trainer_counts", c_int, c_void_p, POINTER(c_int64), POINTER(c_int64), POINTER(c_int64)),
    ("trainer_save", c_int, c_void_p, c_char_p),
)
FUNCTIONS: dict[str, list[Any]] = {name: signature for names, *signature in _ROWS for name in names.split()}
