# SPDX-License-Identifier: Apache-2.0
# Writes the kernels' source as a C array: cmake -DOUT=file.c -DFILES=a;b -P metal_source.cmake. The compiler on the device knows no
# files, so that those that include each other become one text, without the lines that do so.
set(text "")
foreach(file ${FILES})
  file(READ ${file} part)
  string(REGEX REPLACE "(^|\n)#include \"[^\n]*" "\\1" part "${part}")
  string(APPEND text "${part}\n")
endforeach()
file(WRITE ${OUT}.txt "${text}")
file(READ ${OUT}.txt bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUT} "extern const char ta_metal_source[];\nconst char ta_metal_source[] = {${bytes}0};\n")
