! SPDX-License-Identifier: Apache-2.0
!> meshgrad for Fortran 2008: predicts on meshes in memory, and trains on what a running solver gives.
!! docs/embedding.md is the guide; meshgrad.h says what each call does.
!!
!! Arrays are passed as numbers(x) of real32, real64, int32 or int64 arrays of rank 1 to 3. They are
!! borrowed: they are `target` or pointers. The components of a field are its first extent: velocity(2, nodes); where they
!! are arrays of their own, numbers(u, v) or numbers(u, v, w) is the field. Fields and positions may be parts with
!! gaps, of rank 1 or 2, such as velocity(1:2, :), but no components of arrays of derived types; cells, edges and node
!! types have no gaps. Node numbers start at 1. Trailing blanks of names,
!! paths and texts do not count.
!!
!! A runtime, predictor or trainer is closed where its variable ends, and cannot be assigned to another variable.
!!
!! Without `status`, a call that fails ends the program by `error stop` with its text; with it, the program
!! goes on, and meshgrad_error_text() has the text.
module meshgrad
  use, intrinsic :: iso_c_binding
  use, intrinsic :: iso_fortran_env, only: error_unit, real32, real64, int32, int64
  implicit none
  private
  public :: numbers, on_device, mesh_of, meshgrad_array, meshgrad_mesh, meshgrad_runtime, meshgrad_predictor, meshgrad_trainer
  public :: meshgrad_graph_predictor
  public :: meshgrad_version, meshgrad_error_text
  integer, parameter, public :: meshgrad_ok = 0, meshgrad_invalid_argument = 1, meshgrad_config_error = 2, &
    meshgrad_data_error = 3, meshgrad_out_of_memory = 4, meshgrad_device_error = 5, meshgrad_rank_error = 6, &
    meshgrad_internal_error = 7
  character(160) :: text_from_here = ''  ! of the last error where it is not C's
  !$omp threadprivate(text_from_here)

  !> meshgrad_array of meshgrad.h.
  type, bind(c) :: meshgrad_array
    private
    type(c_ptr) :: data = c_null_ptr
    integer(c_int32_t) :: dtype = 0, rank = 0
    integer(c_int64_t) :: extents(3) = 0
    integer(c_int32_t) :: device = 0, row_bytes = 0
  end type

  !> meshgrad_mesh of meshgrad.h.
  type, bind(c) :: meshgrad_mesh
    private
    integer(c_size_t) :: size
    type(meshgrad_array) :: positions, cells, edges, node_type
    integer(c_int32_t) :: first_node
    type(meshgrad_array) :: ghost_owner, ghost_number
  end type

  !> meshgrad_graph of meshgrad.h.
  type, bind(c) :: c_graph
    integer(c_size_t) :: size
    type(meshgrad_array) :: inputs, edges
    integer(c_int32_t) :: directed, first_node
    type(meshgrad_array) :: graph_inputs, positions, node_type, starts, identifiers, edge_inputs
  end type

  !> meshgrad_runtime_options of meshgrad.h.
  type, bind(c) :: c_runtime_options
    integer(c_size_t) :: size
    type(c_ptr) :: device
    integer(c_int32_t) :: threads
    integer(c_int64_t) :: memory_limit
    type(c_ptr) :: cuda_stream
    type(c_funptr) :: allocate, release
    type(c_ptr) :: memory_context
    integer(c_int64_t) :: memory_capacity
    type(c_funptr) :: log
    type(c_ptr) :: log_context, communicator
    real(c_double) :: timeout
  end type

  !> An array as meshgrad takes it.
  interface numbers
    module procedure numbers_r32_1, numbers_r32_2, numbers_r32_3, numbers_r64_1, numbers_r64_2, numbers_r64_3, &
      numbers_int_1, numbers_int_2, numbers_int64_1, numbers_int64_2, numbers_r32_apart, numbers_r64_apart
  end interface

  !> The procedures of a program that runtime%open takes.
  abstract interface
    !> Receives a message of one line. May be called from any thread.
    subroutine log_line(is_warning, text)
      import
      logical(c_bool), intent(in) :: is_warning
      character(*), intent(in) :: text
    end subroutine
    !> Memory of the program, at any alignment; c_null_ptr where there is none.
    function memory_of_program(context, bytes) bind(c)
      import
      type(c_ptr), value :: context
      integer(c_int64_t), value :: bytes
      type(c_ptr) :: memory_of_program
    end function
    !> Takes back what it gave.
    subroutine back_to_program(context, memory, bytes) bind(c)
      import
      type(c_ptr), value :: context, memory
      integer(c_int64_t), value :: bytes
    end subroutine
  end interface

  !> What the log_context of C points to.
  type :: program_log
    procedure(log_line), pointer, nopass :: write => null()
  end type

  !> A runtime of C, which is destroyed after all that was made from it: variables end in no order.
  type :: shared_runtime
    type(c_ptr) :: handle = c_null_ptr
    integer :: users = 0
    type(program_log), pointer :: log => null()
  end type

  !> What C has made for one variable, which ends with it.
  type :: owner
    type(c_ptr) :: handle = c_null_ptr
    procedure(c_predictor_destroy), pointer, nopass :: destroy => null()
    type(shared_runtime), pointer :: shared => null()
  contains
    procedure, private :: refuse_copy
    generic :: assignment(=) => refuse_copy
    final :: end_owned
  end type

  !> Device, threads and memory. Closed before what was made from it, it lasts until the last of that is closed.
  type :: meshgrad_runtime
    type(owner), private :: own
  contains
    procedure :: open => runtime_open
    procedure :: close => runtime_close
  end type

  !> A checkpoint that predicts.
  type :: meshgrad_predictor
    type(owner), private :: own
  contains
    procedure, private :: open_file => predictor_open
    procedure, private :: open_trainer => predictor_open_trainer
    generic :: open => open_file, open_trainer
    procedure :: close => predictor_close
    procedure :: dim => predictor_dim
    procedure :: dt => predictor_dt
    procedure :: set_mesh => predictor_set_mesh
    procedure :: set_meshes => predictor_set_meshes
    procedure :: positions_changed => predictor_positions_changed
    procedure :: set_field => predictor_set_field
    procedure :: set_previous_field => predictor_set_previous_field
    procedure :: set_earlier_field => predictor_set_earlier_field
    procedure :: set_next_field => predictor_set_next_field
    procedure :: set_boundary => predictor_set_boundary
    procedure :: predict => predictor_predict
    procedure :: range_excess => predictor_range_excess
    procedure :: get_field => predictor_get_field
    procedure :: record_steps => predictor_record_steps
    procedure :: set_gradient => predictor_set_gradient
    procedure :: backward => predictor_backward
    procedure :: get_gradient => predictor_get_gradient
    procedure :: get_previous_gradient => predictor_get_previous_gradient
    procedure :: get_earlier_gradient => predictor_get_earlier_gradient
    procedure :: get_next_gradient => predictor_get_next_gradient
    procedure :: get_boundary_gradient => predictor_get_boundary_gradient
    procedure :: get_position_gradient => predictor_get_position_gradient
  end type

  !> A checkpoint that predicts classes of nodes, or numbers or classes of graphs.
  type :: meshgrad_graph_predictor
    type(owner), private :: own
  contains
    procedure :: open => graph_predictor_open
    procedure :: close => graph_predictor_close
    procedure :: sizes => graph_predictor_sizes
    procedure :: predict => graph_predictor_predict
  end type

  !> meshgrad_field of meshgrad.h.
  type, bind(c) :: c_field
    type(c_ptr) :: name
    integer(c_int32_t) :: components, on_graph
    type(c_ptr) :: unit
  end type

  !> meshgrad_trainer_options of meshgrad.h.
  type, bind(c) :: c_trainer_options
    integer(c_size_t) :: size
    type(c_ptr) :: config
    integer(c_int32_t) :: dim
    real(c_double) :: dt
    type(c_ptr) :: fields
    integer(c_int32_t) :: field_count, most_recent
    integer(c_int64_t) :: capacity, held_out_every, held_out
  end type

  !> Trains within a running solver.
  type :: meshgrad_trainer
    type(owner), private :: own
  contains
    procedure :: open => trainer_open
    procedure :: load => trainer_load
    procedure :: close => trainer_close
    procedure :: set_mesh => trainer_set_mesh
    procedure :: set_field => trainer_set_field
    procedure :: append => trainer_append
    procedure :: restart_trajectory => trainer_restart_trajectory
    procedure :: train => trainer_train
    procedure :: held_out_loss => trainer_held_out_loss
    procedure :: counts => trainer_counts
    procedure :: save => trainer_save
  end type

  interface
    subroutine c_trainer_options_init(options, size) bind(c, name="meshgrad_trainer_options_init_sized")
      import
      type(c_trainer_options), intent(out) :: options
      integer(c_size_t), value :: size
    end subroutine
    function c_trainer_create(runtime, options, trainer) bind(c, name="meshgrad_trainer_create")
      import
      type(c_ptr), value :: runtime
      type(c_trainer_options), intent(in) :: options
      type(c_ptr), intent(out) :: trainer
      integer(c_int) :: c_trainer_create
    end function
    function c_trainer_load(runtime, path, trainer) bind(c, name="meshgrad_trainer_load")
      import
      type(c_ptr), value :: runtime
      character(kind=c_char), intent(in) :: path(*)
      type(c_ptr), intent(out) :: trainer
      integer(c_int) :: c_trainer_load
    end function
    subroutine c_trainer_destroy(trainer) bind(c, name="meshgrad_trainer_destroy")
      import
      type(c_ptr), value :: trainer
    end subroutine
    function c_trainer_set_mesh(trainer, mesh) bind(c, name="meshgrad_trainer_set_mesh")
      import
      type(c_ptr), value :: trainer
      type(meshgrad_mesh), intent(in) :: mesh
      integer(c_int) :: c_trainer_set_mesh
    end function
    function c_trainer_set_field(trainer, name, values) bind(c, name="meshgrad_trainer_set_field")
      import
      type(c_ptr), value :: trainer
      character(kind=c_char), intent(in) :: name(*)
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_trainer_set_field
    end function
    function c_trainer_append(trainer) bind(c, name="meshgrad_trainer_append")
      import
      type(c_ptr), value :: trainer
      integer(c_int) :: c_trainer_append
    end function
    function c_trainer_restart(trainer) bind(c, name="meshgrad_trainer_restart_trajectory")
      import
      type(c_ptr), value :: trainer
      integer(c_int) :: c_trainer_restart
    end function
    function c_trainer_train(trainer, steps, seconds, taken, loss) bind(c, name="meshgrad_trainer_train")
      import
      type(c_ptr), value :: trainer
      integer(c_int64_t), value :: steps
      real(c_double), value :: seconds
      integer(c_int64_t), intent(out) :: taken
      real(c_double), intent(out) :: loss
      integer(c_int) :: c_trainer_train
    end function
    function c_trainer_held_out_loss(trainer, loss) bind(c, name="meshgrad_trainer_held_out_loss")
      import
      type(c_ptr), value :: trainer
      real(c_double), intent(out) :: loss
      integer(c_int) :: c_trainer_held_out_loss
    end function
    function c_trainer_counts(trainer, steps, samples, seen) bind(c, name="meshgrad_trainer_counts")
      import
      type(c_ptr), value :: trainer
      integer(c_int64_t), intent(out) :: steps, samples, seen
      integer(c_int) :: c_trainer_counts
    end function
    function c_trainer_save(trainer, path) bind(c, name="meshgrad_trainer_save")
      import
      type(c_ptr), value :: trainer
      character(kind=c_char), intent(in) :: path(*)
      integer(c_int) :: c_trainer_save
    end function
  end interface

  interface
    subroutine c_graph_init(graph, size) bind(c, name="meshgrad_graph_init_sized")
      import
      type(c_graph), intent(out) :: graph
      integer(c_size_t), value :: size
    end subroutine
    function c_graph_predictor_create(runtime, checkpoint, predictor) bind(c, name="meshgrad_graph_predictor_create")
      import
      type(c_ptr), value :: runtime
      character(kind=c_char), intent(in) :: checkpoint(*)
      type(c_ptr), intent(out) :: predictor
      integer(c_int) :: c_graph_predictor_create
    end function
    subroutine c_graph_predictor_destroy(predictor) bind(c, name="meshgrad_graph_predictor_destroy")
      import
      type(c_ptr), value :: predictor
    end subroutine
    function c_graph_predictor_sizes(predictor, inputs, identifiers, graph_inputs, edge_inputs, dim, columns, per_graph) &
        bind(c, name="meshgrad_graph_predictor_sizes")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), intent(out) :: inputs, identifiers, graph_inputs, edge_inputs, dim, columns, per_graph
      integer(c_int) :: c_graph_predictor_sizes
    end function
    function c_graph_predictor_predict(predictor, graph, values) bind(c, name="meshgrad_graph_predictor_predict")
      import
      type(c_ptr), value :: predictor
      type(c_graph), intent(in) :: graph
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_graph_predictor_predict
    end function
  end interface

  interface
    function c_version() bind(c, name="meshgrad_version")
      import
      type(c_ptr) :: c_version
    end function
    function c_last_error() bind(c, name="meshgrad_last_error")
      import
      type(c_ptr) :: c_last_error
    end function
    function c_strlen(text) bind(c, name="strlen")
      import
      type(c_ptr), value :: text
      integer(c_size_t) :: c_strlen
    end function
    subroutine c_options_init(options, size) bind(c, name="meshgrad_runtime_options_init_sized")
      import
      type(c_runtime_options), intent(out) :: options
      integer(c_size_t), value :: size
    end subroutine
    function c_runtime_create(options, runtime) bind(c, name="meshgrad_runtime_create")
      import
      type(c_runtime_options), intent(in) :: options
      type(c_ptr), intent(out) :: runtime
      integer(c_int) :: c_runtime_create
    end function
    subroutine c_runtime_destroy(runtime) bind(c, name="meshgrad_runtime_destroy")
      import
      type(c_ptr), value :: runtime
    end subroutine
    subroutine c_mesh_init(mesh, size) bind(c, name="meshgrad_mesh_init_sized")
      import
      type(meshgrad_mesh), intent(out) :: mesh
      integer(c_size_t), value :: size
    end subroutine
    function c_predictor_create(runtime, checkpoint, predictor) bind(c, name="meshgrad_predictor_create")
      import
      type(c_ptr), value :: runtime
      character(kind=c_char), intent(in) :: checkpoint(*)
      type(c_ptr), intent(out) :: predictor
      integer(c_int) :: c_predictor_create
    end function
    function c_predictor_of_trainer(trainer, predictor) bind(c, name="meshgrad_predictor_create_from_trainer")
      import
      type(c_ptr), value :: trainer
      type(c_ptr), intent(out) :: predictor
      integer(c_int) :: c_predictor_of_trainer
    end function
    subroutine c_predictor_destroy(predictor) bind(c, name="meshgrad_predictor_destroy")
      import
      type(c_ptr), value :: predictor
    end subroutine
    function c_predictor_dim(predictor, dim) bind(c, name="meshgrad_predictor_dim")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), intent(out) :: dim
      integer(c_int) :: c_predictor_dim
    end function
    function c_predictor_dt(predictor, dt) bind(c, name="meshgrad_predictor_dt")
      import
      type(c_ptr), value :: predictor
      real(c_double), intent(out) :: dt
      integer(c_int) :: c_predictor_dt
    end function
    function c_predictor_set_mesh(predictor, mesh) bind(c, name="meshgrad_predictor_set_mesh")
      import
      type(c_ptr), value :: predictor
      type(meshgrad_mesh), intent(in) :: mesh
      integer(c_int) :: c_predictor_set_mesh
    end function
    function c_predictor_positions_changed(predictor) bind(c, name="meshgrad_predictor_positions_changed")
      import
      type(c_ptr), value :: predictor
      integer(c_int) :: c_predictor_positions_changed
    end function
    function c_predictor_set_field(predictor, mesh, name, values) bind(c, name="meshgrad_predictor_set_field")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_set_field
    end function
    function c_predictor_set_previous_field(predictor, mesh, name, values) &
        bind(c, name="meshgrad_predictor_set_previous_field")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_set_previous_field
    end function
    function c_predictor_set_earlier_field(predictor, mesh, name, steps_before, values) &
        bind(c, name="meshgrad_predictor_set_earlier_field")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: steps_before
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_set_earlier_field
    end function
    function c_predictor_set_next_field(predictor, mesh, name, values) &
        bind(c, name="meshgrad_predictor_set_next_field")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_set_next_field
    end function
    function c_predictor_set_boundary(predictor, mesh, name, values) &
        bind(c, name="meshgrad_predictor_set_boundary")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_set_boundary
    end function
    function c_predictor_range_excess(predictor, mesh, excess, field) bind(c, name="meshgrad_predictor_range_excess")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      real(c_double), intent(out) :: excess
      type(c_ptr), intent(out) :: field
      integer(c_int) :: c_predictor_range_excess
    end function
    function c_predictor_predict(predictor, steps) bind(c, name="meshgrad_predictor_predict")
      import
      type(c_ptr), value :: predictor
      integer(c_int64_t), value :: steps
      integer(c_int) :: c_predictor_predict
    end function
    function c_predictor_set_meshes(predictor, meshes, count) bind(c, name="meshgrad_predictor_set_meshes")
      import
      type(c_ptr), value :: predictor
      type(meshgrad_mesh), intent(in) :: meshes(*)
      integer(c_int32_t), value :: count
      integer(c_int) :: c_predictor_set_meshes
    end function
    function c_predictor_record_steps(predictor, on) bind(c, name="meshgrad_predictor_record_steps")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: on
      integer(c_int) :: c_predictor_record_steps
    end function
    function c_predictor_backward(predictor) bind(c, name="meshgrad_predictor_backward")
      import
      type(c_ptr), value :: predictor
      integer(c_int) :: c_predictor_backward
    end function
    function c_predictor_get_position_gradient(predictor, mesh, values) &
        bind(c, name="meshgrad_predictor_get_position_gradient")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_get_position_gradient
    end function
    function c_predictor_set_gradient(predictor, mesh, name, values) &
        bind(c, name="meshgrad_predictor_set_gradient")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_set_gradient
    end function
    function c_predictor_get_gradient(predictor, mesh, name, values) &
        bind(c, name="meshgrad_predictor_get_gradient")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_get_gradient
    end function
    function c_predictor_get_previous_gradient(predictor, mesh, name, values) &
        bind(c, name="meshgrad_predictor_get_previous_gradient")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_get_previous_gradient
    end function
    function c_predictor_get_earlier_gradient(predictor, mesh, name, steps_before, values) &
        bind(c, name="meshgrad_predictor_get_earlier_gradient")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: steps_before
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_get_earlier_gradient
    end function
    function c_predictor_get_next_gradient(predictor, mesh, name, step, values) &
        bind(c, name="meshgrad_predictor_get_next_gradient")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: step
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_get_next_gradient
    end function
    function c_predictor_get_boundary_gradient(predictor, mesh, name, step, values) &
        bind(c, name="meshgrad_predictor_get_boundary_gradient")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int64_t), value :: step
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_get_boundary_gradient
    end function
    function c_predictor_get_field(predictor, mesh, name, values) bind(c, name="meshgrad_predictor_get_field")
      import
      type(c_ptr), value :: predictor
      integer(c_int32_t), value :: mesh
      character(kind=c_char), intent(in) :: name(*)
      type(meshgrad_array), intent(in) :: values
      integer(c_int) :: c_predictor_get_field
    end function
  end interface

