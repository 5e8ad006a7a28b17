#include "trainer/samples/document_ends.h"

#include <fmt/format.h>

#include "trainer/data/build_manifest.h"
#include "trainer/samples/job_token_files.h"

namespace sortie::trainer {
namespace {

/// Returns the last token of every document; nullopt if there is no such token.
std::optional<std::int32_t> end_of_documents(const BuildManifest& manifest,
                                             const RunTokenizer& run) {
  if (manifest.append_eod) return manifest.eod_id;
  if (!manifest.add_special_tokens || !run.files || run.files->special_tokens.after.empty())
    return std::nullopt;
  return run.files->special_tokens.after.back();
}

}  // namespace

Result<std::vector<std::string>> check_document_ends(const config::JobConfig& job,
                                                     const RunTokenizer& run) {
  std::vector<std::string> notes;
  const std::int64_t wanted = job.model.document_end_token;
  if (wanted < 0) return notes;
  const auto check = [&](const std::string& prefix, const std::string& key) -> Result<> {
    SORTIE_ASSIGN_OR_RETURN(const auto manifest, find_build_manifest(prefix));
    if (!manifest) return {};
    const std::optional<std::int32_t> end = end_of_documents(*manifest, run);
    if (!end)
      notes.push_back(
          fmt::format("warning: model.document_end_token = {}: the documents of {} ({}) were built "
                      "without a token at their end, so they are not separated; build them again "
                      "with --append-eod",
                      wanted, prefix, key));
    else if (*end != wanted)
      return fail(
          ErrorCode::config,
          fmt::format("model.document_end_token: it is {}, but the documents of {} ({}) end "
                      "with token {}, as their manifest says; set it to {}, or to -1",
                      wanted, prefix, key, *end, *end));
    return {};
  };
  SORTIE_TRY(for_each_token_file(job, check));
  return notes;
}

}  // namespace sortie::trainer
