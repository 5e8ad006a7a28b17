#include "trainer/data/output_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>

#include <cerrno>

#include "common/base/check.h"
#include "common/base/file_lock.h"

namespace sortie::trainer {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

/// Opens and locks `path`. Retries if another build renames the file between open and lock.
Result<Fd> open_locked(const std::filesystem::path& path) {
  for (;;) {
    Fd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!file) return std::unexpected(os_error(errno, "create " + path.string()));
    const FileLock lock = try_lock_file(file.get(), LOCK_EX);
    if (lock == FileLock::held)
      return fail(ErrorCode::data, fmt::format("{}: another build is writing it; wait for it or "
                                               "choose another --output",
                                               path.string()));
    if (lock == FileLock::failed) return std::unexpected(os_error(errno, "lock " + path.string()));
    struct stat opened {};
    struct stat named {};
    if (::fstat(file.get(), &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
        opened.st_ino == named.st_ino && opened.st_dev == named.st_dev)
      return file;
  }
}

}  // namespace

OutputFile::OutputFile(std::filesystem::path path, std::filesystem::path temporary, Fd file)
    : path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)) {
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (file_) ::unlink(temporary_.c_str());
}

Result<OutputFile> OutputFile::create(const std::filesystem::path& path) {
  const std::filesystem::path temporary = path.string() + ".tmp";
  SORTIE_ASSIGN_OR_RETURN(Fd file, open_locked(temporary));
  if (::ftruncate(file.get(), 0) != 0)
    return std::unexpected(os_error(errno, "truncate " + temporary.string()));
  return OutputFile(path, temporary, std::move(file));
}

Result<> OutputFile::write(std::span<const std::byte> bytes) {
  bytes_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t count = std::min(bytes.size(), kBufferBytes - buffer_.size());
    buffer_.insert(buffer_.end(), bytes.begin(),
                   bytes.begin() + static_cast<std::ptrdiff_t>(count));
    bytes = bytes.subspan(count);
    if (buffer_.size() == kBufferBytes) SORTIE_TRY(flush());
  }
  return {};
}

Result<> OutputFile::flush() {
  hash_.update(buffer_);
  std::span<const std::byte> rest = buffer_;
  while (!rest.empty()) {
    const ssize_t count = ::write(file_.get(), rest.data(), rest.size());
    if (count < 0) {
      if (errno == EINTR) continue;
      return std::unexpected(os_error(errno, "write " + temporary_.string()));
    }
    rest = rest.subspan(static_cast<std::size_t>(count));
  }
  buffer_.clear();
  return {};
}

Result<> OutputFile::sync() {
  SORTIE_TRY(flush());
  hash_text_ = hash_.finish_hex();
  if (::fsync(file_.get()) != 0)
    return std::unexpected(os_error(errno, "fsync " + temporary_.string()));
  return {};
}

Result<> OutputFile::publish() {
  SORTIE_CHECK(!hash_text_.empty(), "publish before sync");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return std::unexpected(os_error(errno, "rename " + temporary_.string()));
  file_.reset();  // also releases the lock, which is now on the published file
  return {};
}

}  // namespace sortie::trainer
