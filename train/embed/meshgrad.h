/* SPDX-License-Identifier: Apache-2.0
 * meshgrad for C, C++ and everything that calls C: predict on meshes in memory, and train on what a running
 * solver gives. docs/embedding.md is the guide.
 *
 * Every function that can fail returns a meshgrad_status; meshgrad_last_error() has the text. Nothing is
 * printed, no exception crosses the border, no signal handler is installed, and the process is never ended.
 *
 * Threads. Any thread at any time: meshgrad_version, meshgrad_last_error, the inline functions of this
 * header, the _init functions, meshgrad_runtime_create and meshgrad_predictor_open. Every other function
 * takes a handle, the _destroy functions included: a runtime, and all handles made from it, are used by one
 * thread at a time, and any thread may be next. Handles of different runtimes may be used at the same time.
 *
 * fork(). At that moment no thread may be within a call. The child may use and destroy its copies of handles
 * on the CPU without a communicator; they work only on the calling thread. Those on a GPU or with a
 * communicator stay the parent's: in the child calls with them are MESHGRAD_INVALID_ARGUMENT, and _destroy
 * does nothing. A runtime that the child makes itself is a new one, with threads. A child that calls exec()
 * needs none of this.
 *
 * ABI: functions are only added. Structures with a `size`, set by their _init function, only grow at their
 * end: a program keeps working with later libraries, and what its header did not have yet has the default.
 * The other structures stay as they are.
 */
#ifndef MESHGRAD_H
#define MESHGRAD_H

#include <stddef.h>
#include <stdint.h>

#define MESHGRAD_VERSION_MAJOR 0
#define MESHGRAD_VERSION_MINOR 1
#define MESHGRAD_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef enum meshgrad_status {
  MESHGRAD_OK = 0,
  MESHGRAD_INVALID_ARGUMENT = 1, /* an argument that the function excludes */
  MESHGRAD_CONFIG_ERROR = 2,     /* a configuration key */
  MESHGRAD_DATA_ERROR = 3,       /* a file or a mesh */
  MESHGRAD_OUT_OF_MEMORY = 4,
  MESHGRAD_DEVICE_ERROR = 5,
  MESHGRAD_RANK_ERROR = 6,    /* another process of the job */
  MESHGRAD_INTERNAL_ERROR = 7 /* a fault of meshgrad */
} meshgrad_status;

/* "0.1.0", of the library that runs. Any thread. */
const char* meshgrad_version(void);
/* The text of this thread's last error: place, what was needed, what was found, the fix. Empty before the
 * first one; valid until the thread's next error. Any thread. */
const char* meshgrad_last_error(void);

/* ---- Arrays: borrowed, row-major; without gaps, but for meshgrad_strided and meshgrad_components ----
 * Those in the memory of the runtime's GPU are read and written on its stream: what wrote them ran on that
 * stream (cuda_stream), or has ended. On a stream of the runtime's own a call returns when it is done with
 * them. A predictor's steps use them where they are (docs/embedding.md); other calls copy them to the host,
 * or back. */

/* Integers of 64 bits are copied to 32 when they are read; one that does not fit is MESHGRAD_DATA_ERROR. */
typedef enum meshgrad_dtype {
  MESHGRAD_F32 = 0,
  MESHGRAD_F64 = 1,
  MESHGRAD_I32 = 2,
  MESHGRAD_I64 = 3
} meshgrad_dtype;
typedef enum meshgrad_device { MESHGRAD_CPU = 0, MESHGRAD_CUDA = 1 } meshgrad_device;

typedef struct meshgrad_array {
  void* data;        /* is only written where a function says so */
  int32_t dtype;     /* a meshgrad_dtype */
  int32_t rank;      /* 1 to 3; 0: no array; MESHGRAD_STRIDED + columns: of the functions below */
  int64_t shape[3];  /* {rows, columns}; the first `rank` count */
  int32_t device;    /* a meshgrad_device; MESHGRAD_CUDA: `data` is on the runtime's GPU */
  int32_t row_bytes; /* only of a strided array, whose shape is {rows, second, further}: component c > 0 of
                        row i is at data + i * row_bytes + second + (c - 1) * further, in bytes */
} meshgrad_array;
enum { MESHGRAD_STRIDED = 256 }; /* in `rank` */

/* An array on the host: [rows, columns], or [rows] of one column. `data` is const here since most arrays are
 * only read; functions that write (_get_) write to it, so do not give them a constant one. */
