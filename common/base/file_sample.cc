#include "common/base/file_sample.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#define XXH_INLINE_ALL  // the runner is linked statically, without libxxhash
#include <xxhash.h>

#include "common/base/fd.h"

namespace sortie {
namespace {

constexpr std::uint64_t kPart = 256u << 10;

}  // namespace

Result<FileSample> sample_file(const std::string& path) {
  const auto failed = [](int error) { return fail(ErrorCode::io, std::strerror(error)); };
  const Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat info {};
  if (!file || ::fstat(file.get(), &info) != 0) return failed(errno);
  if (!S_ISREG(info.st_mode)) return fail(ErrorCode::io, "not a regular file");
  FileSample sample;
  sample.size = static_cast<std::uint64_t>(info.st_size);
  const std::uint64_t part = std::min(kPart, sample.size);
  std::vector<char> bytes(part);
  std::uint64_t hash = sample.size;
  for (const std::uint64_t offset : {std::uint64_t{0}, sample.size - part}) {
    std::size_t filled = 0;
    while (filled < part) {
      const ssize_t count = ::pread(file.get(), bytes.data() + filled, part - filled,
                                    static_cast<off_t>(offset + filled));
      if (count < 0) return failed(errno);
      if (count == 0) return fail(ErrorCode::io, "it became shorter while it was read");
      filled += static_cast<std::size_t>(count);
    }
    hash = XXH3_64bits_withSeed(bytes.data(), part, hash);
  }
  sample.hash = hash;
  return sample;
}

}  // namespace sortie
