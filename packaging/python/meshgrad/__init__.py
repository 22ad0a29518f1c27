# SPDX-License-Identifier: Apache-2.0
"""meshgrad on numpy arrays: predicts with a checkpoint on meshes in memory, trains on what a solver gives, and reads the
files of runs. It calls the C interface, meshgrad.h; docs/python.md is the guide."""
from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import pathlib
import re
import threading
import weakref
import xml.etree.ElementTree as xml
from ctypes import byref
from typing import Any, Iterator, NamedTuple, NoReturn, Sequence, TypeVar

import numpy
import numpy.typing as npt

from . import _c

__all__ = ["ConfigError", "DataError", "DeviceError", "Error", "Field", "Frame", "InternalError", "InvalidArgument", "Mesh",
           "OutOfMemory", "Predictor", "RankError", "Runtime", "Trainer", "__version__", "read_metrics", "read_rollout"]
__version__ = _c.VERSION
Array = npt.NDArray[Any]
T = TypeVar("T", bound="Object")
_DTYPES = {numpy.dtype({"f": "float", "i": "int"}[name[0]] + name[1:]): number for number, name in enumerate(_c.DTYPE)}
_VTK_TYPES = {"Float32": "<f4", "Float64": "<f8", "Int32": "<i4", "Int64": "<i8", "UInt8": "|u1"}


class Error(Exception):
    """Its text is `[place] needed X, got Y; fix: Z`, and its attributes `place`, `needed`, `got` and `fix` are the parts (of the
    first error of a configuration); they are empty where the text has another form, as an allocator's report has."""
    def __init__(self, text: str) -> None:
        super().__init__(text)
        parts = re.fullmatch(r"(.*?: )?\[(.*?)\] needed (.*?), got (.*?)(?:; fix: (.*?))?(?:\n(?s:.*))?", text)
        file, key, self.needed, self.got, self.fix = (str(part or "") for part in (parts.groups() if parts else ("",) * 5))
        self.place = file + key


class InvalidArgument(Error, ValueError): """An argument that the function excludes."""
class ConfigError(Error, ValueError): """A configuration key or an environment variable."""
class DataError(Error, ValueError): """A file or a mesh."""
class OutOfMemory(Error, MemoryError): """There is no memory left; the text is the allocator's report."""
class DeviceError(Error, RuntimeError): """A device is absent, or work on it failed."""
class RankError(Error, RuntimeError): """Another process of the job."""
class InternalError(Error, RuntimeError): """A fault of meshgrad."""


KINDS = (Error, InvalidArgument, ConfigError, DataError, OutOfMemory, DeviceError, RankError, InternalError)  # by _c.STATUS


def refuse(place: object, needed: str, got: object, fix: str, kind: type[Error] = InvalidArgument) -> NoReturn:
    raise kind(f"[{place}] needed {needed}, got {got}; fix: {fix}")


def bytes_of(text: str | os.PathLike[str], what: str) -> bytes:
    encoded = os.fspath(text).encode(errors="surrogateescape")
    return encoded if b"\0" not in encoded else refuse(what, "a text without zero bytes", repr(text), "remove them")


def array_of(values: Array, what: str, kind: str = "float", writable: bool = False) -> _c.Array:
    """Describes the memory of an array, which is neither copied nor kept: the caller holds it as long as C reads it."""
    if type(values) not in (numpy.ndarray, numpy.memmap):  # a masked array is an ndarray, too, and its mask would be lost
        refuse(what, "a numpy.ndarray", type(values).__name__, "numpy.asarray(..)")
    if values.dtype not in _DTYPES or values.dtype.kind != kind[0]:
        refuse(what, f"{kind}32 or {kind}64", values.dtype.str, f".astype(numpy.{kind}32) copies it")
    if not 1 <= values.ndim <= 3:
        refuse(what, "1 to 3 axes", f"shape {values.shape}", ".reshape(..)")
    dense = values.flags.c_contiguous and values.flags.aligned
    if not dense and not (kind == "float" and values.ndim < 3 and 0 < abs(values.strides[0]) < 1 << 31):
        refuse(what, "rows one after another", f"strides {values.strides}", "numpy.ascontiguousarray(..) copies it")
    if writable and not values.flags.writeable:
        refuse(what, "an array that may be written", "a read-only array", "give another one as out")
    (rows, *columns), (row, *column) = values.shape, values.strides
    layout = (values.ndim, (*values.shape, 1, 1)[:3]) if dense else (_c.STRIDED + (*columns, 1)[0], (rows, *column * 2), 0, row)
    return _c.Array(values.__array_interface__["data"][0], _DTYPES[values.dtype], *layout)