static inline meshgrad_array meshgrad_host_array(const void* data, int32_t dtype, int64_t rows,
                                                 int64_t columns) {
  meshgrad_array array;
  array.data = (void*)(uintptr_t)data;
  array.dtype = dtype;
  array.rank = columns == 1 ? 1 : 2;
  array.shape[0] = rows;
  array.shape[1] = columns;
  array.shape[2] = 1;
  array.device = MESHGRAD_CPU;
  array.row_bytes = 0;
  return array;
}
static inline meshgrad_array meshgrad_f32(const float* data, int64_t rows, int64_t columns) {
  return meshgrad_host_array(data, MESHGRAD_F32, rows, columns);
}
static inline meshgrad_array meshgrad_f64(const double* data, int64_t rows, int64_t columns) {
  return meshgrad_host_array(data, MESHGRAD_F64, rows, columns);
}
static inline meshgrad_array meshgrad_i32(const int32_t* data, int64_t rows, int64_t columns) {
  return meshgrad_host_array(data, MESHGRAD_I32, rows, columns);
}
static inline meshgrad_array meshgrad_i64(const int64_t* data, int64_t rows, int64_t columns) {
  return meshgrad_host_array(data, MESHGRAD_I64, rows, columns);
}

/* The rest of this part is for fields and positions on the host. */

/* A host array [rows, columns] whose rows begin `row_bytes` bytes one after another, as in an array of
 * structures: meshgrad_strided(meshgrad_f64(&nodes[0].u, count, 2), sizeof nodes[0]). */
static inline meshgrad_array meshgrad_strided(meshgrad_array array, int64_t row_bytes) {
  const int64_t columns = array.rank == 1 ? 1 : array.shape[1];
  array.shape[1] = array.shape[2] = array.dtype == MESHGRAD_F64 ? 8 : 4;
  array.row_bytes = (int32_t)row_bytes;
  array.rank = (array.rank == 1 || array.rank == 2) && array.row_bytes == row_bytes && columns < 1 << 20
                   ? MESHGRAD_STRIDED + (int32_t)columns
                   : -1; /* is refused where it is read */
  return array;
}
/* Two or three components, each an array of its own with the rows and the row_bytes of the first one, which
 * is of one column: meshgrad_components(meshgrad_f64(u, count, 1), v, NULL). */
static inline meshgrad_array meshgrad_components(meshgrad_array first, const void* second,
                                                 const void* third) {
  const intptr_t a = (intptr_t)first.data, b = (intptr_t)second, c = (intptr_t)third;
  if (first.rank == 1) first = meshgrad_strided(first, first.dtype == MESHGRAD_F64 ? 8 : 4);
  first.rank = first.rank != MESHGRAD_STRIDED + 1 ? -1 : MESHGRAD_STRIDED + (third == NULL ? 2 : 3);
  first.shape[1] = b - a;
  first.shape[2] = third == NULL ? 0 : c - b;
  return first;
}

/* ---- Runtime: device, threads, memory, log ---- */

typedef struct meshgrad_runtime meshgrad_runtime;

typedef struct meshgrad_runtime_options {
  size_t size;          /* of this structure: set by meshgrad_runtime_options_init */
  const char* device;   /* "cpu", "cuda", "cuda:1" or "auto"; NULL: "cpu" */
  int32_t threads;      /* of the CPU, the calling one included; 0: all that the process may use */
  int64_t memory_limit; /* bytes; 0: none */
  void* cuda_stream; /* a cudaStream_t to queue work on, which outlives the runtime; NULL: one of its own */
  /* Memory of the host application instead of the device's: both functions or none. They get
   * `memory_context`, may be called from the thread that uses the runtime, and must not call meshgrad.
   * `allocate` returns NULL when there is none. At most `memory_capacity` bytes are held at a time. */
  void* (*allocate)(void* memory_context, int64_t bytes);
  void (*release)(void* memory_context, void* memory, int64_t bytes);
  void* memory_context;
  int64_t memory_capacity;
  /* Receives messages, each one line; NULL: they are dropped. May be called from any thread. */
  void (*log)(void* log_context, int32_t is_warning, const char* text);
  void* log_context;
  /* The MPI communicator of the processes that train one model together, as MPI_Comm_c2f gives it (in Fortran
   * the communicator itself), of the MPI that meshgrad is built with. It is duplicated. NULL: this process is
   * alone; MPI_COMM_NULL is refused. */
  const int* communicator;
  /* Seconds that a process waits for the others, until a trainer on the runtime sets its ranks.timeout; 0:
   * 300. */
  double timeout;
} meshgrad_runtime_options;

