! SPDX-License-Identifier: Apache-2.0
!> Variables of the module: padded texts, wrong calls, and what ends with a procedure. With any argument it assigns an
!! open runtime, and has to fail.
module program_memory
  use, intrinsic :: iso_c_binding
  implicit none
  integer(c_int64_t) :: held = 0, most = 0
  integer, target :: context_number = 7
  character(200) :: warning = ''
  interface
    function malloc(bytes) bind(c)
      import
      integer(c_size_t), value :: bytes
      type(c_ptr) :: malloc
    end function
    subroutine free(memory) bind(c)
      import
      type(c_ptr), value :: memory
    end subroutine
  end interface

contains

  subroutine check(context)
    type(c_ptr), intent(in) :: context
    integer, pointer :: number
    call c_f_pointer(context, number)
    if (number /= 7) error stop 'another context than the program gave'
  end subroutine

  function take(context, bytes) bind(c)
    type(c_ptr), value :: context
    integer(c_int64_t), value :: bytes
    type(c_ptr) :: take
    call check(context)
    held = held + bytes
    most = max(most, held)
    take = malloc(int(bytes, c_size_t))
  end function

  subroutine release_it(context, memory, bytes) bind(c)
    type(c_ptr), value :: context, memory
    integer(c_int64_t), value :: bytes
    call check(context)
    held = held - bytes
    call free(memory)
  end subroutine

  subroutine note(is_warning, text)
    logical(c_bool), intent(in) :: is_warning
    character(*), intent(in) :: text
    if (.not. is_warning) return
    warning = text
  end subroutine
end module

program handles
  use, intrinsic :: iso_fortran_env, only: int64, real64
  use, intrinsic :: iso_c_binding, only: c_loc
  use meshgrad
  use program_memory
  implicit none
  integer, parameter :: nodes = 4
  character, parameter :: newline = new_line('a')
  character(*), parameter :: config = 'data.inputs = ["u"]'//newline//'data.targets = ["u"]'//newline// &
    'model.width = 16'//newline//'model.blocks = 1'//newline//'train.noise = 1e-3'//newline//'   '
  real(real64), target :: xy(2, nodes) = reshape(real([0, 0, 1, 0, 1, 1, 0, 1], real64), [2, nodes]), u(nodes)
  integer, target :: triangles(3, 2) = reshape([1, 2, 3, 1, 3, 4], [3, 2])
  character(64) :: device = 'cpu', file = 'handles.safetensors'
  character(8) :: name = 'u'
  type :: solver  ! a copy of it copies the runtime
    integer :: step = 0
    type(meshgrad_runtime) :: runtimes(2)
  end type
  type(solver) :: one, other
  integer :: status

  other = one  ! none is open
  if (command_argument_count() > 0) then
    call one%runtimes(2)%open(threads=1)
    other = one
    stop  ! and the test fails
  end if
  call train(one%runtimes(1))
  call use_memory_and_log_of_the_program()
  call predict_as_procedures_end()
  call close_runtime_first()
  call one%runtimes(1)%close()
  print '(a)', 'variables close what they hold'

