// GzipReader: decompresses a gzip file piece by piece.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"

namespace sortie::trainer {

/// Concatenated members are read as one stream, as by `zcat`.
class GzipReader {
 public:
  /// `name` is the file name in messages. `bytes` must outlive the reader.
  GzipReader(std::span<const std::byte> bytes, std::string name);
  GzipReader(GzipReader&&) noexcept;
  ~GzipReader();

  static bool is_gzip(std::span<const std::byte> bytes);

  /// Appends up to `bytes` decompressed bytes to `out`; fewer only at the end. ErrorCode::data if
  /// the file is corrupt or truncated.
  Result<> read(std::size_t bytes, std::string& out);
  bool at_end() const;
  /// Compressed bytes consumed so far.
  std::size_t position() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sortie::trainer