def _loaded() -> ctypes.CDLL:
    """libmeshgrad: the file that the environment variable MESHGRAD_LIBRARY names, or that of the package."""
    named, folder = os.environ.get("MESHGRAD_LIBRARY"), pathlib.Path(__file__).parent / "lib"
    path = named or str(folder / "libmeshgrad.so")
    try:
        for linked in () if named else folder.glob("lib*.so.*"):  # the loader then finds it by its name
            ctypes.CDLL(str(linked))
        library = ctypes.CDLL(path)
        for name, (result, *arguments) in _c.FUNCTIONS.items():
            function = getattr(library, f"meshgrad_{name}")
            function.restype, function.argtypes = result, arguments
        found = library.meshgrad_version().decode()
    except (OSError, AttributeError) as error:
        found = error
    if str(found).split(".")[:2] != _c.VERSION.split(".")[:2]:
        refuse(path, f"libmeshgrad {_c.VERSION} and what it links", found, "install a wheel, or name it by MESHGRAD_LIBRARY", ConfigError)
    return library


_LOG = _c.Log(lambda _, warning, text: logging.getLogger("meshgrad").log(logging.WARNING if warning else logging.INFO, text.decode()))


class Runtime:
    """A device, threads and memory for the objects that are made with it, Predictor(.., runtime=runtime); it ends with them.

    device: "cpu", "cuda", "cuda:1" or "auto". threads: of the CPU, the calling one included; 0: all that the process may use.
    memory_limit: bytes; 0: none. Messages go to the logger "meshgrad". One call at a time, from any thread; docs/python.md says
    what threads and fork() may do. Errors: DeviceError, InvalidArgument, and ConfigError where the library is not found."""
    _handle: int | None = None

    def __init__(self, device: str = "cpu", *, threads: int = 0, memory_limit: int = 0) -> None:
        self._library, self._in_call = _loaded(), threading.Lock()
        self._unused: list[tuple[Any, int | None]] = []  # what destroys a handle, and the handle
        options = self._initialised(_c.RuntimeOptions(), "runtime_options")
        options.device, options.threads, options.memory_limit = bytes_of(device, "device"), threads, memory_limit
        options.log = ctypes.cast(_LOG, ctypes.c_void_p)
        self._checked("runtime_create", byref(options), byref(made := ctypes.c_void_p()))
        self._handle = made.value

    def __del__(self) -> None:
        if self._handle is not None:  # where a child has it while a thread of the parent is within a call, nothing happens
            self._drop(self._library.meshgrad_runtime_destroy, self._handle)

    def _initialised(self, structure: Any, name: str) -> Any:
        getattr(self._library, f"meshgrad_{name}_init_sized")(byref(structure), ctypes.sizeof(structure))
        return structure

    def _checked(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, f"meshgrad_{function}")(*arguments)
        if status != 0:
            raise KINDS[status](self._library.meshgrad_last_error().decode(errors="replace"))

    @contextlib.contextmanager
    def _one_call(self, function: str) -> Iterator[None]:
        if not self._in_call.acquire(blocking=False):
            refuse(function, "one call of a Runtime at a time", "a call within another call", "give each thread a Runtime, or use a lock")
        try:
            while self._unused:
                destroy, handle = self._unused.pop(0)
                destroy(handle)
            yield
        finally:
            self._in_call.release()

    def _drop(self, destroy: Any, handle: int | None) -> None:
        """At the end of an object, which may come within a call, of this thread or another: then the next call destroys it."""
        self._unused.append((destroy, handle))
        with contextlib.suppress(InvalidArgument), self._one_call("close"):
            pass


