# Warnings are errors in our own code; system headers are silent because CMake marks imported targets SYSTEM.
add_library(terrace_warnings INTERFACE)
target_compile_options(terrace_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror -Wno-sign-compare -Wno-missing-field-initializers>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  target_compile_options(terrace_warnings INTERFACE -Wthread-safety)
endif()

option(TERRACE_SANITIZE "Comma-separated sanitizers, for example address,undefined" "")
if(TERRACE_SANITIZE)
  add_compile_options(-fsanitize=${TERRACE_SANITIZE} -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${TERRACE_SANITIZE})
endif()
