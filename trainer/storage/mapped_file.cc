#include "trainer/storage/mapped_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "common/base/fd.h"

namespace sortie::trainer {

Result<MappedFile> MappedFile::open(const std::filesystem::path& path, ErrorCode code) {
  // O_NONBLOCK: a pipe in the place of a file is refused below instead of waited for.
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return std::unexpected(os_error(errno, "open " + path.string(), code));
  struct stat info {};
  if (::fstat(file.get(), &info) != 0)
    return std::unexpected(os_error(errno, "stat " + path.string(), code));
  if (!S_ISREG(info.st_mode))
    return fail(code, fmt::format("{}: not a regular file", path.string()));
  MappedFile mapped;
  mapped.size_ = static_cast<std::size_t>(info.st_size);
  if (mapped.size_ == 0) return mapped;
  void* address = ::mmap(nullptr, mapped.size_, PROT_READ, MAP_SHARED, file.get(), 0);
  if (address == MAP_FAILED) {
    mapped.size_ = 0;
    return std::unexpected(os_error(errno, "map " + path.string(), code));
  }
  mapped.data_ = static_cast<const std::byte*>(address);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::expect_sequential() const {
  if (data_ == nullptr) return;
  ::madvise(const_cast<std::byte*>(data_), size_, MADV_SEQUENTIAL);
}

}  // namespace sortie::trainer