/* The _init functions pass the size that the caller's header gives the structure. */
void meshgrad_runtime_options_init_sized(meshgrad_runtime_options* options, size_t size);
static inline void meshgrad_runtime_options_init(meshgrad_runtime_options* options) {
  meshgrad_runtime_options_init_sized(options, sizeof *options);
}
/* `options` NULL: as initialised. On failure *runtime is NULL. With a communicator, all its processes call
 * it, after MPI_Init; MESHGRAD_CONFIG_ERROR when the library was built without MPI. */
int meshgrad_runtime_create(const meshgrad_runtime_options* options, meshgrad_runtime** runtime);
/* Waits for queued work. Destroy what was made from it first, or the runtime lasts until the last of that is
 * destroyed; with a communicator, before MPI_Finalize. NULL is allowed. */
void meshgrad_runtime_destroy(meshgrad_runtime* runtime);

/* ---- Predictor: a checkpoint on meshes in memory ---- */

typedef struct meshgrad_predictor meshgrad_predictor;
typedef struct meshgrad_trainer meshgrad_trainer; /* below */

/* A mesh by its cells or by its edges, or one process' part of it. Positions, and node types of 32 bits,
 * stay borrowed until the next mesh is set; all else is read at once. */
typedef struct meshgrad_mesh {
  size_t size;              /* of this structure: set by meshgrad_mesh_init */
  meshgrad_array positions; /* f32 or f64 [nodes, dim] */
  meshgrad_array cells; /* i32 or i64 [cells, 3, 4 or 8]: triangles, quads in 2-D or tetrahedra, hexahedra */
  meshgrad_array edges; /* i32 or i64 [edges, 2], once or both ways; where there are no cells. Those from a
                           node to itself are left out */
  meshgrad_array node_type; /* i32 or i64 [nodes]; rank 0: all 0 */
  int32_t first_node;       /* the number of the first node in cells and edges: 0, or 1 as in Fortran */
  /* Where the solver has partitioned one mesh over the processes of the runtime's communicator, the arrays
   * above are those of this process' part: the nodes that it owns, then its ghost nodes, which others own,
   * and every cell or edge that has an owned node. Both of these are then given, on all processes, with
   * shape {0} where there are no ghosts; rank 0: the whole mesh is here. A process without nodes gives
   * positions of shape {0, dim} and cells of {0, 3}, and no fields on nodes. */
  meshgrad_array ghost_owner;  /* i32 or i64 [ghosts]: the process that owns the node, from 0 as MPI counts */
  meshgrad_array ghost_number; /* i32 or i64 [ghosts]: its number there, as in cells and edges */
} meshgrad_mesh;

void meshgrad_mesh_init_sized(meshgrad_mesh* mesh, size_t size);
static inline void meshgrad_mesh_init(meshgrad_mesh* mesh) { meshgrad_mesh_init_sized(mesh, sizeof *mesh); }
/* A whole mesh of its cells, whose nodes are numbered from 0. */
static inline meshgrad_mesh meshgrad_mesh_of_cells(meshgrad_array positions, meshgrad_array cells,
                                                   meshgrad_array node_type) {
  meshgrad_mesh mesh;
  meshgrad_mesh_init(&mesh);
  mesh.positions = positions;
  mesh.cells = cells;
  mesh.node_type = node_type;
  return mesh;
}

/* `checkpoint` is a file that `meshgrad train` or meshgrad_trainer_save wrote. */
int meshgrad_predictor_create(meshgrad_runtime* runtime, const char* checkpoint,
                              meshgrad_predictor** predictor);
/* Of the trainer's weights and normalisers as they are now, which are copied, on its runtime: the bits of
 * meshgrad_trainer_save and meshgrad_predictor_create, without a file. Later steps do not change it, and the
 * trainer may be destroyed before it. With a communicator all its processes call it, as
 * meshgrad_trainer_save. */
int meshgrad_predictor_create_from_trainer(const meshgrad_trainer* trainer, meshgrad_predictor** predictor);
/* With a runtime of its own, as meshgrad_runtime_create makes it from NULL: on all cores of the process. */
int meshgrad_predictor_open(const char* checkpoint, meshgrad_predictor** predictor);
void meshgrad_predictor_destroy(meshgrad_predictor* predictor);

