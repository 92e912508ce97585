# Writes OUTPUT, which defines lowering_hash(): a SHA-256 over the contents of the files listed in
# LIST (one per line). Run by the build whenever one of them changes.
file(STRINGS ${LIST} sources)
set(all "")
foreach(source IN LISTS sources)
  file(SHA256 ${ROOT}/${source} hash)
  string(APPEND all "${source} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[
#include "eager/lowering_hash.h"

namespace torch_tpu::eager {

const char* lowering_hash() { return "@hash@"; }

}  // namespace torch_tpu::eager
]] @ONLY)
