#include "trainer/cli/data_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "common/base/elapsed.h"
#include "common/base/json_text.h"
#include "common/base/printable.h"
#include "common/base/quantity.h"
#include "common/config/text.h"
#include "trainer/cli/report.h"

namespace sortie::trainer {
namespace {

/// Returns the lengths in bucket k of Inspection::lengths: "1", "2-3", "4-7" ...
std::string bucket_name(std::size_t k) {
  if (k < 2) return std::to_string(k);
  const std::uint64_t low = std::uint64_t{1} << (k - 1);
  return fmt::format("{}-{}", low, low + (low - 1));
}

nlohmann::ordered_json to_json(std::string_view prefix, const Inspection& inspection,
                               const Tokenizer* tokenizer) {
  nlohmann::ordered_json lengths = nlohmann::ordered_json::object();
  for (std::size_t k = 0; k < inspection.lengths.size(); ++k)
    if (inspection.lengths[k] > 0) lengths[bucket_name(k)] = inspection.lengths[k];
  nlohmann::ordered_json root = {{"prefix", prefix},
                                 {"documents", inspection.documents},
                                 {"tokens", inspection.tokens},
                                 {"token_type", token_type_name(inspection.type)},
                                 {"bin_bytes", inspection.bin_bytes},
                                 {"idx_bytes", inspection.idx_bytes},
                                 {"min_id", inspection.min_id},
                                 {"max_id", inspection.max_id},
                                 {"shortest", inspection.shortest},
                                 {"longest", inspection.longest},
                                 {"lengths", lengths},
                                 {"fingerprint", inspection.fingerprint},
                                 {"manifest_checked", inspection.manifest.has_value()},
                                 {"first_tokens", inspection.first_tokens}};
  if (tokenizer != nullptr) root["first_text"] = tokenizer->decode(inspection.first_tokens);
  return root;
}

}  // namespace

void print_build(const BuildResult& result, const BuildOptions& options, double seconds) {
  const Corpus& corpus = result.corpus;
  fmt::print(
      "{}, {} of text in {:.2f} s ({}/s)\n", counted(corpus.files.size(), "file"),
      human_bytes(result.text_bytes), seconds,
      human_bytes(static_cast<std::uint64_t>(static_cast<double>(result.text_bytes) / seconds)));
  if (corpus.skipped_empty + corpus.skipped_hidden + corpus.skipped_links +
          corpus.skipped_repeated + corpus.skipped_pattern >
      0)
    fmt::print("left out: {} empty, {} hidden, {} links or special, {} repeated, {} not included\n",
               corpus.skipped_empty, corpus.skipped_hidden, corpus.skipped_links,
               corpus.skipped_repeated, corpus.skipped_pattern);
  if (result.empty_documents > 0)
    fmt::print("left out: {} without text\n", counted(result.empty_documents, "line"));
  if (result.left_out.count() > 0)
    fmt::print("left out: {}; --keep-non-text takes them all the same\n",
               printable(result.left_out.summary("document")));
  for (const BuildPart& part : result.parts)
    fmt::print("{}.bin: {}, {} ({})\n", part.prefix, counted(part.summary.documents, "document"),
               counted(part.summary.tokens, "token"), token_type_name(result.type));
  fmt::print("{}.json: the manifest\n", options.output);
}

void print_inspection(std::string_view prefix, const Inspection& inspection,
                      const Tokenizer* tokenizer, bool json) {
  if (json) {
    fmt::print("{}\n", json_text(to_json(prefix, inspection, tokenizer), 2));
    return;
  }
  fmt::print("{}: {}, {} ({}), .bin {}, .idx {}\n", prefix,
             counted(inspection.documents, "document"), counted(inspection.tokens, "token"),
             token_type_name(inspection.type), human_bytes(inspection.bin_bytes),
             human_bytes(inspection.idx_bytes));
  if (inspection.manifest)
    fmt::print("built with {} (vocabulary {}); counts and hashes agree with the manifest\n",
               inspection.manifest->tokenizer, inspection.manifest->vocab_size);
  else
    fmt::print("no manifest; the index and the tokens agree\n");
  fmt::print("fingerprint {}\n", inspection.fingerprint);
  if (inspection.tokens > 0)
    fmt::print("ids from {} to {}: model.vocab_size must be at least {}\n", inspection.min_id,
               inspection.max_id, inspection.max_id + 1);
  fmt::print("document lengths from {} to {} tokens:\n", inspection.shortest, inspection.longest);
  const std::uint64_t most =
      *std::max_element(inspection.lengths.begin(), inspection.lengths.end());
  for (std::size_t k = 0; k < inspection.lengths.size(); ++k) {
    const std::uint64_t count = inspection.lengths[k];
    if (count == 0) continue;
    constexpr std::uint64_t kWidth = 40;
    fmt::print("  {:>21} {:>10} {}\n", bucket_name(k), count,
               std::string((count * kWidth + most - 1) / most, '#'));
  }
  fmt::print("first tokens:");
  for (const std::int32_t id : inspection.first_tokens) fmt::print(" {}", id);
  fmt::print("\n");
  if (tokenizer != nullptr)
    fmt::print("as text: {}\n", config::quote(tokenizer->decode(inspection.first_tokens)));
}

}  // namespace sortie::trainer
