// Small token files for tests of sample orders.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "trainer/data/token_file.h"
#include "trainer/data/token_writer.h"

namespace sortie::test {

/// Writes documents of these lengths; their tokens are consecutive numbers from `first` on.
inline std::vector<trainer::TokenFile> write_documents(const std::string& prefix,
                                                       const std::vector<std::int32_t>& lengths,
                                                       std::int32_t first = 0) {
  auto writer = trainer::TokenFileWriter::create(prefix, trainer::TokenType::i32, false);
  SORTIE_CHECK(writer.has_value(), "{}", prefix);
  for (const std::int32_t length : lengths) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(length));
    std::iota(tokens.begin(), tokens.end(), first);
    first += length;
    SORTIE_CHECK(writer->append(tokens).has_value() && writer->end_document().has_value(), "{}",
                 prefix);
  }
  SORTIE_CHECK(writer->finish().has_value(), "{}", prefix);
  std::vector<trainer::TokenFile> files;
  files.push_back(std::move(*trainer::TokenFile::open(prefix)));
  return files;
}

}  // namespace sortie::test
