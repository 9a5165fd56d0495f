# Precompiled headers: what most files read, parsed once. Included by the root after all targets exist.
#
# Two of them: precompiled (product) and precompiled_tests (with GoogleTest); a target reuses the one that its libraries call
# for. Left out are the kernels and base, which know no protobuf, the generated messages, and op_judge, in which GCC 12 with a
# sanitizer crashes on them. A file must still include what it uses: the presets dev and tsan build without, unless told.
option(TERRACE_PCH "Parse common headers once" ON)
if(NOT TERRACE_PCH)
  return()
endif()

# What std::string does inside is nothing that GCC 12 should warn of (its bug 105651), and does when it comes from here.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(terrace_warnings INTERFACE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
endif()

file(WRITE ${CMAKE_BINARY_DIR}/precompiled.cc "")
foreach(name precompiled precompiled_tests)
  add_library(${name} OBJECT EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/precompiled.cc)
  target_link_libraries(${name} PRIVATE proto_messages absl::status absl::statusor absl::strings absl::str_format terrace_warnings)
  target_precompile_headers(${name} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/precompiled.h)
  if(CCACHE_PROGRAM)
    set_target_properties(${name} PROPERTIES
      CXX_COMPILER_LAUNCHER "${CMAKE_SOURCE_DIR}/cmake/precompile_afresh.sh;${CMAKE_CXX_COMPILER_LAUNCHER}")
  endif()
endforeach()
if(TERRACE_TESTS)
  target_link_libraries(precompiled_tests PRIVATE GTest::gmock)
  target_precompile_headers(precompiled_tests PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  # A quarter of the time to compile a test went into the lines of code for a debugger; the presets dev and tsan have them.
  set(TERRACE_TESTS_DEBUG $<$<CONFIG:RelWithDebInfo>:-g0>)
  target_compile_options(precompiled_tests PRIVATE ${TERRACE_TESTS_DEBUG})
endif()

function(terrace_reuse_precompiled folder)
  get_directory_property(targets DIRECTORY ${folder} BUILDSYSTEM_TARGETS)
  foreach(target ${targets})
    get_target_property(type ${target} TYPE)
    get_target_property(libraries ${target} LINK_LIBRARIES)
    if(NOT type MATCHES "STATIC_LIBRARY|EXECUTABLE" OR libraries MATCHES "OpenMP" OR
       target MATCHES "^(base|proto_messages|proto_grpc|bench_triad|op_judge)$")
      continue()
    endif()
    if(libraries MATCHES "GTest::")
      target_precompile_headers(${target} REUSE_FROM precompiled_tests)
      target_compile_options(${target} PRIVATE ${TERRACE_TESTS_DEBUG})
    else()
      target_precompile_headers(${target} REUSE_FROM precompiled)
    endif()
  endforeach()
  get_directory_property(folders DIRECTORY ${folder} SUBDIRECTORIES)
  foreach(inner ${folders})
    terrace_reuse_precompiled(${inner})
  endforeach()
endfunction()

foreach(folder proto coordinator worker client)
  terrace_reuse_precompiled(${CMAKE_SOURCE_DIR}/${folder})
endforeach()
if(TERRACE_TESTS)
  terrace_reuse_precompiled(${CMAKE_SOURCE_DIR}/tests)
endif()

# CLI11 takes four seconds in each of its files; together they take a third of the time.
set_target_properties(terrace-rank PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0)