class Mesh(NamedTuple):
    """A mesh by its cells or by its edges; first_node is the number of the first node in them."""
    positions: Array  # f32 or f64 [nodes, 2 or 3]
    cells: Array | None = None  # i32 or i64 [cells, 3, 4 or 8]: triangles, quads in 2-D or tetrahedra, hexahedra
    edges: Array | None = None  # i32 or i64 [edges, 2], once or both ways
    node_type: Array | None = None  # i32 or i64 [nodes]; None: all 0
    first_node: int = 0


class Field(NamedTuple):
    """What a model knows of a field. on_graph: it has one row for the whole mesh, otherwise one a node."""
    name: str
    components: int = 1
    on_graph: bool = False
    unit: str | None = None  # for messages; None: unknown


class Object:
    """What Predictor and Trainer have in common: `with` or close() frees them, or their end."""

    def _open(self, function: str, source: object, on: Runtime) -> None:
        made = ctypes.c_void_p()
        if isinstance(source, Object):
            source._call(function, byref(made))
        else:
            with on._one_call(function):
                on._checked(function, on._handle, source, byref(made))
        destroy = getattr(on._library, f"meshgrad_{function.partition('_')[0]}_destroy")
        self._runtime, self._handle, self._end = on, made.value, weakref.finalize(self, on._drop, destroy, made.value)

    def _call(self, function: str, *arguments: Any) -> None:
        with self._runtime._one_call(function):
            if not self._end.alive:
                refuse(type(self).__name__, "an open object", "an object that was closed", "make a new one")
            self._runtime._checked(function, self._handle, *arguments)

    def _mesh(self, mesh: Mesh) -> _c.Mesh:
        ours: _c.Mesh = self._runtime._initialised(_c.Mesh(), "mesh")
        ours.positions, ours.first_node = array_of(mesh.positions, "positions"), mesh.first_node
        for name in ("cells", "edges", "node_type"):
            if getattr(mesh, name) is not None:
                setattr(ours, name, array_of(getattr(mesh, name), name, "int"))
        return ours

    def close(self) -> None:
        self._end()

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Predictor(Object):
    """A checkpoint on meshes in memory: set_mesh, set_field of each input, predict, get_field.

    checkpoint: a file that `meshgrad train` or Trainer.save wrote, or a Trainer, whose weights are copied as they are now, on its
    Runtime. runtime: None makes one, on all cores. dim: 2 or 3, of positions. dt: seconds that a step covers; 0 when unknown.
    inputs, targets: the Fields to set and to get. Their arrays are f32 or f64 [nodes, components], [nodes] of one component,
    [components] of a field on the whole mesh; as positions they may have gaps between rows and components. No array is copied:
    one that would need it is refused (InvalidArgument; its fix is the call that copies). Positions, node types and inputs that
    are no targets stay borrowed until they are set anew: write into them, and the next prediction reads what is there (of
    positions, after positions_changed). A target is read when it is set. `mesh`: a number from 0, where set_mesh had several.
    Errors: DataError of a file or a mesh, InvalidArgument, OutOfMemory, DeviceError."""
    def __init__(self, checkpoint: str | os.PathLike[str] | Trainer, *, runtime: Runtime | None = None) -> None:
        if isinstance(checkpoint, Trainer):
            self._open("predictor_create_from_trainer", checkpoint, checkpoint._runtime)
        else:
            self._open("predictor_create", bytes_of(checkpoint, "checkpoint"), runtime or Runtime())
        self._meshes: tuple[Mesh, ...] = ()
        self._set: dict[tuple[int, str], Array] = {}
        self._lent: list[object] = []  # before C borrows it: a signal's exception may keep the lines after the call from running
        self._call("predictor_dim", byref(dim := ctypes.c_int32()))
        self._call("predictor_dt", byref(dt := ctypes.c_double()))
        self.dim, self.dt = dim.value, dt.value
        self.inputs, self.targets = (*self._fields("predictor_input", ctypes.c_int32()),), (*self._fields("predictor_target"),)

    def _fields(self, function: str, *on_graph: ctypes.c_int32) -> Iterator[Field]:
        with contextlib.suppress(InvalidArgument):  # past the last
            for number in range(1 << 31):
                name, components = ctypes.c_char_p(), ctypes.c_int32()
                self._call(function, number, byref(name), byref(components), *map(byref, on_graph))
                yield Field((name.value or b"").decode(), components.value, any(flag.value for flag in on_graph))

    def set_mesh(self, *meshes: Mesh) -> None:
        """A mesh, or several that are predicted together, instead of those before; their fields are unset."""
        self._lent.append(meshes)
        self._call("predictor_set_meshes", (_c.Mesh * len(meshes))(*map(self._mesh, meshes)), len(meshes))
        self._meshes, self._set, self._lent = meshes, {}, []

    def positions_changed(self) -> None:
        """Reads the borrowed positions again."""
        self._call("predictor_positions_changed")

    def set_field(self, name: str, values: Array, *, steps_before: int = 0, mesh: int = 0) -> None:
        """An input, or a target: the state to step from. steps_before: a target so many steps earlier, where the model needs it."""
        if steps_before:
            return self._give("predictor_set_earlier_field", name, values, mesh, steps_before)
        self._lent.append(values)
        self._give("predictor_set_field", name, values, mesh)
        self._set[mesh, name] = values
        self._lent.pop()

    def set_next_field(self, name: str, values: Array, *, mesh: int = 0) -> None:
        """With data.kinematic_types: where nodes of these types are one step after. Each predict(1) needs new values."""
        self._give("predictor_set_next_field", name, values, mesh)

    def set_boundary(self, name: str, values: Array, *, mesh: int = 0) -> None:
        """A target at the nodes that are not predicted; `values` are those of all nodes."""
        self._give("predictor_set_boundary", name, values, mesh)

    def predict(self, steps: int = 1) -> None:
        """Predicts `steps` steps, each from the one before; returns when they are done."""
        self._call("predictor_predict", steps)

    def get_field(self, name: str, out: Array | None = None, *, mesh: int = 0) -> Array:
        """A target as it stands now: in `out`, or in a new array of the shape and dtype that set_field got, or else f64 [nodes,
        components]. Gradients are returned in the same way."""
        return self._take("predictor_get_field", name, out, mesh)

    def record_steps(self, on: bool = True) -> None:
        """Whether predict() records its steps for backward() (docs/embedding.md); drops those recorded so far."""
        self._call("predictor_record_steps", on)

    def set_gradient(self, name: str, values: Array, *, mesh: int = 0) -> None:
        """dJ/d(target as it stands now); a target without it does not count in J. The next predict() drops it."""
        self._give("predictor_set_gradient", name, values, mesh)

    def backward(self) -> None:
        """Walks back over the recorded steps: one forward and one backward pass each."""
        self._call("predictor_backward")

    def get_gradient(self, name: str, out: Array | None = None, *, of: str = "", step: int = 0, mesh: int = 0) -> Array:
        """dJ/d(field): of a target where the recorded steps began, of another input summed over them. of="earlier": of a target
        `step` steps before; "boundary", "next": of what set_boundary, set_next_field gave before recorded step `step`, from 0."""
        return self._take(f"predictor_get_{of}_gradient" if of else "predictor_get_gradient", name, out, mesh, *((step,) if of else ()))

    def get_position_gradient(self, out: Array | None = None, *, mesh: int = 0) -> Array:
        """dJ/d(positions), [nodes, dim]; of a mesh that moves (data.world_position), those at rest."""
        out = numpy.empty_like(self._meshes[mesh].positions, subok=False) if out is None else out
        self._call("predictor_get_position_gradient", mesh, byref(array_of(out, "out", writable=True)))
        return out

    def _give(self, function: str, name: str, values: Array, mesh: int, *more: int) -> None:
        self._call(function, mesh, bytes_of(name, "name"), *more, byref(array_of(values, name)))

    def _take(self, function: str, name: str, out: Array | None, mesh: int, *more: int) -> Array:
        if out is None and (mesh, name) in self._set:
            out = numpy.empty(self._set[mesh, name].shape, self._set[mesh, name].dtype)
        elif out is None:
            components = next((field.components for field in self.targets if field.name == name), 1)
            out = numpy.empty((len(self._meshes[mesh].positions) if 0 <= mesh < len(self._meshes) else 1, components))
        self._call(function, mesh, bytes_of(name, "name"), *more, byref(array_of(out, name, writable=True)))
        return out


