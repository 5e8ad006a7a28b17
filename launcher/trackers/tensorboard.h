// Writes TensorBoard event files: scalars, one record per (step, tag). A record is a u64 length,
// the masked CRC32C of the length, the bytes of an Event protobuf, and their masked CRC32C.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

/// Returns the first record of a file ("brain.Event:2").
std::string tensorboard_header(double wall_time);
/// Returns the record of a scalar.
std::string tensorboard_scalar(double wall_time, std::int64_t step, std::string_view tag,
                               float value);

class TensorBoardWriter {
 public:
  /// Creates "events.out.tfevents.<seconds>.<host>.<pid>.0" in `folder`, which is created if
  /// missing.
  static Result<TensorBoardWriter> create(const std::filesystem::path& folder, double wall_time);
  /// Appends a scalar. Not buffered in this process, so a reader sees it at once.
  Result<> add_scalar(double wall_time, std::int64_t step, std::string_view tag, double value);

 private:
  Result<> write(const std::string& record);
  Fd file_;
  std::filesystem::path path_;
};

}  // namespace sortie::launcher
