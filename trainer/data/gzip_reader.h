// GzipReader: the content of a gzip file, piece by piece.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "common/base/result.h"

namespace sortie::trainer {

/// Members that follow one another are one content, as `zcat` has it.
class GzipReader {
 public:
  /// `name` is how messages call the file; the bytes must outlive the reader.
  GzipReader(std::span<const std::byte> bytes, std::string name);
  GzipReader(GzipReader&&) noexcept;
  ~GzipReader();

  static bool is_gzip(std::span<const std::byte> bytes);

  /// Appends up to `bytes` bytes; fewer only at the end. A broken or cut file is ErrorCode::data.
  Result<> read(std::size_t bytes, std::string& out);
  bool at_end() const;
  /// Bytes of the file that have been used.
  std::size_t position() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sortie::trainer