class Trainer(Object):
    """Trains within a running solver: set_mesh, then for each frame set_field, append, and train.

    config: TOML text (docs/config.md; docs/embedding.md says which keys to give). fields: those of data.inputs, data.targets
    and data.world_position. dim: 2 or 3, of positions. dt: seconds between frames; 0: unknown. capacity: samples kept, all with
    the same probability, or with most_recent the newest. held_out_every: every n-th sample is only for evaluation (0: none),
    and of these the held_out newest are kept. None: the library's default. runtime: None makes one, on all cores. Arrays are
    as in Predictor, and copied. Errors: ConfigError of a key, DataError, InvalidArgument, OutOfMemory, DeviceError."""
    def __init__(self, config: str, fields: Sequence[Field], *, dim: int = 2, dt: float = 0.0, capacity: int | None = None,
                 held_out_every: int | None = None, held_out: int | None = None, most_recent: bool = False,
                 runtime: Runtime | None = None) -> None:
        options = (on := runtime or Runtime())._initialised(_c.TrainerOptions(), "trainer_options")
        ours = [_c.Field(bytes_of(name, "field: name"), components, on_graph,
                         None if unit is None else bytes_of(unit, "field: unit")) for name, components, on_graph, unit in fields]
        options.config, options.dim, options.dt = bytes_of(config, "config"), dim, dt
        options.fields, options.field_count, options.most_recent = (_c.Field * len(ours))(*ours), len(ours), most_recent
        for name, value in (("capacity", capacity), ("held_out_every", held_out_every), ("held_out", held_out)):
            if value is not None:
                setattr(options, name, value)
        self._open("trainer_create", byref(options), on)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, runtime: Runtime | None = None) -> Trainer:
        """Goes on where save() was called: the same calls then give the same bits."""
        trainer = cls.__new__(cls)
        trainer._open("trainer_load", bytes_of(path, "path"), runtime or Runtime())
        return trainer

    def set_mesh(self, mesh: Mesh) -> None:
        """The mesh of the frames from now on."""
        self._call("trainer_set_mesh", byref(self._mesh(mesh)))

    def set_field(self, name: str, values: Array) -> None:
        """A field of the frame that is being made. One that is not set again keeps its values."""
        self._call("trainer_set_field", bytes_of(name, "name"), byref(array_of(values, name)))

    def append(self) -> None:
        """Ends the frame."""
        self._call("trainer_append")

    def restart_trajectory(self) -> None:
        """The frames from now on do not continue those before."""
        self._call("trainer_restart_trajectory")

    def train(self, steps: int, seconds: float | None = None) -> tuple[int, float]:
        """Up to `steps` steps, fewer where the next would not end within `seconds`. Returns how many, and the loss of the last
        (NaN of none): the mean squared error of normalised targets, or what [loss] says."""
        taken, loss = ctypes.c_int64(), ctypes.c_double()
        self._call("trainer_train", steps, -1.0 if seconds is None else max(seconds, 0.0), byref(taken), byref(loss))
        return taken.value, loss.value if taken.value else float("nan")

    def held_out_loss(self) -> float:
        """Mean squared error of normalised targets over the held-out samples; NaN without any."""
        self._call("trainer_held_out_loss", byref(loss := ctypes.c_double()))
        return loss.value

    def counts(self) -> tuple[int, int, int]:
        """Steps taken, samples kept for training, samples so far."""
        counts = ctypes.c_int64(), ctypes.c_int64(), ctypes.c_int64()
        self._call("trainer_counts", *map(byref, counts))
        return counts[0].value, counts[1].value, counts[2].value

    def save(self, path: str | os.PathLike[str]) -> None:
        """Everything in one file, which is also a checkpoint for Predictor."""
        self._call("trainer_save", bytes_of(path, "path"))


