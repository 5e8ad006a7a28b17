// The file format of a Weights & Biases run: a log of records in blocks of 32 KiB, like LevelDB's
// write-ahead log, but with a file header of 7 bytes (part of the first block) and plain CRC-32.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

/// Returns the file header: ":W&B", 0xBEE1 and version 0.
std::string wandb_file_header();

/// Encodes a record for appending to a file of `offset` bytes. A record is split at the end of a
/// block. Each part is crc (u32), length (u16), type (1 = whole, 2 = first, 3 = middle, 4 = last),
/// bytes.
std::string wandb_frame(std::string_view record, std::uint64_t offset);

/// Calls `record` for every complete record of a file, with the offset at which it begins, up to
/// the first that is damaged or incomplete. Returns the offset after the last good record; 0 if it
/// is no such file.
std::uint64_t scan_wandb_file(std::string_view bytes,
                              const std::function<void(std::uint64_t, std::string_view)>& record);

/// A file open for appending. A lock keeps other processes from writing it.
class WandbLog {
 public:
  /// Opens the file, or creates it with its header. Its folder must exist. ErrorCode::io if another
  /// run is writing it.
  static Result<WandbLog> open(const std::filesystem::path& path);

  bool empty() const { return size_ <= kHeaderBytes; }
  const std::filesystem::path& path() const { return path_; }
  /// Reads the whole file.
  Result<std::string> read() const;
  /// Truncates the file to `offset` bytes.
  Result<> cut(std::uint64_t offset);
  /// Appends a record. A record that does not fit on the disk is removed completely, because a
  /// partial record would hide all that follow.
  Result<> append(std::string_view record);

 private:
  static constexpr std::uint64_t kHeaderBytes = 7;
  Result<> write(std::string_view bytes);

  std::filesystem::path path_;
  Fd file_;
  std::uint64_t size_ = 0;
};

}  // namespace sortie::launcher
