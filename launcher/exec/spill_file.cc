#include "launcher/exec/spill_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>

namespace sortie::launcher {
namespace {

constexpr std::uint64_t kDiscardStep = 4u << 20;

std::string temporary_folder() {
  const char* folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder == '/' ? folder : "/tmp";
}

}  // namespace

Result<> SpillFile::make() {
  if (file_) return {};
  const std::string folder = temporary_folder();
  file_.reset(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file_) return {};
  std::string path = folder + "/sortie-XXXXXX";  // for file systems without O_TMPFILE
  file_.reset(::mkostemp(path.data(), O_CLOEXEC));
  if (!file_) return std::unexpected(os_error(errno, "temporary file in " + folder));
  ::unlink(path.c_str());
  return {};
}

Result<std::uint64_t> SpillFile::append(std::string_view bytes) {
  SORTIE_TRY(make());
  const std::uint64_t offset = size_;
  while (!bytes.empty()) {
    const ssize_t count =
        ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(size_));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      return std::unexpected(
          os_error(errno, fmt::format("temporary file in {}; make room there, or name another "
                                      "folder with TMPDIR",
                                      temporary_folder())));
    size_ += static_cast<std::uint64_t>(count);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return offset;
}

Result<> SpillFile::read(std::uint64_t offset, std::span<char> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        ::pread(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return std::unexpected(os_error(errno, "read a temporary file"));
    if (count == 0) return fail(ErrorCode::io, "a temporary file has become shorter");
    offset += static_cast<std::uint64_t>(count);
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

void SpillFile::discard_before(std::uint64_t offset) {
  if (!file_ || offset < discarded_ + kDiscardStep) return;
  ::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
              static_cast<off_t>(discarded_), static_cast<off_t>(offset - discarded_));
  discarded_ = offset;
}

}  // namespace sortie::launcher
