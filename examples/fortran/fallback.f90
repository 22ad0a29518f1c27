! SPDX-License-Identifier: Apache-2.0
!> Advection of a scalar whose steps the model of advection.f90 takes; the solver takes those whose state is out of the
!! model's range: docs/embedding.md.
program fallback
  use, intrinsic :: iso_fortran_env, only: real64
  use meshgrad
  implicit none
  integer, parameter :: side = 12, nodes = side*side, steps = 40, pulse = 10
  real(real64), target :: xy(2, nodes), c(nodes)
  real(real64) :: solution(nodes), error
  integer, target :: quads(4, (side - 1)**2), node_type(nodes)
  type(meshgrad_runtime) :: runtime
  type(meshgrad_predictor) :: predictor
  character(:), allocatable :: field
  integer :: x, y, i, cell, t, predicted, solved

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

  call runtime%open(threads=2)
  call predictor%open(runtime, 'advection0.safetensors')
  call predictor%set_mesh(numbers(xy), cells=numbers(quads), node_type=numbers(node_type))
  c = bump(0.335_real64)
  solution = c
  predicted = 0
  solved = 0
  do t = 1, steps
    if (t == pulse) then  ! a release that the model has never seen
      c = c + 0.8_real64*bump(0.5_real64)
      solution = solution + 0.8_real64*bump(0.5_real64)
    end if
    call predictor%set_field('c', numbers(c))
    if (predictor%range_excess(field) > 0.02_real64) then  ! of the range of the training
      if (t == pulse) print '(3a)', 'out of range: ', field
      call step(c)
      solved = solved + 1
    else
      call predictor%predict(1)
      call predictor%get_field('c', numbers(c))
      predicted = predicted + 1
    end if
    call step(solution)
  end do
  call predictor%close()
  call runtime%close()
  error = norm2(c - solution)/norm2(solution)
  print '(i0, a, i0, a, f6.3)', predicted, ' steps predicted, ', solved, ' solved; relative error', error
  if (predicted < pulse - 1 .or. solved == 0 .or. error > 0.3_real64) error stop 'the model and the solver do not take turns'

contains

  function bump(at) result(values)
    real(real64), intent(in) :: at
    real(real64) :: values(nodes)
    integer :: node
    do node = 1, nodes
      values(node) = exp(-20*sum((xy(:, node) - at)**2))
    end do
  end function

  subroutine step(values)
    real(real64), intent(inout) :: values(nodes)
    real(real64) :: old(nodes)
    integer :: node
    old = values
    do node = side + 2, nodes
      if (node_type(node) == 0) values(node) = old(node) - 0.15_real64*(2*old(node) - old(node - 1) - old(node - side))
    end do
  end subroutine
end program
