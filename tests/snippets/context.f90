! SPDX-License-Identifier: Apache-2.0
! What snippets of Fortran in the docs take as given; compile.py puts each into a block after the last line.
program snippets
  use, intrinsic :: iso_fortran_env
  use meshgrad
  implicit none
  integer, parameter :: MPI_COMM_WORLD = 0
  type(meshgrad_runtime) :: runtime
  type(meshgrad_predictor) :: predictor
  type(meshgrad_trainer) :: trainer
  real(real64), target :: u(1, 9), u_end(1, 9), load(1), xy(2, 9), xyz(3, 9)
  real(real64), target :: dj_du_end(1, 9), dj_du(1, 9), dj_dload(1), dj_dxy(2, 9)
  integer, target :: triangles(3, 8), cells(4, 8), types(9), node_type(9), owner(2), number_there(2)
  real(real64) :: dt, loss
  integer :: step, steps
