! SPDX-License-Identifier: Apache-2.0
!> A model that reads three frames, on a mesh whose nodes of type 4 the solver moves on: frames.safetensors. Two steps
!! in a row, and the second one from frames that are handed over, are the same.
program frames
  use, intrinsic :: iso_fortran_env, only: real64
  use meshgrad
  implicit none
  integer, parameter :: side = 4, nodes = side*side
  real(real64), target :: xy(2, nodes), u(2, nodes, -2:2), again(2, nodes), next(2, nodes, 2), wide(2, 2*nodes)
  integer, target :: triangles(3, 2*(side - 1)**2), node_type(nodes)
  type(meshgrad_runtime) :: runtime
  type(meshgrad_predictor) :: predictor
  integer :: x, y, i, t, cell, status

  cell = 0
  do y = 1, side
    do x = 1, side
      i = x + side*(y - 1)
      xy(:, i) = 0.05_real64*[x, y]
      node_type(i) = merge(4, 0, x == 1)
      if (x == side .or. y == side) cycle
      triangles(:, cell + 1) = [i, i + 1, i + side + 1]
      triangles(:, cell + 2) = [i, i + side + 1, i + side]
      cell = cell + 2
    end do
  end do
  do t = -2, 2
    u(1, :, t) = [(sin(0.3_real64*i + 0.1_real64*t), i=1, nodes)]
    u(2, :, t) = [(cos(0.5_real64*i - 0.2_real64*t), i=1, nodes)]
  end do
  next = u(:, :, 1:2)

  call runtime%open(threads=1)
  call predictor%open(runtime, 'frames.safetensors')
  call set(0)
  call predictor%predict(1, status)
  if (status /= meshgrad_invalid_argument) error stop 'a step without next fields was accepted'
  call predictor%set_earlier_field('velocity', 3, numbers(u(:, :, 0)), status)
  if (status /= meshgrad_invalid_argument) error stop 'a frame that the model does not read was accepted'
  call predictor%set_field('velocity', on_device(numbers(u(:, :, 0))), status)
  if (status /= meshgrad_invalid_argument) error stop 'an array on a GPU was accepted without one'
  wide = 0
  call predictor%set_field('velocity', numbers(wide(:, nodes + 1:)), status)
  if (status /= meshgrad_ok) error stop 'a contiguous part was refused'
  call predictor%set_field('velocity', numbers(wide(:, ::2)), status)
  if (status /= meshgrad_ok) error stop 'a part with gaps was refused'
  call set(0)
  do t = 1, 2
    call predictor%set_next_field('velocity', numbers(next(:, :, t)))
    call predictor%predict(1)
    call predictor%get_field('velocity', numbers(u(:, :, t)))
    do i = 1, nodes  ! f32 inside
      if (node_type(i) == 4 .and. maxval(abs(u(:, i, t) - next(:, i, t))) > 1e-6_real64) &
        error stop 'a node of the solver is not where it moved'
    end do
  end do
  call set(1)
  call predictor%set_next_field('velocity', numbers(next(:, :, 2)))
  call predictor%predict(1)
  call predictor%get_field('velocity', numbers(again))
  print '(a, es8.1)', 'frames handed over change the step by ', maxval(abs(again - u(:, :, 2)))
  if (any(abs(again - u(:, :, 2)) > 0)) error stop 'other results from frames that were handed over'
  call predictor%close()
  call runtime%close()

contains

  !> The mesh anew, with frame t and the two before.
  subroutine set(t)
    integer, intent(in) :: t
    call predictor%set_mesh(numbers(xy), cells=numbers(triangles), node_type=numbers(node_type))
    call predictor%set_field('velocity', numbers(u(:, :, t)))
    call predictor%set_earlier_field('velocity', 1, numbers(u(:, :, t - 1)))
    call predictor%set_earlier_field('velocity', 2, numbers(u(:, :, t - 2)))
  end subroutine
end program
