# Writes OUTPUT, a C++ file with the content of each of FILES (a list) as an asset of coordinator/web/assets.h.
# cmake -DOUTPUT=assets.cc -DFILES="a;b" -P embed.cmake
set(arrays "")
set(table "")
set(number 0)
foreach(file ${FILES})
  file(READ ${file} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR bytes "${digits} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," array "${hex}")
  get_filename_component(name ${file} NAME)
  # The zero keeps the array of an empty file legal.
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {${array}0};\n")
  string(APPEND table "    {\"${name}\", {reinterpret_cast<const char*>(kFile${number}), ${bytes}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "// Made by coordinator/web/embed.cmake.
#include \"coordinator/web/assets.h\"

namespace terrace {
namespace {

${arrays}
const Asset kAssets[] = {
${table}};

}  // namespace

absl::Span<const Asset> Assets() { return kAssets; }

}  // namespace terrace
")
