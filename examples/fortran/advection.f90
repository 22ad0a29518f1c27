! SPDX-License-Identifier: Apache-2.0
!> Advection of a scalar on a grid, first-order upwind. Trains a model while it runs, then lets the model take
!! 20 steps in its place: docs/embedding.md. With -cpp -DHAVE_MPI the processes of mpirun train one model, each
!! on a run of its own.
program advection
  use, intrinsic :: iso_fortran_env, only: real64
  use meshgrad
#ifdef HAVE_MPI
  use mpi
#endif
  implicit none
  integer, parameter :: side = 12, nodes = side*side
  character, parameter :: newline = new_line('a')
  character(*), parameter :: config = '[data]'//newline//'inputs = ["c"]'//newline//'targets = ["c"]'//newline// &
    'node_types = 2'//newline//'predicted_types = [0]'//newline//'noise_types = [0]'//newline// &
    '[model]'//newline//'width = 32'//newline//'blocks = 3'//newline// &
    '[train]'//newline//'steps = 1600'//newline//'noise = 1e-4'//newline//'[optimizer]'//newline//'lr = 2e-3'
  real(real64), target :: xy(2, nodes), c(nodes), model_c(nodes)
  integer, target :: quads(4, (side - 1)**2), node_type(nodes)
  type(meshgrad_runtime) :: runtime
  type(meshgrad_trainer) :: trainer
  type(meshgrad_predictor) :: predictor
  real(real64) :: error
  integer :: x, y, i, cell, run, t, rank
  character(32) :: file
#ifdef HAVE_MPI
  integer :: ierror
#endif

  cell = 0
  do y = 1, side
    do x = 1, side
      i = x + side*(y - 1)
      xy(:, i) = [real(x, real64), real(y, real64)]/side
      node_type(i) = merge(1, 0, x == 1 .or. y == 1)  ! inflow keeps its values
      if (x == side .or. y == side) cycle
      cell = cell + 1
      quads(:, cell) = [i, i + 1, i + side + 1, i + side]
    end do
  end do

  rank = 0
#ifdef HAVE_MPI
  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call runtime%open(threads=1, communicator=MPI_COMM_WORLD)
#else
  call runtime%open(threads=2)
#endif
  call trainer%open(runtime, config, dim=2, names=['c'], components=[1])
  call trainer%set_mesh(numbers(xy), cells=numbers(quads), node_type=numbers(node_type))
  do run = 1, 10
    call start(0.2_real64 + 0.03_real64*run + 0.015_real64*rank)
    call trainer%restart_trajectory()
    do t = 1, 30
      call trainer%set_field('c', numbers(c))
      call trainer%append()
      call trainer%train(5)
      call step()
    end do
  end do
  print '(a, es9.2)', 'held-out loss: ', trainer%held_out_loss()
  write (file, '(a, i0, a)') 'advection', rank, '.safetensors'
  call trainer%save(trim(file))

  call predictor%open(runtime, trim(file))
  call predictor%set_mesh(numbers(xy), cells=numbers(quads), node_type=numbers(node_type))
  call start(0.335_real64)
  call predictor%set_field('c', numbers(c))
  call predictor%predict(20)
  call predictor%get_field('c', numbers(model_c))
  do t = 1, 20
    call step()
  end do
  error = norm2(model_c - c)/norm2(c)
  print '(a, f6.3)', 'relative error of 20 predicted steps: ', error
  call predictor%close()
  call trainer%close()
  call runtime%close()
#ifdef HAVE_MPI
  call MPI_Finalize(ierror)
#endif
  if (error > 0.3_real64) error stop 'the model does not replace the solver'

contains

  !> A bump at (at, at).
  subroutine start(at)
    real(real64), intent(in) :: at
    integer :: node
    do node = 1, nodes
      c(node) = exp(-20*sum((xy(:, node) - at)**2))
    end do
  end subroutine

  subroutine step()
    real(real64) :: old(nodes)
    integer :: node
    old = c
    do node = side + 2, nodes
      if (node_type(node) == 0) c(node) = old(node) - 0.15_real64*(2*old(node) - old(node - 1) - old(node - side))
    end do
  end subroutine
end program