/* 2 or 3: columns of positions. */
int meshgrad_predictor_dim(const meshgrad_predictor* predictor, int32_t* dim);
/* Seconds that a step covers; 0 when unknown. */
int meshgrad_predictor_dt(const meshgrad_predictor* predictor, double* dt);
/* Input i, or target i, from 0: name (valid as long as the predictor), components, and whether it is one row
 * for the whole mesh. MESHGRAD_INVALID_ARGUMENT past the last. */
int meshgrad_predictor_input(const meshgrad_predictor* predictor, int32_t i, const char** name,
                             int32_t* components, int32_t* on_graph);
int meshgrad_predictor_target(const meshgrad_predictor* predictor, int32_t i, const char** name,
                              int32_t* components);

/* On a mesh in parts (ghost_owner), all processes call this and meshgrad_predictor_predict in the same order.
 * Fields then have rows for ghost nodes, too: predict fills those of targets, others are not read. All
 * processes also call record_steps and backward. A process that gives a whole mesh while others give parts
 * lets those wait until they time out (meshgrad_runtime_options). NULL, or a
 * structure without meshgrad_mesh_init, ends the common work of the runtime's processes: later calls that
 * need the others fail. Both hold for a trainer's mesh, too. */
int meshgrad_predictor_set_mesh(meshgrad_predictor* predictor, const meshgrad_mesh* mesh);
/* Several meshes that are predicted together; `mesh` below is a number from 0 to count - 1. */
int meshgrad_predictor_set_meshes(meshgrad_predictor* predictor, const meshgrad_mesh* meshes, int32_t count);
/* Reads the borrowed positions again, which have changed. */
int meshgrad_predictor_positions_changed(meshgrad_predictor* predictor);

/* A field, f32 or f64 [nodes, components] (or [nodes]; [components] for one on the whole mesh). A target is
 * read now; another input stays borrowed, and each prediction reads it. */
int meshgrad_predictor_set_field(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                 const meshgrad_array* values);
/* A target one step before; needed by models of second changes, or of data.history = 2 or more. */
int meshgrad_predictor_set_previous_field(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                          const meshgrad_array* values);
/* A target so many steps before, from 1: with data.history = k up to k - 1, and k with second changes. */
int meshgrad_predictor_set_earlier_field(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                         int64_t steps_before, const meshgrad_array* values);
/* With data.kinematic_types: data.world_position, or without it each target, one step after; nodes of these
 * types are read, now. Each prediction, which is then one step, needs new ones. */
int meshgrad_predictor_set_next_field(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                      const meshgrad_array* values);
/* A target at the nodes that are not predicted: new boundary values between steps. */
int meshgrad_predictor_set_boundary(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                    const meshgrad_array* values);
/* Predicts `steps` steps, each from the one before; returns when they are done, or on your cuda_stream when
 * they are queued. */
int meshgrad_predictor_predict(meshgrad_predictor* predictor, int64_t steps);
/* Writes a target as it stands now to values->data, [components] of one on the whole mesh.
 * MESHGRAD_INVALID_ARGUMENT when it was neither set nor predicted. */
int meshgrad_predictor_get_field(const meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                 const meshgrad_array* values);

/* Whether the model has learned such values: of its inputs on a mesh, as they are set now or as predict has
 * left them, how far the one that is farthest outside of the range that its field had in training is from it,
 * in widths of that range; infinity for one that is not finite. 0, and *field = NULL, when all are within.
 * *field is valid as long as the predictor; either pointer may be NULL. MESHGRAD_INVALID_ARGUMENT for a
 * checkpoint of an earlier version, which does not say it. On a mesh in parts, of the process' own nodes. */
int meshgrad_predictor_range_excess(const meshgrad_predictor* predictor, int32_t mesh, double* excess,
                                    const char** field);

/* Gradients of a scalar J of the predicted fields: the adjoint of meshgrad_predictor_predict. Switched on,
 * predict records its steps: a copy of the node features each, and of the positions that edges follow
 * (data.world_position). Recorded steps are dropped by this call, by a new mesh, by positions_changed, and by
 * set_field, set_previous_field and set_earlier_field of a target. */
