! SPDX-License-Identifier: Apache-2.0
!> A grid that the processes of mpirun have partitioned into strips: each trains and predicts on its own strip, with
!! a column of ghost nodes at each side that it shares. The results are those of one process with the whole grid. With any
!! argument the last process has no nodes.
program parts
  use, intrinsic :: iso_fortran_env, only: real64
  use meshgrad
  use mpi
  implicit none
  integer, parameter :: height = 5, strip = 4*height  ! nodes of a column, and of a process; numbered by columns
  character, parameter :: newline = new_line('a')
  character(*), parameter :: config = '[data]'//newline//'inputs = ["c"]'//newline//'targets = ["c"]'//newline// &
    'node_types = 2'//newline//'predicted_types = [0]'//newline//'[model]'//newline//'width = 8'//newline// &
    'blocks = 2'//newline//'[train]'//newline//'noise = 0.0'
  type(meshgrad_runtime) :: alone, together
  real(real64) :: losses(2), whole_losses(2), of_losses, of_c
  real(real64), allocatable :: c(:), whole_c(:)
  integer, allocatable :: nodes(:)
  character(32) :: file
  integer :: rank, ranks, strips, ierror, status, i

  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  write (file, '(a, i0, a)') 'parts', rank, '.safetensors'
  strips = ranks - min(command_argument_count(), 1)
  allocate (nodes(0))
  if (rank < strips) nodes = [(i, i=1 + strip*rank, strip*(rank + 1))]
  if (rank < strips - 1) nodes = [nodes, (i, i=strip*(rank + 1) + 1, strip*(rank + 1) + height)]
  if (rank > 0 .and. rank < strips) nodes = [nodes, (i, i=strip*rank - height + 1, strip*rank)]
  call alone%open(communicator=MPI_COMM_NULL, status=status)
  if (status == 0) error stop 'a process without a communicator has opened a runtime'
  call alone%open(threads=1)
  call together%open(threads=1, communicator=MPI_COMM_WORLD)
  call refuse_trainer_on_all()
  call train_and_predict(alone, [(i, i=1, strip*strips)], strip*strips, .false., whole_losses, whole_c)
  call train_and_predict(together, nodes, min(strip, size(nodes)), .true., losses, c)
  of_losses = maxval(abs(losses/whole_losses - 1))
  of_c = max(0.0_real64, maxval(abs(c - whole_c(nodes))))  ! also at ghosts, which predict has filled
  print '(a, i0, 2(a, es8.1))', 'process ', rank, ': losses differ by ', of_losses, ', predictions by ', of_c
  if (of_losses > 1e-5_real64 .or. of_c > 1e-5_real64) error stop 'other results than with the whole grid'
  call together%close()
  call alone%close()
  call MPI_Finalize(ierror)

contains

  !> Only the first process' call is wrong.
  subroutine refuse_trainer_on_all()
    type(meshgrad_trainer) :: trainer
    integer :: status
    call trainer%open(together, config, dim=2, names=['c'], components=[(1, i=1, merge(2, 1, rank == 0))], status=status)
    if (status == meshgrad_ok) error stop 'a trainer that one process cannot make was accepted'
    print '(a, i0, 2a)', 'process ', rank, ': ', meshgrad_error_text()
    if (rank == 0) call trainer%open(alone, config, dim=2, names=['c'], components=[1])
    call trainer%open(together, config, dim=2, names=['c'], components=[1], status=status)
    if (status == meshgrad_ok) error stop 'a trainer was accepted that is open on one process already'
  end subroutine

  !> On these nodes of the grid, of which the first `owned` are the process' own.
  subroutine train_and_predict(runtime, nodes, owned, in_parts, losses, c)
    type(meshgrad_runtime), intent(in) :: runtime
    integer, intent(in) :: nodes(:), owned
    logical, intent(in) :: in_parts
    real(real64), intent(out) :: losses(2)
    real(real64), allocatable, target, intent(out) :: c(:)
    real(real64), target :: xy(2, size(nodes))
    integer, target :: node_type(size(nodes)), ghost_owner(size(nodes) - owned), ghost_number(size(nodes) - owned)
    integer, allocatable, target :: quads(:, :)
    type(meshgrad_array), allocatable :: owners, their_numbers  ! absent where all nodes are here
    type(meshgrad_trainer) :: trainer
    type(meshgrad_predictor) :: predictor
    integer :: t
    xy(1, :) = 0.1_real64*((nodes - 1)/height)
    xy(2, :) = 0.1_real64*mod(nodes - 1, height)
    node_type = merge(1, 0, mod(nodes, height) == 0)
    call find_quads(nodes, owned, quads)
    ghost_owner = (nodes(owned + 1:) - 1)/strip
    ghost_number = nodes(owned + 1:) - strip*ghost_owner
    if (in_parts) then
      owners = numbers(ghost_owner)
      their_numbers = numbers(ghost_number)
    end if
    call trainer%open(runtime, config, dim=2, names=['c'], components=[1], held_out_every=3)
    call trainer%set_mesh(numbers(xy), cells=numbers(quads), node_type=numbers(node_type), ghost_owner=owners, &
      ghost_number=their_numbers)
    do t = 0, 6
      c = sin(0.3_real64*nodes + 0.1_real64*t)
      call trainer%set_field('c', numbers(c))
      call trainer%append()
    end do
    call trainer%train(6, loss=losses(1))
    losses(2) = trainer%held_out_loss()
    if (in_parts) then
      call predictor%open(trainer)
    else
      call trainer%save(trim(file))
      call predictor%open(runtime, trim(file))
    end if
    call predictor%set_mesh(numbers(xy), cells=numbers(quads), node_type=numbers(node_type), ghost_owner=owners, &
      ghost_number=their_numbers)
    c = sin(0.3_real64*nodes)
    call predictor%set_field('c', numbers(c))
    call predictor%predict(3)
    call predictor%get_field('c', numbers(c))
    call predictor%close()
    call trainer%close()
  end subroutine

  !> The quads of the grid that have an own node, by places in `nodes`.
  subroutine find_quads(nodes, owned, quads)
    integer, intent(in) :: nodes(:), owned
    integer, allocatable, intent(out) :: quads(:, :)
    integer :: place(0:strip*strips), corner, found(4)
    place = 0
    place(nodes) = [(corner, corner=1, size(nodes))]
    allocate (quads(4, 0))
    do corner = 1, strip*strips - height
      if (mod(corner, height) == 0) cycle
      found = place([corner, corner + height, corner + height + 1, corner + 1])
      if (any(found > 0 .and. found <= owned)) quads = reshape([quads, found], [4, size(quads, 2) + 1])
    end do
  end subroutine
end program
