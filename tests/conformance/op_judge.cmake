# The judge of op conformance, without a test library: tests/gpu builds it where there is none.
set(dir ${CMAKE_CURRENT_LIST_DIR})
add_library(op_judge STATIC
  ${dir}/op_case.cc ${dir}/layout_cases.cc ${dir}/attention_cases.cc ${dir}/score_cases.cc ${dir}/product_cases.cc ${dir}/update_cases.cc ${dir}/op_values.cc ${dir}/op_memory.cc ${dir}/op_judge.cc
  ${dir}/op_reference.cc ${dir}/norm_reference.cc ${dir}/attention_reference.cc ${dir}/layout_reference.cc ${dir}/update_reference.cc)
target_compile_options(op_judge PRIVATE -O2)
target_link_libraries(op_judge PUBLIC kernels_table PRIVATE terrace_warnings)
