// Any bytes as a safetensors file: parse may refuse, and what it accepts must lie in the file
// without holes and come back from the writer of headers.
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
    if (entry.name.empty()) return 0;  // legal in a file, never written here
  std::vector<TensorEntry> entries = header->tensors;
  const std::string written = make_safetensors_header(entries, header->metadata);
  const auto again = parse_safetensors_header(
      std::as_bytes(std::span(written.data(), written.size())), written.size() + at, "again");
  SORTIE_CHECK(again.has_value(), "{}", again ? "" : again.error().message);
  SORTIE_CHECK(again->tensors.size() == header->tensors.size());
  return 0;
}
