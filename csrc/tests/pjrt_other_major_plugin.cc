// Test double: all it has is a version number that Plugin::load must refuse.
#include <pjrt_c_api.h>

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static const PJRT_Api api = [] {
    PJRT_Api table{};
    table.struct_size = sizeof(PJRT_Api);
    table.pjrt_api_version.struct_size = sizeof(PJRT_Api_Version);
    table.pjrt_api_version.major_version = 7;
    table.pjrt_api_version.minor_version = 3;
    return table;
  }();
  return &api;
}
