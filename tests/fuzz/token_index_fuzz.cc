// Fuzzes TokenIndex::parse() with a .bin size from the first 8 bytes of the input. Parsing never
// reads out of bounds, and the sizes in an accepted index are consistent.
#include <cstdint>
#include <cstring>
#include <span>

#include "common/base/check.h"
#include "trainer/data/token_index.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using sortie::trainer::TokenIndex;
  std::uint64_t bin_bytes = 0;
  if (size < sizeof bin_bytes) return 0;
  std::memcpy(&bin_bytes, data, sizeof bin_bytes);
  const auto bytes = std::as_bytes(std::span(data + sizeof bin_bytes, size - sizeof bin_bytes));
  const auto index = TokenIndex::parse(bytes, bin_bytes, "fuzz");
  if (!index) {
    SORTIE_CHECK(index.error().code == sortie::ErrorCode::data);
    SORTIE_CHECK(index.error().message.starts_with("fuzz."));
    return 0;
  }
  SORTIE_CHECK(index->num_tokens() * token_bytes(index->type()) == bin_bytes);
  std::uint64_t sum = 0;
  for (std::uint64_t i = 0; i < index->num_documents(); ++i) {
    SORTIE_CHECK(index->document_begin(i) == sum);
    if (index->document_tokens(i) > 0) {
      const std::uint64_t last = sum + index->document_tokens(i) - 1;
      SORTIE_CHECK(index->document_of(last) == i);
    }
    sum += index->document_tokens(i);
  }
  SORTIE_CHECK(sum == index->num_tokens() || index->num_documents() == 0);
  return 0;
}
