// Fuzzes read_llmc_header(). The first 8 bytes of the input are the size of the file, the rest is
// its header. The weights of an accepted model fill the rest of the file exactly.
#include <cstdint>
#include <cstring>
#include <span>

#include "common/base/check.h"
#include "trainer/hf/llmc.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sortie::trainer;
  std::uint64_t file_bytes = 0;
  if (size < sizeof file_bytes) return 0;
  std::memcpy(&file_bytes, data, sizeof file_bytes);
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(sizeof file_bytes);
  const auto header = read_llmc_header(bytes, file_bytes, "gpt2.bin");
  if (!header) {
    SORTIE_CHECK(header.error().message.starts_with("gpt2.bin: "), "{}", header.error().message);
    return 0;
  }
  const sortie::config::ModelConfig& model = header->model;
  SORTIE_CHECK(model.architecture == "gpt2" && header->padded_vocab >= model.vocab_size);
  const double c = static_cast<double>(model.hidden_size);
  const double weights = c * static_cast<double>(header->padded_vocab + model.num_positions) +
                         2 * c + static_cast<double>(model.num_layers) * (12 * c * c + 13 * c);
  const double expected = 1024 + weights * static_cast<double>(storage_bytes(header->type));
  const double apart = static_cast<double>(file_bytes) - expected;
  SORTIE_CHECK(apart <= expected * 1e-12 && -apart <= expected * 1e-12);
  return 0;
}
