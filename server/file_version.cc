#include "server/file_version.h"

#include "absl/strings/str_cat.h"
#include <sys/stat.h>

namespace lowerd::server {

std::string FileVersion(const std::string& path) {
  struct stat st;
  if (::stat(path.c_str(), &st) != 0) return "";
  return absl::StrCat(st.st_dev, ":", st.st_ino, ":", st.st_size, ":", st.st_mtim.tv_sec, ".",
                      st.st_mtim.tv_nsec);
}

}  // namespace lowerd::server