class Frame(NamedTuple):
    """One VTU file, every number as it was written. VTK's vectors have 3 components: of those in 2-D the third is 0."""
    time: float  # seconds, or the number of the frame where the data has no dt
    points: Array  # f32 or f64 [points, 3]
    connectivity: npt.NDArray[numpy.int32]  # the points of all cells; of triangles .reshape(-1, 3) is [cells, 3]
    offsets: npt.NDArray[numpy.int64]  # [cells]: where each cell ends in connectivity
    types: npt.NDArray[numpy.uint8]  # [cells]: VTK's number of its kind; 5 is a triangle, 9 a quad
    fields: dict[str, Array]  # f32 or f64 [points] or [points, components], of a model on cells [cells, ..]; node_type: i32


def read_metrics(run: str | os.PathLike[str]) -> dict[str, npt.NDArray[numpy.float64]]:
    """The metrics of a run by key (docs/run-directory.md), each [2, lines]: steps and values, NaN of one that was not finite.
    `plt.plot(*read_metrics("runs/a")["loss"])` draws the loss. `run` is its directory, or a metrics.jsonl; it may still be
    written. A line that is no row is left out, with a warning."""
    path = pathlib.Path(run, "metrics.jsonl") if os.path.isdir(run) else pathlib.Path(run)
    found: dict[str, list[tuple[float, float]]] = {}
    for number, line in enumerate(path.read_bytes().decode(errors="replace").splitlines(), 1):
        try:
            step = float((row := json.loads(line))["step"])
        except (ValueError, KeyError, TypeError):
            logging.getLogger("meshgrad").warning("%s: line %d is no row and was left out", path, number)
            continue
        for key, value in row.items():
            if value is None or isinstance(value, (int, float)):
                found.setdefault(key, []).append((step, float("nan") if value is None else value))
    return {key: numpy.array(rows, float).T for key, rows in found.items()}


