// TensorBoard event files: scalars, one record per (step, tag). Format: records of
// u64 length, masked CRC32C of it, bytes, masked CRC32C of them; the bytes are an Event protobuf.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "common/base/fd.h"
#include "common/base/result.h"

namespace sortie::launcher {

/// The record of the first event of a file ("brain.Event:2").
std::string tensorboard_header(double wall_time);
std::string tensorboard_scalar(double wall_time, std::int64_t step, std::string_view tag,
                               float value);

class TensorBoardWriter {
 public:
  /// Creates "events.out.tfevents.<seconds>.<host>.<pid>.0" in `folder`, which is made when
  /// missing.
  static Result<TensorBoardWriter> create(const std::filesystem::path& folder, double wall_time);
  /// Buffered by the kernel only: a reader sees it at once.
  Result<> add_scalar(double wall_time, std::int64_t step, std::string_view tag, double value);

 private:
  Result<> write(const std::string& record);
  Fd file_;
  std::filesystem::path path_;
};

}  // namespace sortie::launcher
