# Warnings are errors in our own code; system headers are silent because CMake marks imported targets SYSTEM.
add_library(terrace_warnings INTERFACE)
target_compile_options(terrace_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-sign-compare -Wno-missing-field-initializers>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(terrace_warnings INTERFACE -Wthread-safety)
endif()

option(TERRACE_FUZZ "With clang: build the fuzzers of tests/fuzz, and all code so that they see which parts of it run" OFF)
if(TERRACE_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

option(TERRACE_SANITIZE "Comma-separated sanitizers, for example address,undefined" "")
if(TERRACE_SANITIZE)
  add_compile_options(-fsanitize=${TERRACE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TERRACE_SANITIZE})
endif()
if(TERRACE_SANITIZE MATCHES "thread")
  # Before Abseil in every program: Debian's is not instrumented (tests/support/tsan_mutex.cc).
  add_library(tsan_mutex SHARED ${CMAKE_SOURCE_DIR}/tests/support/tsan_mutex.cc)
  target_link_libraries(tsan_mutex PRIVATE absl::synchronization ${CMAKE_DL_LIBS} terrace_warnings)
  link_libraries(tsan_mutex)
endif()