def read_rollout(folder: str | os.PathLike[str]) -> list[Frame]:
    """The frames that `meshgrad rollout` wrote into a folder, in their order, or the meshes of `meshgrad predict`.
    `numpy.stack([frame.fields["velocity"] for frame in frames])` is [frames, points, 3]. DataError where the folder has
    neither or both, or a file is not as meshgrad writes it."""
    path, at = pathlib.Path(folder), pathlib.Path(folder, "rollout.pvd")
    files = sorted(path.glob("mesh_*.vtu"), key=lambda file: [int(number) for number in re.findall(r"\d+", file.stem)])
    if at.exists() == bool(files):
        refuse(path, "rollout.pvd or mesh_*.vtu", "both" if files else "none of them",
               "name the folder that `meshgrad rollout` or `meshgrad predict` wrote", DataError)
    try:
        files = files or [path / entry.attrib["file"] for entry in xml.fromstring(at.read_bytes()).iter("DataSet")]
        return [_frame((at := file).read_bytes()) for file in files]
    except (KeyError, ValueError, xml.ParseError) as error:
        refuse(at, "a file as meshgrad writes it", f"{type(error).__name__}: {error}", "write it anew", DataError)


def _frame(content: bytes) -> Frame:
    """XML up to the mark `_`, then the bytes that its offsets point at: of each array its size in u64, and its numbers."""
    head, _, data = content.partition(b'<AppendedData encoding="raw">\n_')
    tree = xml.fromstring(head + b"</VTKFile>")

    def array(found: xml.Element) -> Array:
        at = int(found.attrib["offset"])
        size = int.from_bytes(data[at:at + 8], "little")
        if len(data) < at + 8 + size:
            raise ValueError(f"{found.get('Name')} of {size} bytes at {at + 8} of {len(data)}")
        values = numpy.frombuffer(bytearray(data[at + 8:at + 8 + size]), _VTK_TYPES[found.attrib["type"]])
        return values if (components := int(found.get("NumberOfComponents", 1))) == 1 else values.reshape(-1, components)

    def arrays(section: str) -> dict[str, Array]:
        return {found.attrib["Name"]: array(found) for found in tree.iterfind(f"./UnstructuredGrid/Piece/{section}/DataArray")}

    cells, time = arrays("Cells"), tree.findtext("./UnstructuredGrid/FieldData/DataArray[@Name='TimeValue']")
    return Frame(float(time or ""), arrays("Points")["Points"], cells["connectivity"], cells["offsets"], cells["types"],
                 {**arrays("PointData"), **arrays("CellData")})
