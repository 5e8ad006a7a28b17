// Fuzzes parse_safetensors_header(). The tensors of an accepted file fill its data without gaps,
// and the header can be written and parsed again.
#include <cstdint>
#include <span>

#include "common/base/check.h"
#include "trainer/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sortie::trainer;
  auto header = parse_safetensors_header(std::as_bytes(std::span(data, size)), size, "fuzz");
  if (!header) {
    SORTIE_CHECK(header.error().code == sortie::ErrorCode::checkpoint);
    return 0;
  }
  std::uint64_t at = 0;
  for (const TensorEntry& entry : header->tensors) {
    SORTIE_CHECK(entry.begin == at && entry.end >= at);
    at = entry.end;
  }
  SORTIE_CHECK(header->data_begin + at == size);
  for (const TensorEntry& entry : header->tensors)
    if (entry.name.empty()) return 0;  // valid in a file, but never written
  std::vector<TensorEntry> entries = header->tensors;
  const std::string written = make_safetensors_header(entries, header->metadata);
  const auto again = parse_safetensors_header(
      std::as_bytes(std::span(written.data(), written.size())), written.size() + at, "again");
  SORTIE_CHECK(again.has_value(), "{}", again ? "" : again.error().message);
  SORTIE_CHECK(again->tensors.size() == header->tensors.size());
  return 0;
}
