# SPDX-License-Identifier: Apache-2.0
# cmake --install: public headers, the library, the programs, and what find_package(meshgrad) reads.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/meshgrad)

# The public headers: docs/cpp.md says what each is for. They include no others, and what they declare is what the shared
# library exports: it stands between visibility pragmas. The install test checks all three.
set(public_headers
  engine/device.h
  engine/dtype.h
  engine/error.h
  engine/inline_vector.h
  engine/runtime.h
  engine/stream.h
  engine/tensor.h
  engine/memory/caching_allocator.h
  engine/memory/history.h
  engine/memory/options.h
  engine/memory/source.h
  engine/memory/source_callback.h
  engine/memory/source_host.h
  engine/memory/stats.h
  engine/memory/storage.h
  engine/memory/tag.h
  engine/threads/thread_pool.h
  kernels/activation.h
  kernels/graph.h
  kernels/linear.h
  kernels/loss_scale.h
  kernels/mlp.h
  kernels/optimizer.h
  kernels/step_state.h
  autograd/ops.h
  autograd/tape.h
  autograd/variable.h
  autograd/recompute/checkpoint.h
  autograd/recompute/save_policy.h
  nn/graph_batch.h
  nn/mesh_graph_net.h
  nn/mlp.h
  nn/model.h
  nn/moments.h
  nn/normalizer.h
  nn/parameter.h
  train/train.h
  train/config/config.h
  train/data/convert.h
  train/data/dataset.h
  train/data/field_info.h
  train/data/mesh_edges.h
  train/data/statistics.h
  train/run/checkpoint.h
  train/run/optimizer.h
  train/run/predictor.h
  train/run/train_options.h
  train/task/batch_layout.h
  train/task/evaluation.h
  train/task/mesh_dynamics.h
  train/task/mesh_inputs.h
  train/task/recomputation.h
  train/task/rollout.h
  train/task/sample.h
  train/task/steady_field.h
  train/task/task.h
  train/data/sources/trajectory_source.h)

set(programs meshgrad_cli)
if(MESHGRAD_BENCH)
  list(APPEND programs meshgrad_bench)
endif()
install(TARGETS meshgrad EXPORT meshgrad)
install(TARGETS ${programs})
foreach(header IN LISTS public_headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/meshgrad/${folder})
endforeach()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/meshgradConfig.cmake.in
  ${PROJECT_BINARY_DIR}/meshgradConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/meshgradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT meshgrad NAMESPACE meshgrad:: FILE meshgradTargets.cmake DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/meshgradConfig.cmake ${PROJECT_BINARY_DIR}/meshgradConfigVersion.cmake
  DESTINATION ${package_dir})
# A static library leaves its packages to the program that links it.
if(NOT BUILD_SHARED_LIBS)
  install(FILES ${PROJECT_SOURCE_DIR}/cmake/StaticDependencies.cmake DESTINATION ${package_dir})
endif()