int meshgrad_predictor_record_steps(meshgrad_predictor* predictor, int32_t on);
/* dJ/d(target as it stands now), f32 or f64 [nodes, components]; read now. Without it a target does not count
 * in J. The next predict drops it. */
int meshgrad_predictor_set_gradient(meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                    const meshgrad_array* values);
/* Walks back over the recorded steps: one forward and one backward pass each. On a mesh in parts all
 * processes call this and record_steps, and J is the sum over them, given at their own nodes. */
int meshgrad_predictor_backward(meshgrad_predictor* predictor);
/* Writes dJ/d(field) to values->data, in the field's shape. Of a target: the state from which the recorded
 * steps began, 0 where set_boundary has replaced it. Of another input: summed over the steps. */
int meshgrad_predictor_get_gradient(const meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                    const meshgrad_array* values);
/* Of a target one step before (set_previous_field). */
int meshgrad_predictor_get_previous_gradient(const meshgrad_predictor* predictor, int32_t mesh,
                                             const char* name, const meshgrad_array* values);
/* Of a target so many steps before (set_earlier_field). */
int meshgrad_predictor_get_earlier_gradient(const meshgrad_predictor* predictor, int32_t mesh,
                                            const char* name, int64_t steps_before,
                                            const meshgrad_array* values);
/* Of the values that set_next_field gave for a recorded step, counted from 0: 0 at nodes that are not of
 * data.kinematic_types. In parts the rows of ghosts are 0, as in _get_boundary_gradient. */
int meshgrad_predictor_get_next_gradient(const meshgrad_predictor* predictor, int32_t mesh, const char* name,
                                         int64_t step, const meshgrad_array* values);
/* Of the values that set_boundary gave before recorded step `step`, counted from 0, or, where `step` is the
 * number of recorded steps, after the last one: 0 at predicted nodes, and where it was not called. */
int meshgrad_predictor_get_boundary_gradient(const meshgrad_predictor* predictor, int32_t mesh,
                                             const char* name, int64_t step, const meshgrad_array* values);
/* dJ/d(positions), [nodes, dim]; of a mesh that moves (data.world_position), those at rest. */
int meshgrad_predictor_get_position_gradient(const meshgrad_predictor* predictor, int32_t mesh,
                                             const meshgrad_array* values);

/* ---- Graph predictor: classes of nodes, and numbers and classes of whole graphs ----
 * Of a checkpoint of node_classification, graph_classification or graph_regression. Its processes, if it has
 * a communicator, predict each for itself. */

typedef struct meshgrad_graph_predictor meshgrad_graph_predictor;

/* A graph, or several side by side; all arrays are read within the call. */
typedef struct meshgrad_graph {
  size_t size; /* of this structure: set by meshgrad_graph_init */
  meshgrad_array
      inputs; /* f32 or f64 [nodes, columns]: the fields on nodes among data.inputs, in their order */
  meshgrad_array edges; /* i32 or i64 [edges, 2]: sender and receiver */
  int32_t directed;     /* 1: edges as they are given; 0: each once or both ways, loops are left out; -1, the
                           default: as in the data that were trained on. Another value than theirs is refused */
  int32_t first_node;   /* the number of the first node in edges and starts: 0, or 1 as in Fortran */
  meshgrad_array graph_inputs; /* f32 or f64 [graphs, columns]: the fields on graphs among data.inputs */
  meshgrad_array positions;    /* f32 or f64 [nodes, dim], where the data had them */
  meshgrad_array node_type;    /* i32 or i64 [nodes]; rank 0: all 0 */
  meshgrad_array starts; /* i32 or i64 [graphs + 1]: the first node of each graph, and one past the last; rank
                            0: one graph */
  meshgrad_array identifiers; /* i32 or i64 [nodes, columns]: the fields of data.embed, in their order */
  meshgrad_array edge_inputs; /* f32 or f64 [edges, columns]: those of data.edge_inputs, of each row of edges.
                                 An edge without a direction that is given once has them both ways */
} meshgrad_graph;

void meshgrad_graph_init_sized(meshgrad_graph* graph, size_t size);
static inline void meshgrad_graph_init(meshgrad_graph* graph) {
  meshgrad_graph_init_sized(graph, sizeof *graph);
}
int meshgrad_graph_predictor_create(meshgrad_runtime* runtime, const char* checkpoint,
                                    meshgrad_graph_predictor** predictor);
