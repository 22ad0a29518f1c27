! SPDX-License-Identifier: Apache-2.0
!> Gradients of a model trained a little against finite differences, on two meshes at once.
program gradients
  use, intrinsic :: iso_fortran_env, only: real64
  use meshgrad
  implicit none
  integer, parameter :: side = 5, nodes = side*side
  real(real64), parameter :: h = 0.01_real64
  real(real64), target :: xy(2, nodes), c(nodes), end(nodes), weight(nodes), by_c(nodes), by_xy(2, nodes)
  character, parameter :: newline = new_line('a')
  character(*), parameter :: config = '[data]'//newline//'inputs = ["c"]'//newline//'targets = ["c"]'//newline// &
    '[model]'//newline//'width = 8'//newline//'blocks = 2'//newline//'activation = "silu"'//newline// &
    '[train]'//newline//'noise = 0.0'
  real(real64) :: along_c(nodes), along_xy(2, nodes)
  integer, target :: quads(4, (side - 1)**2), node_type(nodes)
  type(meshgrad_runtime) :: runtime
  type(meshgrad_trainer) :: trainer
  type(meshgrad_predictor) :: predictor
  integer :: x, y, i, t, cell, status

  cell = 0
  node_type = 0
  do y = 1, side
    do x = 1, side
      i = x + side*(y - 1)
      xy(:, i) = [real(x, real64), real(y, real64)]/side + 0.01_real64*[sin(2.0_real64*i), cos(3.0_real64*i)]
      if (x == side .or. y == side) cycle
      cell = cell + 1
      quads(:, cell) = [i, i + 1, i + side + 1, i + side]
    end do
  end do

  call runtime%open(threads=1)
  call trainer%open(runtime, config, dim=2, names=['c'], components=[1])
  call trainer%set_mesh(numbers(xy), cells=numbers(quads), node_type=numbers(node_type))
  do t = 1, 5
    c = [(sin(1.1_real64*i*t), i=1, nodes)]
    call trainer%set_field('c', numbers(c))
    call trainer%append()
  end do
  call trainer%train(20)
  call trainer%save('gradients.safetensors')
  call trainer%close()

  do i = 1, nodes
    c(i) = sin(0.7_real64*i)
    weight(i) = cos(1.3_real64*i)
    along_c(i) = sin(5.0_real64*i)
    along_xy(:, i) = 0.1_real64*[cos(4.0_real64*i), sin(6.0_real64*i)]
  end do

  call predictor%open(runtime, 'gradients.safetensors')
  call predictor%backward(status)
  if (status /= meshgrad_invalid_argument) error stop 'backward without a step was accepted'
  call predictor%record_steps(.true.)
  call predict()
  call predictor%set_gradient('c', numbers(weight), mesh=2)
  call predictor%backward()
  call predictor%get_gradient('c', numbers(by_c), mesh=2)
  call predictor%get_position_gradient(numbers(by_xy), mesh=2)
  call compare('c', sum(by_c*along_c), difference(along_c, 0*along_xy))
  call compare('positions', sum(by_xy*along_xy), difference(0*along_c, along_xy))
  call predictor%close()
  call runtime%close()

contains

  !> `end` becomes the second mesh's field after two steps.
  subroutine predict()
    type(meshgrad_mesh) :: mesh
    mesh = mesh_of(numbers(xy), cells=numbers(quads), node_type=numbers(node_type))
    call predictor%set_meshes([mesh, mesh])
    call predictor%set_field('c', numbers(c))
    call predictor%set_field('c', numbers(c), mesh=2)
    call predictor%predict(2)
    call predictor%get_field('c', numbers(end), mesh=2)
  end subroutine

  !> Of the sum of weight*end, along a direction.
  function difference(of_c, of_xy)
    real(real64), intent(in) :: of_c(nodes), of_xy(2, nodes)
    real(real64) :: difference, sums(2), kept_c(nodes), kept_xy(2, nodes)
    integer :: i
    kept_c = c
    kept_xy = xy
    do i = 1, 2
      c = kept_c + (2*i - 3)*h*of_c
      xy = kept_xy + (2*i - 3)*h*of_xy
      call predict()
      sums(i) = sum(weight*end)
    end do
    c = kept_c
    xy = kept_xy
    difference = (sums(2) - sums(1))/(2*h)
  end function

  subroutine compare(what, gradient, expected)
    character(*), intent(in) :: what
    real(real64), intent(in) :: gradient, expected
    print '(2a, 2f12.6)', what, ': gradient and finite difference', gradient, expected
    if (abs(gradient - expected) > 0.01_real64*abs(expected)) error stop 'the gradient is wrong'
  end subroutine
end program
