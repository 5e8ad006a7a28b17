// Checkpoints of llm.c: GPT-2 in one file, as its train_gpt2.py and its trainers write it
// (gpt2_124M.bin). The layout is in the README.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>

#include "common/config/schema.h"
#include "trainer/hf/stored_rows.h"
#include "trainer/storage/mapped_file.h"

namespace sortie::trainer {

/// Content of the header.
struct LlmcHeader {
  config::ModelConfig model;  // valid; without dropout, which llm.c does not have
  StorageType type;           // of all weights
  std::int64_t padded_vocab;  // rows of the embedding in the file
};
inline constexpr std::size_t kLlmcHeaderBytes = 1024;

/// Parses the header of a file of `file_bytes` bytes that begins with `bytes`. Returns an error
/// unless the file has exactly the size that its header implies. `where` begins the message.
Result<LlmcHeader> read_llmc_header(std::span<const std::byte> bytes, std::uint64_t file_bytes,
                                    std::string_view where);

class LlmcFile {
 public:
  static Result<LlmcFile> open(const std::filesystem::path& path);
  const LlmcHeader& header() const { return header_; }
  /// Returns a config.json for this model; the file has none.
  Result<nlohmann::json> config_json() const;
  /// Returns a row of a parameter of a model that was built from the header's config.
  StoredRow row(const std::string& parameter, std::int64_t row) const;

 private:
  void find_matrices();

  struct Matrix {
    const std::byte* data;
    std::int64_t rows, cols;
  };
  std::map<std::string, Matrix, std::less<>> matrices_;
  MappedFile file_;
  LlmcHeader header_;
};

}  // namespace sortie::trainer