void meshgrad_graph_predictor_destroy(meshgrad_graph_predictor* predictor);
/* Columns of inputs, of identifiers, of graph_inputs, of edge_inputs and of positions (0: none); columns of a
 * prediction, and whether its rows are graphs (1) or nodes (0). Each may be NULL. */
int meshgrad_graph_predictor_sizes(const meshgrad_graph_predictor* predictor, int32_t* inputs,
                                   int32_t* identifiers, int32_t* graph_inputs, int32_t* edge_inputs,
                                   int32_t* dim, int32_t* columns, int32_t* per_graph);
/* Writes [graphs or nodes, columns] to values->data: the probability of each class, or the targets in their
 * units. */
int meshgrad_graph_predictor_predict(meshgrad_graph_predictor* predictor, const meshgrad_graph* graph,
                                     const meshgrad_array* values);

/* ---- Trainer: trains within a running solver ----
 * On a runtime with a communicator, its processes train one model, each on frames of its own. All of them
 * call meshgrad_trainer_create or _load, _train, _held_out_loss, _save and
 * meshgrad_predictor_create_from_trainer, in the same order; each saves to a path of its own. The other
 * functions concern only one process. On a mesh in parts all processes make all calls in the same order, and
 * a frame is one of the whole mesh. */

typedef struct meshgrad_field {
  const char* name;
  int32_t components;
  int32_t on_graph; /* 1: one row for the whole mesh; 0: one a node */
  const char* unit; /* for messages; NULL: unknown */
} meshgrad_field;

typedef struct meshgrad_trainer_options {
  size_t size;                  /* of this structure: set by meshgrad_trainer_options_init */
  const char* config;           /* TOML text, as docs/config.md; data.path is not needed */
  int32_t dim;                  /* of positions: 2 or 3 */
  double dt;                    /* seconds between frames; 0: unknown */
  const meshgrad_field* fields; /* data.inputs, data.targets, data.world_position */
  int32_t field_count;
  int32_t most_recent;    /* 0: each sample is kept with the same probability; 1: the newest are kept */
  int64_t capacity;       /* samples kept for training */
  int64_t held_out_every; /* every n-th sample is only for evaluation; 0: none */
  int64_t held_out;       /* of these, the newest are kept */
} meshgrad_trainer_options;

void meshgrad_trainer_options_init_sized(meshgrad_trainer_options* options, size_t size);
static inline void meshgrad_trainer_options_init(meshgrad_trainer_options* options) {
  meshgrad_trainer_options_init_sized(options, sizeof *options);
}
int meshgrad_trainer_create(meshgrad_runtime* runtime, const meshgrad_trainer_options* options,
                            meshgrad_trainer** trainer);
/* Goes on where meshgrad_trainer_save was called: the same calls then give the same bits. */
int meshgrad_trainer_load(meshgrad_runtime* runtime, const char* path, meshgrad_trainer** trainer);
void meshgrad_trainer_destroy(meshgrad_trainer* trainer);

/* The mesh of the frames from now on; copied. */
int meshgrad_trainer_set_mesh(meshgrad_trainer* trainer, const meshgrad_mesh* mesh);
/* A field of the frame that is being made; copied. One that is not set again keeps its values. */
int meshgrad_trainer_set_field(meshgrad_trainer* trainer, const char* name, const meshgrad_array* values);
/* Ends the frame. */
int meshgrad_trainer_append(meshgrad_trainer* trainer);
/* The frames from now on do not continue those before. */
int meshgrad_trainer_restart_trajectory(meshgrad_trainer* trainer);
/* Takes up to `steps` steps (at least 0), fewer where the next would not end within `seconds` (below 0: no
 * limit). `taken`, `loss` (of the last step) may be NULL. */
int meshgrad_trainer_train(meshgrad_trainer* trainer, int64_t steps, double seconds, int64_t* taken,
                           double* loss);
/* Mean squared error of normalised targets over the held-out samples; NaN without any. */
int meshgrad_trainer_held_out_loss(meshgrad_trainer* trainer, double* loss);
/* Steps taken, samples kept for training, samples so far; each may be NULL. */
int meshgrad_trainer_counts(const meshgrad_trainer* trainer, int64_t* steps, int64_t* samples, int64_t* seen);
/* Everything in one file, which is also a checkpoint for meshgrad_predictor_create. */
int meshgrad_trainer_save(const meshgrad_trainer* trainer, const char* path);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
