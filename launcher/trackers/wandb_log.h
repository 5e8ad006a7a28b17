// The file format of a Weights & Biases run: a log of records in blocks of 32 KiB, as LevelDB's
// write-ahead log, but with a header of 7 bytes (counted inside the first block) and plain CRC-32.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

/// What the file begins with: ":W&B", 0xBEE1 and version 0.
std::string wandb_file_header();

/// A record as it goes into a file that is `offset` bytes long. A record is cut where a block ends:
/// each part is crc (u32), length (u16), type (1 = whole, 2 = first, 3 = middle, 4 = last), bytes.
std::string wandb_frame(std::string_view record, std::uint64_t offset);

/// Hands out every whole record of a file's bytes with the offset where it begins, up to the first
/// that is broken or cut off; the offset behind the last good one. 0 = not such a file.
std::uint64_t scan_wandb_file(std::string_view bytes,
                              const std::function<void(std::uint64_t, std::string_view)>& record);

/// A file that is open for appending, by one process.
class WandbLog {
 public:
  /// Creates the file with its header, or opens one that is there; its folder must exist.
  static Result<WandbLog> open(const std::filesystem::path& path);

  bool empty() const { return size_ <= kHeaderBytes; }
  const std::filesystem::path& path() const { return path_; }
  /// Everything in the file.
  Result<std::string> read() const;
  /// Forgets what is behind `offset`.
  Result<> cut(std::uint64_t offset);
  /// A record that does not fit on the disk is taken back whole: half of one would hide all that
  /// follow.
  Result<> append(std::string_view record);

 private:
  static constexpr std::uint64_t kHeaderBytes = 7;
  Result<> write(std::string_view bytes);

  std::filesystem::path path_;
  Fd file_;
  std::uint64_t size_ = 0;
};

}  // namespace sortie::launcher
