#include "cache/file_trust.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <system_error>

namespace torch_tpu::cache {

std::optional<std::string> distrust(const struct stat& status) {
  if (status.st_uid != geteuid()) {
    return "it belongs to user " + std::to_string(status.st_uid) + ", this process runs as user " +
           std::to_string(geteuid());
  }
  if (status.st_mode & (S_IWGRP | S_IWOTH)) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", status.st_mode & 07777u);
    return "others may write to it (mode " + std::string(mode) + ")";
  }
  return std::nullopt;
}

StoreError untrusted(const std::string& path, const std::string& what_is_wrong) {
  return StoreError(StoreProblem::kUntrusted,
                    path + " is not used: " + what_is_wrong +
                        ", and what it holds would be run as code. Make it yours alone (chown, "
                        "chmod go-w), choose another place, or have entries signed with "
                        "TORCH_TPU_CACHE_HMAC_KEY_FILE");
}

StoreError system_error(const std::string& operation, int error) {
  StoreProblem problem = StoreProblem::kBroken;
  switch (error) {
    case EROFS:
      problem = StoreProblem::kReadOnly;
      break;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      problem = StoreProblem::kFull;
      break;
    case EACCES:
    case EPERM:
      problem = StoreProblem::kNoPermission;
      break;
    case ETIMEDOUT:
    case ENOTCONN:
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case EHOSTDOWN:
    case EHOSTUNREACH:
    case ENETDOWN:
    case ENETUNREACH:
    case ESTALE:
    case EREMOTEIO:
      problem = StoreProblem::kUnreachable;
      break;
    default:
      break;
  }
  return StoreError(problem, operation + ": " + std::generic_category().message(error));
}

bool concerns_one_file(int error) {
  return error == EACCES || error == EPERM || error == EIO || error == EISDIR || error == ELOOP ||
         error == ENXIO || error == ENODEV;
}

}  // namespace torch_tpu::cache
