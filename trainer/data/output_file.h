// OutputFile: a new file that is hashed while it is written and appears under its name atomically.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "common/base/fd.h"
#include "common/base/result.h"
#include "trainer/storage/sha256.h"

namespace sortie::trainer {

/// Writes to "<path>.tmp". This file is locked: a second build of the same output fails with
/// ErrorCode::data. The file of a killed build is overwritten by the next build. The destructor
/// removes the temporary file unless publish() succeeded.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::filesystem::path& path);
  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Result<> write(std::span<const std::byte> bytes);
  /// Flushes and fsyncs. No write may follow.
  Result<> sync();
  /// Renames the file to its final name. Requires sync(). The caller fsyncs the folder.
  Result<> publish();

  std::uint64_t bytes() const { return bytes_; }
  /// Valid after sync().
  const std::string& sha256() const { return hash_text_; }

 private:
  OutputFile(std::filesystem::path path, std::filesystem::path temporary, Fd file);
  Result<> flush();

  std::filesystem::path path_;
  std::filesystem::path temporary_;
  Fd file_;
  Sha256 hash_;
  std::string hash_text_;
  std::vector<std::byte> buffer_;
  std::uint64_t bytes_ = 0;
};

}  // namespace sortie::trainer
