// Whether what a file or folder holds may be run: a compiled program is code.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "cache/store.h"

namespace torch_tpu::cache {

// Nothing when only the effective user can change it; else what is wrong, as the end of a
// sentence ("it belongs to user 7, ...").
std::optional<std::string> distrust(const struct stat& status);

// distrust() as an error that says what to do about it.
StoreError untrusted(const std::string& path, const std::string& what_is_wrong);

// What an error of the operating system means for a store. `operation` begins the message, as in
// "cannot open /a/b".
StoreError system_error(const std::string& operation, int error);

// Of reading one entry: true for errors of the file, false for errors of the whole store.
bool concerns_one_file(int error);

}  // namespace torch_tpu::cache