contains

  !> Text of a C string.
  function text_of(pointer) result(text)
    type(c_ptr), intent(in) :: pointer
    character(:), allocatable :: text
    character(kind=c_char), pointer :: characters(:)
    integer :: i
    call c_f_pointer(pointer, characters, [c_strlen(pointer)])
    allocate (character(size(characters)) :: text)
    do i = 1, size(characters)
      text(i:i) = characters(i)
    end do
  end function

  function meshgrad_version() result(text)
    character(:), allocatable :: text
    text = text_of(c_version())
  end function

  !> Of this thread's last error. Compiled without OpenMP, the module's own texts are of the last one on any thread.
  function meshgrad_error_text() result(text)
    character(:), allocatable :: text
    if (text_from_here /= '') then
      text = trim(text_from_here)
    else
      text = text_of(c_last_error())
    end if
  end function

  subroutine finish(got, status)
    integer(c_int), intent(in) :: got
    integer, intent(out), optional :: status
    if (got /= meshgrad_ok) text_from_here = ''
    call report(got, status)
  end subroutine

  !> An error that C does not know of.
  subroutine refuse(text, status)
    character(*), intent(in) :: text
    integer, intent(out), optional :: status
    text_from_here = text
    call report(int(meshgrad_invalid_argument, c_int), status)
  end subroutine

  subroutine report(got, status)
    integer(c_int), intent(in) :: got
    integer, intent(out), optional :: status
    if (present(status)) then
      status = got
    else if (got /= meshgrad_ok) then
      write (error_unit, '(2a)') 'meshgrad: ', meshgrad_error_text()
      error stop 1
    end if
  end subroutine

  !> As C takes it, without trailing blanks.
  pure function zero_ended(text) result(ended)
    character(*), intent(in) :: text
    character(kind=c_char, len=len_trim(text) + 1) :: ended
    ended = trim(text)//c_null_char
  end function

  impure elemental subroutine refuse_copy(to, from)
    class(owner), intent(inout) :: to
    class(owner), intent(in) :: from
    if (c_associated(to%handle) .or. c_associated(from%handle)) &
      call refuse('[assignment] needed objects that are not open, got an open object; fix: pass or point to the variable')
  end subroutine

  !> Whether it is, which is then an error of the call `from`.
  logical function is_open(own, from, status)
    type(owner), intent(in) :: own
    character(*), intent(in) :: from
    integer, intent(out), optional :: status
    is_open = c_associated(own%handle)
    if (is_open) call refuse('['//from//'] needed an object that is not open, got an open object; fix: close it first', status)
  end function

  !> After the handle was made on a runtime, unless that failed.
  subroutine hold(own, destroy, shared)
    type(owner), intent(inout) :: own
    procedure(c_predictor_destroy) :: destroy
    type(shared_runtime), pointer, intent(in) :: shared
    if (.not. c_associated(own%handle)) return
    own%destroy => destroy
    own%shared => shared
    shared%users = shared%users + 1
  end subroutine

  impure elemental subroutine end_owned(own)
    type(owner), intent(inout) :: own
    if (associated(own%destroy)) call own%destroy(own%handle)
    if (associated(own%shared)) then
      own%shared%users = own%shared%users - 1
      if (own%shared%users == 0) then
        call c_runtime_destroy(own%shared%handle)
        if (associated(own%shared%log)) deallocate (own%shared%log)
        deallocate (own%shared)
      end if
    end if
    own%handle = c_null_ptr
    nullify (own%destroy, own%shared)
  end subroutine

  ! Extents are reversed: Fortran's first is C's last.

  !> An array whose address is in the memory of the runtime's GPU: on_device(numbers(u)), where
  !! `!$acc host_data use_device(u)` or its like makes u stand for that memory.
  pure function on_device(array) result(there)
    type(meshgrad_array), intent(in) :: array
    type(meshgrad_array) :: there
    there = array
    there%device = 1
  end function

  !> Bytes from one address to another.
  integer(c_int64_t) function distance(from, to)
    type(c_ptr), intent(in) :: from, to
    distance = transfer(to, 0_c_intptr_t) - transfer(from, 0_c_intptr_t)
  end function

  !> Rows of numbers of `bytes` bytes that are `row` and `column` bytes apart. What C cannot describe has rank -1: the
  !! call that gets it fails. That are gaps in integers, and arrays whose distances contradict what the compiler says of
  !! them: gfortran passes a component of an array of a derived type by another address.
  function described(dtype, extents, bytes, contiguous, row, column) result(array)
    integer, intent(in) :: dtype, extents(:), bytes
    logical, intent(in) :: contiguous
    integer(c_int64_t), intent(in) :: row, column
    type(meshgrad_array) :: array
    integer :: columns
    array%dtype = dtype
    array%rank = size(extents)
    array%extents(:size(extents)) = extents
    columns = 1
    if (size(extents) == 2) columns = extents(2)
    if ((row == 0 .or. row == int(bytes, c_int64_t)*columns) .and. (column == 0 .or. column == bytes)) then
      if (.not. contiguous .and. size(extents) == 3) array%rank = -1
      return
    end if
    array%rank = -1
    if (contiguous .or. dtype > 1 .or. size(extents) > 2 .or. columns > 2**20 .or. abs(row) > huge(array%row_bytes)) return
    array%rank = int(256 + columns, c_int32_t)
    array%extents = [int(extents(1), c_int64_t), column, column]
    array%row_bytes = int(row, c_int32_t)
  end function

  !> Components that are arrays of their own, with one distance between the rows of each.
  function numbers_r32_apart(u, v, w) result(array)
    real(real32), pointer, intent(in) :: u(:), v(:)
    real(real32), pointer, intent(in), optional :: w(:)
    type(meshgrad_array) :: array, second, third
    array = numbers(u)
    second = numbers(v)
    third = second
    if (present(w)) third = numbers(w)
    call join(array, second, third, merge(3, 2, present(w)), 4)
  end function

  function numbers_r64_apart(u, v, w) result(array)
    real(real64), pointer, intent(in) :: u(:), v(:)
    real(real64), pointer, intent(in), optional :: w(:)
    type(meshgrad_array) :: array, second, third
    array = numbers(u)
    second = numbers(v)
    third = second
    if (present(w)) third = numbers(w)
    call join(array, second, third, merge(3, 2, present(w)), 8)
  end function

  !> Arrays of rank 1 as one. Where they do not fit together it has rank -1.
  subroutine join(first, second, third, columns, bytes)
    type(meshgrad_array), intent(inout) :: first
    type(meshgrad_array), intent(in) :: second, third
    integer, intent(in) :: columns, bytes
    if (first%rank == 1) first%row_bytes = int(bytes, c_int32_t)
    if (any([fits(second), fits(third)] .eqv. .false.) .or. first%rank < 0) then
      first%rank = -1
      return
    end if
    first%rank = int(256 + columns, c_int32_t)
    first%extents(2) = distance(first%data, second%data)
    first%extents(3) = distance(second%data, third%data)

  contains

    logical function fits(other)
      type(meshgrad_array), intent(in) :: other
      fits = other%rank == first%rank .and. other%extents(1) == first%extents(1) .and. &
             (other%rank == 1 .or. other%row_bytes == first%row_bytes)
    end function
  end subroutine

  function numbers_r32_1(x) result(array)
    real(real32), pointer, intent(in) :: x(:)
    type(meshgrad_array) :: array
    integer :: i
    integer(c_int64_t) :: step
    i = lbound(x, 1)
    step = 0
    if (size(x) > 1) step = distance(c_loc(x(i)), c_loc(x(i + 1)))
    array = described(0, [size(x)], 4, is_contiguous(x), step, 0_c_int64_t)
    if (size(x) > 0) array%data = c_loc(x(i))
  end function

  function numbers_r32_2(x) result(array)
    real(real32), pointer, intent(in) :: x(:, :)
    type(meshgrad_array) :: array
    integer :: i, j
    integer(c_int64_t) :: row, column
    i = lbound(x, 1)
    j = lbound(x, 2)
    row = 0
    column = 0
    if (size(x) > 0 .and. size(x, 1) > 1) column = distance(c_loc(x(i, j)), c_loc(x(i + 1, j)))
    if (size(x) > 0 .and. size(x, 2) > 1) row = distance(c_loc(x(i, j)), c_loc(x(i, j + 1)))
    array = described(0, [size(x, 2), size(x, 1)], 4, is_contiguous(x), row, column)
    if (size(x) > 0) array%data = c_loc(x(i, j))
  end function

  function numbers_r32_3(x) result(array)
    real(real32), pointer, intent(in) :: x(:, :, :)
    type(meshgrad_array) :: array
    integer :: i(3)
    integer(c_int64_t) :: step
    i = lbound(x)
    step = 0
    if (size(x) > 0 .and. size(x, 1) > 1) step = distance(c_loc(x(i(1), i(2), i(3))), c_loc(x(i(1) + 1, i(2), i(3))))
    array = described(0, [size(x, 3), size(x, 2), size(x, 1)], 4, is_contiguous(x), step, 0_c_int64_t)
    if (size(x) > 0) array%data = c_loc(x(i(1), i(2), i(3)))
  end function

  function numbers_r64_1(x) result(array)
    real(real64), pointer, intent(in) :: x(:)
    type(meshgrad_array) :: array
    integer :: i
    integer(c_int64_t) :: step
    i = lbound(x, 1)
    step = 0
    if (size(x) > 1) step = distance(c_loc(x(i)), c_loc(x(i + 1)))
    array = described(1, [size(x)], 8, is_contiguous(x), step, 0_c_int64_t)
    if (size(x) > 0) array%data = c_loc(x(i))
  end function

  function numbers_r64_2(x) result(array)
    real(real64), pointer, intent(in) :: x(:, :)
    type(meshgrad_array) :: array
    integer :: i, j
    integer(c_int64_t) :: row, column
    i = lbound(x, 1)
    j = lbound(x, 2)
    row = 0
    column = 0
    if (size(x) > 0 .and. size(x, 1) > 1) column = distance(c_loc(x(i, j)), c_loc(x(i + 1, j)))
    if (size(x) > 0 .and. size(x, 2) > 1) row = distance(c_loc(x(i, j)), c_loc(x(i, j + 1)))
    array = described(1, [size(x, 2), size(x, 1)], 8, is_contiguous(x), row, column)
    if (size(x) > 0) array%data = c_loc(x(i, j))
  end function

  function numbers_r64_3(x) result(array)
    real(real64), pointer, intent(in) :: x(:, :, :)
    type(meshgrad_array) :: array
    integer :: i(3)
    integer(c_int64_t) :: step
    i = lbound(x)
    step = 0
    if (size(x) > 0 .and. size(x, 1) > 1) step = distance(c_loc(x(i(1), i(2), i(3))), c_loc(x(i(1) + 1, i(2), i(3))))
    array = described(1, [size(x, 3), size(x, 2), size(x, 1)], 8, is_contiguous(x), step, 0_c_int64_t)
    if (size(x) > 0) array%data = c_loc(x(i(1), i(2), i(3)))
  end function

  function numbers_int_1(x) result(array)
    integer(int32), pointer, intent(in) :: x(:)
    type(meshgrad_array) :: array
    integer :: i
    integer(c_int64_t) :: step
    i = lbound(x, 1)
    step = 0
    if (size(x) > 1) step = distance(c_loc(x(i)), c_loc(x(i + 1)))
    array = described(2, [size(x)], 4, is_contiguous(x), step, 0_c_int64_t)
    if (size(x) > 0) array%data = c_loc(x(i))
  end function

  function numbers_int_2(x) result(array)
    integer(int32), pointer, intent(in) :: x(:, :)
    type(meshgrad_array) :: array
    integer :: i, j
    integer(c_int64_t) :: row, column
    i = lbound(x, 1)
    j = lbound(x, 2)
    row = 0
    column = 0
    if (size(x) > 0 .and. size(x, 1) > 1) column = distance(c_loc(x(i, j)), c_loc(x(i + 1, j)))
    if (size(x) > 0 .and. size(x, 2) > 1) row = distance(c_loc(x(i, j)), c_loc(x(i, j + 1)))
    array = described(2, [size(x, 2), size(x, 1)], 4, is_contiguous(x), row, column)
    if (size(x) > 0) array%data = c_loc(x(i, j))
  end function

  function numbers_int64_1(x) result(array)
    integer(int64), pointer, intent(in) :: x(:)
    type(meshgrad_array) :: array
    integer :: i
    integer(c_int64_t) :: step
    i = lbound(x, 1)
    step = 0
    if (size(x) > 1) step = distance(c_loc(x(i)), c_loc(x(i + 1)))
    array = described(3, [size(x)], 8, is_contiguous(x), step, 0_c_int64_t)
    if (size(x) > 0) array%data = c_loc(x(i))
  end function

  function numbers_int64_2(x) result(array)
    integer(int64), pointer, intent(in) :: x(:, :)
    type(meshgrad_array) :: array
    integer :: i, j
    integer(c_int64_t) :: row, column
    i = lbound(x, 1)
    j = lbound(x, 2)
    row = 0
    column = 0
    if (size(x) > 0 .and. size(x, 1) > 1) column = distance(c_loc(x(i, j)), c_loc(x(i + 1, j)))
    if (size(x) > 0 .and. size(x, 2) > 1) row = distance(c_loc(x(i, j)), c_loc(x(i, j + 1)))
    array = described(3, [size(x, 2), size(x, 1)], 8, is_contiguous(x), row, column)
    if (size(x) > 0) array%data = c_loc(x(i, j))
  end function

  !> device: "cpu", "cuda", "cuda:1" or "auto". threads: 0 is all that the process may use. communicator: of the
  !! processes that train one model together; of mpi_f08 its %mpi_val. All of them then call open and close.
  !! memory_limit: bytes; 0 is none. log: a procedure of a module, for messages of one line. allocate, release: bind(c)
  !! procedures of the program instead of the device's memory, both or none, which get memory_context and hold at
  !! most memory_capacity bytes. cuda_stream: a cudaStream_t to queue work on, which outlives the runtime. timeout:
  !! seconds that a process waits for the others, until a trainer sets its ranks.timeout; 0 is 300.
  subroutine runtime_open(self, device, threads, status, communicator, memory_limit, log, allocate, release, &
      memory_capacity, memory_context, cuda_stream, timeout)
    class(meshgrad_runtime), intent(inout) :: self
    character(*), intent(in), optional :: device
    integer, intent(in), optional :: threads
    integer, intent(out), optional :: status
    integer, intent(in), optional :: communicator
    integer(int64), intent(in), optional :: memory_limit, memory_capacity
    procedure(log_line), optional :: log
    procedure(memory_of_program), optional :: allocate
    procedure(back_to_program), optional :: release
    type(c_ptr), intent(in), optional :: memory_context, cuda_stream
    real(real64), intent(in), optional :: timeout
    type(c_runtime_options) :: options
    type(program_log), pointer :: lines
    character(kind=c_char, len=:), allocatable, target :: word
    integer(c_int), target :: handle
    integer(c_int) :: got
    if (is_open(self%own, 'runtime%open', status)) return
    call c_options_init(options, c_sizeof(options))
    if (present(device)) then
      word = zero_ended(device)
      options%device = c_loc(word)
    end if
    if (present(threads)) options%threads = threads
    if (present(communicator)) then
      handle = communicator
      options%communicator = c_loc(handle)
    end if
    if (present(memory_limit)) options%memory_limit = memory_limit
    if (present(allocate)) options%allocate = c_funloc(allocate)
    if (present(release)) options%release = c_funloc(release)
    if (present(memory_capacity)) options%memory_capacity = memory_capacity
    if (present(memory_context)) options%memory_context = memory_context
    if (present(cuda_stream)) options%cuda_stream = cuda_stream
    if (present(timeout)) options%timeout = timeout
    nullify (lines)
    if (present(log)) then
      lines => new_log(log)
      options%log = c_funloc(meshgrad_write_line)
      options%log_context = c_loc(lines)
    end if
    got = c_runtime_create(options, self%own%handle)
    if (got == meshgrad_ok) then
      self%own%shared => new_shared(shared_runtime(self%own%handle, users=1, log=lines))
    else if (associated(lines)) then
      deallocate (lines)
    end if
    call finish(got, status)
  end subroutine

  function new_log(write) result(log)
    procedure(log_line) :: write
    type(program_log), pointer :: log
    allocate (log)
    log%write => write
  end function

  function new_shared(from) result(shared)
    type(shared_runtime), intent(in) :: from
    type(shared_runtime), pointer :: shared
    allocate (shared)
    shared = from
  end function

  !> Hands a message on.
  subroutine meshgrad_write_line(context, is_warning, text) bind(c)
    type(c_ptr), value :: context, text
    integer(c_int32_t), value :: is_warning
    type(program_log), pointer :: log
    call c_f_pointer(context, log)
    call log%write(logical(is_warning /= 0, c_bool), text_of(text))
  end subroutine

  subroutine runtime_close(self)
    class(meshgrad_runtime), intent(inout) :: self
    call end_owned(self%own)
  end subroutine

  subroutine predictor_open(self, runtime, checkpoint, status)
    class(meshgrad_predictor), intent(inout) :: self
    type(meshgrad_runtime), intent(in) :: runtime
    character(*), intent(in) :: checkpoint
    integer, intent(out), optional :: status
    integer(c_int) :: got
    if (is_open(self%own, 'predictor%open', status)) return
    got = c_predictor_create(runtime%own%handle, zero_ended(checkpoint), self%own%handle)
    call hold(self%own, c_predictor_destroy, runtime%own%shared)
    call finish(got, status)
  end subroutine

  !> Of the trainer's weights and normalisers as they are now, which are copied: as of what it would save, without
  !! a file. With a communicator all its processes call it.
  subroutine predictor_open_trainer(self, trainer, status)
    class(meshgrad_predictor), intent(inout) :: self
    type(meshgrad_trainer), intent(in) :: trainer
    integer, intent(out), optional :: status
    type(c_ptr) :: none
    integer(c_int) :: got
    if (is_open(self%own, 'predictor%open', status)) then
      got = c_predictor_of_trainer(trainer%own%handle, none)  ! which the other processes call, too
      call c_predictor_destroy(none)
      return
    end if
    got = c_predictor_of_trainer(trainer%own%handle, self%own%handle)
    call hold(self%own, c_predictor_destroy, trainer%own%shared)
    call finish(got, status)
  end subroutine

  subroutine predictor_close(self)
    class(meshgrad_predictor), intent(inout) :: self
    call end_owned(self%own)
  end subroutine

  !> Coordinates of a position: 2 or 3.
  function predictor_dim(self, status) result(dim)
    class(meshgrad_predictor), intent(in) :: self
    integer, intent(out), optional :: status
    integer(int32) :: dim
    dim = 0
    call finish(c_predictor_dim(self%own%handle, dim), status)
  end function

  !> Seconds that a step covers; 0 when unknown.
  function predictor_dt(self, status) result(dt)
    class(meshgrad_predictor), intent(in) :: self
    integer, intent(out), optional :: status
    real(real64) :: dt
    dt = 0
    call finish(c_predictor_dt(self%own%handle, dt), status)
  end function

  !> positions(dim, nodes); cells(nodes of a cell, cells) or edges(2, edges); node_type(nodes), 0 everywhere
  !! when absent. Of a mesh that the solver has partitioned, these are the process' own nodes, then its ghost
  !! nodes, and every cell or edge of an own node; ghost_owner(ghosts) is the process that owns a ghost, from 0 as
  !! MPI counts, and ghost_number(ghosts) the node's number there, from 1.
  subroutine predictor_set_mesh(self, positions, cells, edges, node_type, status, ghost_owner, ghost_number)
    class(meshgrad_predictor), intent(in) :: self
    type(meshgrad_array), intent(in) :: positions
    type(meshgrad_array), intent(in), optional :: cells, edges, node_type, ghost_owner, ghost_number
    integer, intent(out), optional :: status
    call finish(c_predictor_set_mesh(self%own%handle, mesh_of(positions, cells, edges, node_type, ghost_owner, &
      ghost_number)), status)
  end subroutine

  !> Several meshes that are predicted together: set_meshes([mesh_of(..), mesh_of(..)]). Calls about one of
  !! them name it by mesh=1, 2, ...
  subroutine predictor_set_meshes(self, meshes, status)
    class(meshgrad_predictor), intent(in) :: self
    type(meshgrad_mesh), intent(in) :: meshes(:)
    integer, intent(out), optional :: status
    call finish(c_predictor_set_meshes(self%own%handle, meshes, int(size(meshes), c_int32_t)), status)
  end subroutine

  !> A mesh number as C counts; the first one when absent.
  pure integer(c_int32_t) function from_zero(mesh)
    integer, intent(in), optional :: mesh
    from_zero = 0
    if (present(mesh)) from_zero = mesh - 1
  end function

  function mesh_of(positions, cells, edges, node_type, ghost_owner, ghost_number) result(mesh)
    type(meshgrad_array), intent(in) :: positions
    type(meshgrad_array), intent(in), optional :: cells, edges, node_type, ghost_owner, ghost_number
    type(meshgrad_mesh) :: mesh
    call c_mesh_init(mesh, c_sizeof(mesh))
    mesh%first_node = 1
    mesh%positions = positions
    if (present(cells)) mesh%cells = cells
    if (present(edges)) mesh%edges = edges
    if (present(node_type)) mesh%node_type = node_type
    if (present(ghost_owner)) mesh%ghost_owner = ghost_owner
    if (present(ghost_number)) mesh%ghost_number = ghost_number
  end function

  subroutine predictor_positions_changed(self, status)
    class(meshgrad_predictor), intent(in) :: self
    integer, intent(out), optional :: status
    call finish(c_predictor_positions_changed(self%own%handle), status)
  end subroutine

  subroutine predictor_set_field(self, name, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_set_field(self%own%handle, from_zero(mesh), zero_ended(name), values), status)
  end subroutine

  subroutine predictor_set_previous_field(self, name, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_set_previous_field(self%own%handle, from_zero(mesh), zero_ended(name), values), status)
  end subroutine

  subroutine predictor_set_earlier_field(self, name, steps_before, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    integer, intent(in) :: steps_before
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_set_earlier_field(self%own%handle, from_zero(mesh), zero_ended(name), &
                                              int(steps_before, c_int64_t), values), status)
  end subroutine

  subroutine predictor_set_next_field(self, name, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_set_next_field(self%own%handle, from_zero(mesh), zero_ended(name), values), status)
  end subroutine

  subroutine predictor_set_boundary(self, name, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_set_boundary(self%own%handle, from_zero(mesh), zero_ended(name), values), status)
  end subroutine

  subroutine predictor_predict(self, steps, status)
    class(meshgrad_predictor), intent(in) :: self
    integer, intent(in) :: steps
    integer, intent(out), optional :: status
    call finish(c_predictor_predict(self%own%handle, int(steps, int64)), status)
  end subroutine

  !> How far the inputs, as they are set now or as predict has left them, are outside of the ranges of the
  !! training, in widths of the range: of the farthest value, whose field it is. 0 and '' where all are within.
  function predictor_range_excess(self, field, status, mesh) result(excess)
    class(meshgrad_predictor), intent(in) :: self
    character(:), allocatable, intent(out), optional :: field
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    real(real64) :: excess
    type(c_ptr) :: name
    excess = 0
    name = c_null_ptr
    call finish(c_predictor_range_excess(self%own%handle, from_zero(mesh), excess, name), status)
    if (.not. present(field)) return
    field = ''
    if (c_associated(name)) field = text_of(name)
  end function

  !> Overwrites the array that `values` describes.
  subroutine predictor_get_field(self, name, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_get_field(self%own%handle, from_zero(mesh), zero_ended(name), values), status)
  end subroutine

  !> Whether predict records its steps, for gradients of a scalar J of the predicted fields.
  subroutine predictor_record_steps(self, on, status)
    class(meshgrad_predictor), intent(in) :: self
    logical, intent(in) :: on
    integer, intent(out), optional :: status
    call finish(c_predictor_record_steps(self%own%handle, merge(1_c_int32_t, 0_c_int32_t, on)), status)
  end subroutine

  !> `values`: dJ/d(target as it stands now).
  subroutine predictor_set_gradient(self, name, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_set_gradient(self%own%handle, from_zero(mesh), zero_ended(name), values), status)
  end subroutine

  subroutine predictor_backward(self, status)
    class(meshgrad_predictor), intent(in) :: self
    integer, intent(out), optional :: status
    call finish(c_predictor_backward(self%own%handle), status)
  end subroutine

  !> Overwrites the array that `values` describes: dJ/d(field).
  subroutine predictor_get_gradient(self, name, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_get_gradient(self%own%handle, from_zero(mesh), zero_ended(name), values), status)
  end subroutine

  subroutine predictor_get_previous_gradient(self, name, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_get_previous_gradient(self%own%handle, from_zero(mesh), zero_ended(name), values), status)
  end subroutine

  !> Of a target so many steps before (set_earlier_field).
  subroutine predictor_get_earlier_gradient(self, name, steps_before, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    integer, intent(in) :: steps_before
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_get_earlier_gradient(self%own%handle, from_zero(mesh), zero_ended(name), &
                                             int(steps_before, c_int64_t), values), status)
  end subroutine

  !> Of the values that set_next_field gave for a recorded step, counted from 1.
  subroutine predictor_get_next_gradient(self, name, step, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    integer, intent(in) :: step
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_get_next_gradient(self%own%handle, from_zero(mesh), zero_ended(name), &
                                             int(step - 1, c_int64_t), values), status)
  end subroutine

  !> Of the values that set_boundary gave before recorded step `step`, counted from 1, or, where `step` is the
  !! number of recorded steps + 1, after the last one.
  subroutine predictor_get_boundary_gradient(self, name, step, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    character(*), intent(in) :: name
    integer, intent(in) :: step
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_get_boundary_gradient(self%own%handle, from_zero(mesh), zero_ended(name), &
                                             int(step - 1, c_int64_t), values), status)
  end subroutine

  !> dJ/d(positions), (dim, nodes).
  subroutine predictor_get_position_gradient(self, values, status, mesh)
    class(meshgrad_predictor), intent(in) :: self
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    integer, intent(in), optional :: mesh
    call finish(c_predictor_get_position_gradient(self%own%handle, from_zero(mesh), values), status)
  end subroutine

  !> `config` is TOML text (docs/config.md). Field i is names(i), of components(i) on each node, or where
  !! on_graph(i) is true one row for the whole mesh.
  subroutine trainer_open(self, runtime, config, dim, names, components, on_graph, dt, most_recent, capacity, &
      held_out_every, held_out, status)
    class(meshgrad_trainer), intent(inout) :: self
    type(meshgrad_runtime), intent(in) :: runtime
    character(*), intent(in) :: config, names(:)
    integer, intent(in) :: dim, components(:)
    logical, intent(in), optional :: on_graph(:), most_recent
    real(real64), intent(in), optional :: dt
    integer, intent(in), optional :: capacity, held_out_every, held_out
    integer, intent(out), optional :: status
    type(c_trainer_options) :: options
    type(c_field), target :: fields(size(names))
    character(kind=c_char, len=len(names) + 1), target :: ended(size(names))
    character(kind=c_char, len=len(config) + 1), target :: text
    integer :: i, given
    integer(c_int) :: got
    character(10) :: wrong
    character(160) :: error
    if (is_open(self%own, 'trainer%open', status)) then
      call refuse_trainer(runtime)
      return
    end if
    wrong = merge('components', '          ', size(components) /= size(names))
    given = size(components)
    if (present(on_graph) .and. wrong == '') then
      given = size(on_graph)
      if (given /= size(names)) wrong = 'on_graph'
    end if
    if (wrong /= '') then
      call refuse_trainer(runtime)
      write (error, '(3a, i0, a, i0, a)') '[trainer%open: ', trim(wrong), '] needed ', size(names), ' values, got ', given, &
        '; fix: give one for each of names'
      call refuse(trim(error), status)
      return
    end if
    call c_trainer_options_init(options, c_sizeof(options))
    text = zero_ended(config)
    do i = 1, size(names)
      ended(i) = zero_ended(names(i))
      fields(i) = c_field(c_loc(ended(i)), components(i), 0, c_null_ptr)
      if (present(on_graph)) fields(i)%on_graph = merge(1, 0, on_graph(i))
    end do
    options%config = c_loc(text)
    options%dim = dim
    options%fields = c_loc(fields)
    options%field_count = size(names)
    if (present(dt)) options%dt = dt
    if (present(most_recent)) options%most_recent = merge(1, 0, most_recent)
    if (present(capacity)) options%capacity = capacity
    if (present(held_out_every)) options%held_out_every = held_out_every
    if (present(held_out)) options%held_out = held_out
    got = c_trainer_create(runtime%own%handle, options, self%own%handle)
    call hold(self%own, c_trainer_destroy, runtime%own%shared)
    call finish(got, status)
  end subroutine

  !> Where this process makes no trainer, those of the other processes are refused, too.
  subroutine refuse_trainer(runtime)
    type(meshgrad_runtime), intent(in) :: runtime
    type(c_trainer_options) :: options
    type(c_ptr) :: none
    integer(c_int) :: got
    call c_trainer_options_init(options, c_sizeof(options))
    got = c_trainer_create(runtime%own%handle, options, none)  ! without a configuration
  end subroutine

  !> Goes on where save was called.
  subroutine trainer_load(self, runtime, path, status)
    class(meshgrad_trainer), intent(inout) :: self
    type(meshgrad_runtime), intent(in) :: runtime
    character(*), intent(in) :: path
    integer, intent(out), optional :: status
    integer(c_int) :: got
    if (is_open(self%own, 'trainer%load', status)) then
      call refuse_trainer(runtime)
      return
    end if
    got = c_trainer_load(runtime%own%handle, zero_ended(path), self%own%handle)
    call hold(self%own, c_trainer_destroy, runtime%own%shared)
    call finish(got, status)
  end subroutine

  subroutine trainer_close(self)
    class(meshgrad_trainer), intent(inout) :: self
    call end_owned(self%own)
  end subroutine

  !> As predictor%set_mesh; the mesh is copied.
  subroutine trainer_set_mesh(self, positions, cells, edges, node_type, status, ghost_owner, ghost_number)
    class(meshgrad_trainer), intent(in) :: self
    type(meshgrad_array), intent(in) :: positions
    type(meshgrad_array), intent(in), optional :: cells, edges, node_type, ghost_owner, ghost_number
    integer, intent(out), optional :: status
    call finish(c_trainer_set_mesh(self%own%handle, mesh_of(positions, cells, edges, node_type, ghost_owner, &
      ghost_number)), status)
  end subroutine

  !> A field of the frame that is being made; copied.
  subroutine trainer_set_field(self, name, values, status)
    class(meshgrad_trainer), intent(in) :: self
    character(*), intent(in) :: name
    type(meshgrad_array), intent(in) :: values
    integer, intent(out), optional :: status
    call finish(c_trainer_set_field(self%own%handle, zero_ended(name), values), status)
  end subroutine

  !> Ends the frame.
  subroutine trainer_append(self, status)
    class(meshgrad_trainer), intent(in) :: self
    integer, intent(out), optional :: status
    call finish(c_trainer_append(self%own%handle), status)
  end subroutine

  !> The frames from now on do not continue those before.
  subroutine trainer_restart_trajectory(self, status)
    class(meshgrad_trainer), intent(in) :: self
    integer, intent(out), optional :: status
    call finish(c_trainer_restart(self%own%handle), status)
  end subroutine

  !> Up to `steps` steps; fewer where the next would not end within `seconds`.
  subroutine trainer_train(self, steps, seconds, taken, loss, status)
    class(meshgrad_trainer), intent(in) :: self
    integer, intent(in) :: steps
    real(real64), intent(in), optional :: seconds
    integer, intent(out), optional :: taken
    real(real64), intent(out), optional :: loss
    integer, intent(out), optional :: status
    integer(c_int64_t) :: c_taken
    real(c_double) :: c_loss, c_seconds
    c_taken = 0
    c_loss = 0
    c_seconds = -1
    if (present(seconds)) c_seconds = max(seconds, 0.0_real64)
    call finish(c_trainer_train(self%own%handle, int(steps, int64), c_seconds, c_taken, c_loss), status)
    if (present(taken)) taken = int(c_taken)
    if (present(loss)) loss = c_loss
  end subroutine

  !> Mean squared error of normalised targets over the held-out samples; NaN without any.
  function trainer_held_out_loss(self, status) result(loss)
    class(meshgrad_trainer), intent(in) :: self
    integer, intent(out), optional :: status
    real(real64) :: loss
    loss = 0
    call finish(c_trainer_held_out_loss(self%own%handle, loss), status)
  end function

  subroutine graph_predictor_open(self, runtime, checkpoint, status)
    class(meshgrad_graph_predictor), intent(inout) :: self
    type(meshgrad_runtime), intent(in) :: runtime
    character(*), intent(in) :: checkpoint
    integer, intent(out), optional :: status
    integer(c_int) :: got
    if (is_open(self%own, 'graph_predictor%open', status)) return
    got = c_graph_predictor_create(runtime%own%handle, zero_ended(checkpoint), self%own%handle)
    call hold(self%own, c_graph_predictor_destroy, runtime%own%shared)
    call finish(got, status)
  end subroutine

  subroutine graph_predictor_close(self)
    class(meshgrad_graph_predictor), intent(inout) :: self
    call end_owned(self%own)
  end subroutine

  !> Rows of inputs, identifiers, graph_inputs, edge_inputs and positions (0: none), and of a prediction, whose columns
  !! are graphs or nodes.
  subroutine graph_predictor_sizes(self, inputs, identifiers, graph_inputs, edge_inputs, dim, rows, per_graph, status)
    class(meshgrad_graph_predictor), intent(in) :: self
    integer(int32), intent(out), optional :: inputs, identifiers, graph_inputs, edge_inputs, dim, rows
    logical, intent(out), optional :: per_graph
    integer, intent(out), optional :: status
    integer(c_int32_t) :: got(7)
    got = 0
    call finish(c_graph_predictor_sizes(self%own%handle, got(1), got(2), got(3), got(4), got(5), got(6), got(7)), status)
    if (present(inputs)) inputs = got(1)
    if (present(identifiers)) identifiers = got(2)
    if (present(graph_inputs)) graph_inputs = got(3)
    if (present(edge_inputs)) edge_inputs = got(4)
    if (present(dim)) dim = got(5)
    if (present(rows)) rows = got(6)
    if (present(per_graph)) per_graph = got(7) == 1
  end subroutine

  !> inputs(columns, nodes), edges(2, edges) of senders and receivers; `values` gets the probability of each class, or
  !! the targets, of each graph or node. `starts`: the first node of each graph, and one past the last. `directed` is
  !! refused unless it is as in the data that were trained on.
  subroutine graph_predictor_predict(self, inputs, edges, directed, values, graph_inputs, positions, node_type, starts, &
      identifiers, edge_inputs, status)
    class(meshgrad_graph_predictor), intent(in) :: self
    type(meshgrad_array), intent(in) :: inputs, edges, values
    logical, intent(in) :: directed
    type(meshgrad_array), intent(in), optional :: graph_inputs, positions, node_type, starts, identifiers, edge_inputs
    integer, intent(out), optional :: status
    type(c_graph) :: graph
    call c_graph_init(graph, c_sizeof(graph))
    graph%inputs = inputs
    graph%edges = edges
    graph%directed = merge(1_c_int32_t, 0_c_int32_t, directed)
    graph%first_node = 1
    if (present(graph_inputs)) graph%graph_inputs = graph_inputs
    if (present(positions)) graph%positions = positions
    if (present(node_type)) graph%node_type = node_type
    if (present(starts)) graph%starts = starts
    if (present(identifiers)) graph%identifiers = identifiers
    if (present(edge_inputs)) graph%edge_inputs = edge_inputs
    call finish(c_graph_predictor_predict(self%own%handle, graph, values), status)
  end subroutine

  !> Steps taken, samples kept for training, samples so far.
  subroutine trainer_counts(self, steps, samples, seen, status)
    class(meshgrad_trainer), intent(in) :: self
    integer(int64), intent(out) :: steps, samples, seen
    integer, intent(out), optional :: status
    steps = 0
    samples = 0
    seen = 0
    call finish(c_trainer_counts(self%own%handle, steps, samples, seen), status)
  end subroutine

  !> Everything in one file, which predictor%open reads, too.
  subroutine trainer_save(self, path, status)
    class(meshgrad_trainer), intent(in) :: self
    character(*), intent(in) :: path
    integer, intent(out), optional :: status
    call finish(c_trainer_save(self%own%handle, zero_ended(path)), status)
  end subroutine

end module
