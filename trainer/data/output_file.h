// OutputFile: a new file that is hashed while it is written and appears under its name at once.
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

/// Writes to "<path>.tmp", which is locked so that two builds of one output exclude each other and
/// what a killed build left is taken over by the next. Destroyed before publish() it removes that.
class OutputFile {
 public:
  static Result<OutputFile> create(const std::filesystem::path& path);
  OutputFile(OutputFile&&) noexcept = default;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Result<> write(std::span<const std::byte> bytes);
  /// Flushes and fsyncs; no more writes after it.
  Result<> sync();
  /// Renames to the final name; needs sync() first. The caller fsyncs the folder.
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