contains

  !> Whether the last call failed with this text.
  subroutine expect(text)
    character(*), intent(in) :: text
    character(:), allocatable :: got
    got = meshgrad_error_text()
    if (status == meshgrad_ok .or. index(got, text) == 0) then
      print '(4a)', 'expected: ', text, ', got: ', got
      error stop 'a wrong call was accepted, or refused for another reason'
    end if
  end subroutine

  subroutine train(runtime)
    type(meshgrad_runtime), intent(inout) :: runtime
    type(meshgrad_trainer) :: trainer
    integer :: t
    call runtime%open(device=repeat('x', 64), status=status)
    call expect(repeat('x', 64)//'"')
    call runtime%open(device=device, threads=1, memory_limit=1000_int64)
    call trainer%open(runtime, config, dim=2, names=[name], components=[1], status=status)
    if (status == meshgrad_ok) call make_frames(trainer)
    if (status /= meshgrad_out_of_memory) error stop 'more memory was taken than memory_limit'
    call trainer%close()
    call runtime%open(threads=1, status=status)
    call expect('[runtime%open] needed an object that is not open')
    call runtime%close()
    call runtime%open(device=device, threads=1, memory_limit=2_int64**30)
    call trainer%open(runtime, config, dim=2, names=['u', 'v'], components=[1], status=status)
    call expect('components] needed 2 values, got 1;')
    call trainer%open(runtime, config, dim=2, names=[name], components=[1], on_graph=[.false., .true.], status=status)
    call expect('on_graph] needed 1 values, got 2;')
    call trainer%open(runtime, config//'wrong = 1', dim=2, names=[name], components=[1], status=status)
    call expect('wrong')
    call trainer%open(runtime, config, dim=2, names=[name], components=[1])
    call trainer%open(runtime, config, dim=2, names=[name], components=[1], status=status)
    call expect('[trainer%open] needed an object that is not open')
    call trainer%load(runtime, file, status)
    call expect('[trainer%load] needed an object that is not open')
    do t = 1, 2
      call make_frames(trainer)
      if (status /= meshgrad_ok) error stop 'a frame was refused'
      if (t == 2) exit
      call trainer%save(file)
      call trainer%close()
      call trainer%load(runtime, file)
    end do
    call predict_with(trainer, runtime)
    open (newunit=t, file='handles.safetensors', status='old', action='read')  ! and not with blanks in its name
    close (t)
  end subroutine

  subroutine use_memory_and_log_of_the_program()
    type(meshgrad_runtime) :: runtime
    type(meshgrad_trainer) :: trainer
    call runtime%open(threads=1, allocate=take, status=status)
    call expect('no free')
    call runtime%open(threads=1, cuda_stream=c_loc(context_number), status=status)
    call expect('stream')
    call runtime%open(threads=1, log=note, allocate=take, release=release_it, memory_capacity=2_int64**28, &
                      memory_context=c_loc(context_number))
    call trainer%open(runtime, config, dim=2, names=[name], components=[1])
    call make_frames(trainer)
    if (status /= meshgrad_ok .or. most == 0) error stop 'no memory of the program was used'
    call trainer%close()
    call trainer%open(runtime, config, dim=2, names=[name], components=[1])
    call make_frames(trainer, 1e-9_real64)
    if (index(warning, 'train.noise is 0.001, more than') == 0) error stop 'the log got other warnings'
    call trainer%close()
    call runtime%close()
    if (held /= 0) error stop 'memory of the program was kept'
  end subroutine

  subroutine make_frames(trainer, factor)
    type(meshgrad_trainer), intent(in) :: trainer
    real(real64), intent(in), optional :: factor
    integer :: t
    call trainer%set_mesh(numbers(xy), cells=numbers(triangles), status=status)
    do t = 1, 4
      u = [1, 2, 3, 4]*0.9_real64**t
      if (present(factor)) u = u*factor
      if (status == meshgrad_ok) call trainer%set_field(name, numbers(u), status)
      if (status == meshgrad_ok) call trainer%append(status)
    end do
    if (status == meshgrad_ok) call trainer%train(1, status=status)
  end subroutine

  !> A predictor of the trainer, which then ends before it.
  subroutine predict_with(trainer, runtime)
    type(meshgrad_trainer), intent(inout) :: trainer
    type(meshgrad_runtime), intent(in) :: runtime
    type(meshgrad_predictor) :: now
    real(real64), target :: saved(nodes), here(nodes)
    call trainer%save(file)
    call now%open(trainer)
    call now%open(trainer, status)
    call expect('[predictor%open] needed an object that is not open')
    call trainer%close()
    call use_predictor(now, here)
    call now%close()
    call now%open(trainer, status)
    call expect('[trainer] needed a pointer')
    call now%open(runtime, file)
    call use_predictor(now, saved)
    call predict_from_parts_with_gaps(now)
    if (maxval(abs(here - saved)) > 0) error stop 'a predictor of a trainer is another than that of its file'
  end subroutine

  !> From parts with gaps, as from a copy without.
  subroutine predict_from_parts_with_gaps(predictor)
    type(meshgrad_predictor), intent(in) :: predictor
    type :: node
      real(real64) :: x, y
      integer :: kind
    end type
    type(node), target :: solver_nodes(nodes)
    real(real64), target :: state(5, nodes), x(nodes), y(2*nodes), here(nodes), there(nodes), backwards(nodes)
    state = -1
    state(2:3, :) = xy
    state(5, :) = u
    x = xy(1, :)
    y(::2) = xy(2, :)
    backwards = u(nodes:1:-1)
    call use_predictor(predictor, here)
    call predictor%set_mesh(numbers(state(2:3, :)), cells=numbers(triangles))
    call predictor%set_field(name, numbers(state(5, :)))
    call predictor%predict(2)
    call predictor%get_field(name, numbers(state(5, :)))
    if (maxval(abs(state(5, :) - here)) > 0 .or. maxval(abs(state([1, 4], :) + 1)) > 0) &
      error stop 'a part with gaps is read or written elsewhere'
    call predictor%set_mesh(numbers(x, y(::2)), cells=numbers(triangles), status=status)
    call expect('without gaps')  ! distances that differ
    state(1, :) = x
    state(4, :) = y(::2)
    call predictor%set_mesh(numbers(state(1, :), state(4, :)), cells=numbers(triangles))
    call predictor%set_field(name, numbers(backwards(nodes:1:-1)))
    call predictor%predict(2)
    call predictor%get_field(name, numbers(there))
    if (maxval(abs(there - here)) > 0) error stop 'components apart are read elsewhere'
    solver_nodes%y = u  ! of which gfortran gives other places: taken where they are, or refused
    call predictor%set_field(name, numbers(solver_nodes%y), status)
    if (status == meshgrad_ok) then
      call predictor%predict(2)
      call predictor%get_field(name, numbers(there))
      if (maxval(abs(there - here)) > 0) error stop 'a component of a type is read elsewhere'
    else
      call expect('without gaps')
    end if
    call predictor%set_mesh(numbers(xy), cells=numbers(triangles(::2, :)), status=status)
    call expect('a contiguous part')
  end subroutine

  subroutine use_predictor(predictor, values)
    type(meshgrad_predictor), intent(in) :: predictor
    real(real64), target, intent(out) :: values(nodes)
    call predictor%set_mesh(numbers(xy), cells=numbers(triangles))
    call predictor%set_field(name, numbers(u))
    call predictor%predict(2)
    call predictor%get_field(name, numbers(values))
  end subroutine

  !> The runtime, which is declared first, and two predictors end with the procedure.
  subroutine predict_as_procedures_end()
    type(meshgrad_runtime) :: runtime
    type(meshgrad_predictor) :: predictors(2)
    integer :: i
    call runtime%open(threads=1)
    do i = 1, 2
      call predict(predictors(i), runtime)
    end do
    call predictors(2)%open(runtime, file, status)
    call expect('[predictor%open] needed an object that is not open')
  end subroutine

  subroutine close_runtime_first()
    type(meshgrad_runtime) :: runtime
    type(meshgrad_predictor), allocatable :: predictor
    call runtime%open(threads=1)
    allocate (predictor)
    call predict(predictor, runtime)
    call runtime%close()
    call predictor%predict(1)
    call runtime%open(threads=1)
  end subroutine

  subroutine predict(predictor, runtime)
    type(meshgrad_predictor), intent(inout) :: predictor
    type(meshgrad_runtime), intent(in) :: runtime
    call predictor%open(runtime, file)
    call predictor%set_mesh(numbers(xy), cells=numbers(triangles))
    call predictor%set_field(name, numbers(u))
    call predictor%predict(1)
  end subroutine
end program
