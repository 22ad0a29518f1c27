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
  engine/ranks/collectives.h
  engine/ranks/mpi.h
  engine/ranks/ranks.h
  engine/memory/caching_allocator.h
  engine/memory/options.h
  engine/memory/source.h
  engine/memory/stats.h
  engine/memory/storage.h
  engine/memory/tag.h
  engine/threads/thread_pool.h
  kernels/activation.h
  kernels/teacher_output.h
  kernels/dropout_key.h
  kernels/graph.h
  kernels/graph_choices.h
  kernels/loss_form.h
  kernels/mlp.h
  kernels/node_pairs.h
  kernels/noise_key.h
  kernels/step_state.h
  autograd/ops.h
  autograd/tape.h
  autograd/variable.h
  autograd/recompute/checkpoint.h
  nn/gat.h
  nn/graph_batch.h
  nn/mesh_graph_net.h
  nn/model.h
  nn/normalizer.h
  nn/parameter.h
  nn/vgae.h
  train/learn/train.h
  train/learn/config/config.h
  train/convert/convert.h
  train/data/data_facts.h
  train/data/dataset.h
  train/data/field_info.h
  train/embed/arrays.h
  train/embed/graph_predictor.h
  train/embed/mesh_predictor.h
  train/embed/online_trainer.h
  train/learn/run/checkpoint.h
  train/learn/run/optimizer.h
  train/learn/run/run_event.h
  train/embed/predictor.h
  train/learn/run/train_options.h
  train/learn/task/prediction.h)

set(programs meshgrad_cli)
if(TARGET meshgrad_bench)
  list(APPEND programs meshgrad_bench)
endif()
install(TARGETS meshgrad meshgrad_convert EXPORT meshgrad)
install(TARGETS ${programs})
# The same paths in the build tree: those that CMake would replace at installation end with an empty one, by which the
# loader takes libraries from the current folder.
file(RELATIVE_PATH from_programs /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
if(NOT DEFINED CMAKE_INSTALL_RPATH_USE_LINK_PATH)
  set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
endif()
set_target_properties(${programs} meshgrad meshgrad_convert PROPERTIES BUILD_WITH_INSTALL_RPATH ON
  INSTALL_RPATH_USE_LINK_PATH ${CMAKE_INSTALL_RPATH_USE_LINK_PATH} INSTALL_RPATH "$ORIGIN;${CMAKE_INSTALL_RPATH}"
  RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
set_target_properties(${programs} PROPERTIES INSTALL_RPATH "$ORIGIN/${from_programs};$ORIGIN;${CMAKE_INSTALL_RPATH}")
foreach(header IN LISTS public_headers)
  get_filename_component(folder ${header} DIRECTORY)
  install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/meshgrad/${folder})
endforeach()

install(FILES ${PROJECT_SOURCE_DIR}/train/embed/meshgrad.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${PROJECT_SOURCE_DIR}/packaging/modulefile DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/modulefiles RENAME meshgrad)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
# Of packages that are only headers, whose code is in ours; a shared library's package has its own.
foreach(package IN ITEMS libcli11-dev libtoml11-dev nlohmann-json3-dev)
  install(FILES /usr/share/doc/${package}/copyright DESTINATION ${CMAKE_INSTALL_DOCDIR}/licences RENAME ${package} OPTIONAL)
endforeach()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/meshgradConfig.cmake.in
  ${PROJECT_BINARY_DIR}/meshgradConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/meshgradConfigVersion.cmake COMPATIBILITY SameMinorVersion)
file(RELATIVE_PATH prefix_of_pc /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
foreach(name IN ITEMS meshgrad meshgrad-convert)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/${name}.pc.in ${PROJECT_BINARY_DIR}/${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
if(MESHGRAD_HAVE_FORTRAN)
  install(TARGETS meshgrad_fortran EXPORT meshgradFortran)
  # The source, too: another compiler's module file is another.
  install(FILES ${fortran_modules}/meshgrad.mod ${PROJECT_SOURCE_DIR}/train/embed/meshgrad.f90
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/meshgrad/fortran)
  install(EXPORT meshgradFortran NAMESPACE meshgrad:: FILE meshgradFortranTargets.cmake DESTINATION ${package_dir})
  configure_file(${PROJECT_SOURCE_DIR}/cmake/meshgrad-fortran.pc.in ${PROJECT_BINARY_DIR}/meshgrad-fortran.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/meshgrad-fortran.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()
install(EXPORT meshgrad NAMESPACE meshgrad:: FILE meshgradTargets.cmake DESTINATION ${package_dir})
install(FILES ${PROJECT_BINARY_DIR}/meshgradConfig.cmake ${PROJECT_BINARY_DIR}/meshgradConfigVersion.cmake
  DESTINATION ${package_dir})
# A static library leaves its packages to the program that links it.
if(NOT BUILD_SHARED_LIBS)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/StaticDependencies.cmake.in ${PROJECT_BINARY_DIR}/StaticDependencies.cmake @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/StaticDependencies.cmake ${PROJECT_SOURCE_DIR}/cmake/FindxxHash.cmake
    ${PROJECT_SOURCE_DIR}/cmake/Findlibzip.cmake DESTINATION ${package_dir})
endif()

# For packaging/release; also `cpack -G DEB` or `cpack -G TGZ` in the build folder.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_PACKAGE_CONTACT "meshgrad maintainers <maintainers@users.noreply.github.com>")
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_STRIP_FILES ON)
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
  set(CPACK_GENERATOR TGZ DEB)
  include(CPack)
endif()
